// Package journal reads and writes journals: plain text files of transactions.
package journal

import (
	"fmt"
	"slices"
	"strings"

	"example.com/ledger/internal/money"
)

// Date is a day of the calendar, without a time or a zone.
type Date struct {
	Year, Month, Day int
}

// ParseDate reads a date as 2024-01-31.
func ParseDate(s string) (Date, error) {
	var d Date
	if len(s) != 10 || s[4] != '-' || s[7] != '-' {
		return d, fmt.Errorf("not a date: %q", s)
	}
	if _, err := fmt.Sscanf(s, "%4d-%2d-%2d", &d.Year, &d.Month, &d.Day); err != nil {
		return Date{}, fmt.Errorf("not a date: %q", s)
	}
	if !d.valid() {
		return Date{}, fmt.Errorf("no such day: %q", s)
	}
	return d, nil
}

func (d Date) valid() bool {
	if d.Month < 1 || d.Month > 12 || d.Day < 1 {
		return false
	}
	days := [...]int{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}[d.Month-1]
	if d.Month == 2 && d.leap() {
		days++
	}
	return d.Day <= days
}

func (d Date) leap() bool {
	return d.Year%4 == 0 && (d.Year%100 != 0 || d.Year%400 == 0)
}

// String writes the date as it is parsed.
func (d Date) String() string {
	return fmt.Sprintf("%04d-%02d-%02d", d.Year, d.Month, d.Day)
}

// Compare orders dates.
func (d Date) Compare(o Date) int {
	if d.Year != o.Year {
		return d.Year - o.Year
	}
	if d.Month != o.Month {
		return d.Month - o.Month
	}
	return d.Day - o.Day
}

// Before says whether d is an earlier day than o.
func (d Date) Before(o Date) bool { return d.Compare(o) < 0 }

// IsZero says whether the date was never set.
func (d Date) IsZero() bool { return d == Date{} }

// Posting is one line of a transaction.
type Posting struct {
	Account string
	Amount  money.Amount
	Elided  bool // the amount was left out and worked out from the others
	Comment string
	Line    int
}

// Transaction is a dated group of postings that adds up to nothing.
type Transaction struct {
	Date      Date
	Cleared   bool
	Payee     string
	Comment   string
	Tags      []string
	Reference string // the bank's own, from an import
	Postings  []Posting
	Line      int
}

// HasTag says whether the transaction carries a tag, written #tag.
func (t *Transaction) HasTag(tag string) bool { return slices.Contains(t.Tags, tag) }

// Sum adds up the postings; a balanced transaction is zero.
func (t *Transaction) Sum() money.Sum {
	var s money.Sum
	for _, p := range t.Postings {
		s.Add(p.Amount)
	}
	return s
}

// Journal is a parsed file.
type Journal struct {
	Name         string
	Transactions []*Transaction
	Declared     []string // accounts declared with "account NAME"
}

// Accounts returns the names of all accounts in use, sorted, each once.
func (j *Journal) Accounts() []string {
	seen := make(map[string]bool)
	var names []string
	for _, t := range j.Transactions {
		for _, p := range t.Postings {
			if !seen[p.Account] {
				seen[p.Account] = true
				names = append(names, p.Account)
			}
		}
	}
	slices.Sort(names)
	return names
}

// Between returns the transactions from a day on and before another. A zero
// date does not limit.
func (j *Journal) Between(from, to Date) []*Transaction {
	var list []*Transaction
	for _, t := range j.Transactions {
		if !from.IsZero() && t.Date.Before(from) {
			continue
		}
		if !to.IsZero() && !t.Date.Before(to) {
			continue
		}
		list = append(list, t)
	}
	return list
}

// kinds are the accounts at the top.
var kinds = []string{"assets", "liabilities", "income", "expenses", "equity"}

// checkAccount refuses names that are no account.
func checkAccount(name string) error {
	parts := strings.Split(name, ":")
	if !slices.Contains(kinds, parts[0]) {
		return fmt.Errorf("account %q does not start with one of %s", name, strings.Join(kinds, ", "))
	}
	for _, part := range parts {
		if strings.TrimSpace(part) == "" {
			return fmt.Errorf("account %q has an empty part", name)
		}
	}
	return nil
}
