package money

import (
	"slices"
	"strings"
)

// Sum is a balance in any number of currencies. The zero value is empty and
// ready to use.
type Sum struct {
	minor map[string]int64
}

// Add puts an amount on the balance.
func (s *Sum) Add(a Amount) {
	if s.minor == nil {
		s.minor = make(map[string]int64)
	}
	s.minor[a.Currency] += a.Minor
	if s.minor[a.Currency] == 0 {
		delete(s.minor, a.Currency)
	}
}

// AddSum puts every amount of another balance on this one.
func (s *Sum) AddSum(other Sum) {
	for _, a := range other.Amounts() {
		s.Add(a)
	}
}

// Get returns the balance in one currency.
func (s Sum) Get(currency string) Amount {
	return Amount{Minor: s.minor[currency], Currency: currency}
}

// IsZero says whether nothing is left in any currency.
func (s Sum) IsZero() bool { return len(s.minor) == 0 }

// Currencies returns the currencies that have a balance, sorted.
func (s Sum) Currencies() []string {
	names := make([]string, 0, len(s.minor))
	for name := range s.minor {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Amounts returns the balance as amounts, sorted by currency.
func (s Sum) Amounts() []Amount {
	amounts := make([]Amount, 0, len(s.minor))
	for _, name := range s.Currencies() {
		amounts = append(amounts, s.Get(name))
	}
	return amounts
}

// Clone returns an independent copy.
func (s Sum) Clone() Sum {
	var c Sum
	c.AddSum(s)
	return c
}

// String lists the amounts, separated by commas; an empty balance is "0".
func (s Sum) String() string {
	if s.IsZero() {
		return "0"
	}
	var b strings.Builder
	for i, a := range s.Amounts() {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(a.String())
	}
	return b.String()
}
