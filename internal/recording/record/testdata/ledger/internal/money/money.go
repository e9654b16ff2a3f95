// Package money holds amounts as whole minor units with a currency.
//
// There is no floating point anywhere: an amount of 12.34 EUR is 1234 minor
// units, and the number of decimals is a property of the currency.
package money

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Errors that callers tell apart.
var (
	ErrSyntax   = errors.New("not an amount")
	ErrCurrency = errors.New("different currencies")
	ErrRange    = errors.New("amount out of range")
	ErrDecimals = errors.New("too many decimals for the currency")
)

// exponents has the number of decimals of the currencies that are not two.
var exponents = map[string]int{
	"JPY": 0,
	"KRW": 0,
	"CLP": 0,
	"KWD": 3,
	"BHD": 3,
	"TND": 3,
}

// Exponent returns the number of decimals of a currency.
func Exponent(currency string) int {
	if e, ok := exponents[currency]; ok {
		return e
	}
	return 2
}

// Amount is a sum of money in one currency.
type Amount struct {
	Minor    int64
	Currency string
}

// New returns an amount of minor units.
func New(minor int64, currency string) Amount {
	return Amount{Minor: minor, Currency: currency}
}

// Parse reads an amount as people write it in a journal: "12.34 EUR",
// "EUR 12.34", "-0.50 EUR", "1_000 JPY".
func Parse(s string) (Amount, error) {
	fields := strings.Fields(s)
	if len(fields) != 2 {
		return Amount{}, fmt.Errorf("%w: %q", ErrSyntax, s)
	}
	number, currency := fields[0], fields[1]
	if isCurrency(number) {
		number, currency = currency, number
	}
	if !isCurrency(currency) {
		return Amount{}, fmt.Errorf("%w: %q has no currency", ErrSyntax, s)
	}
	minor, err := parseMinor(number, Exponent(currency))
	if err != nil {
		return Amount{}, fmt.Errorf("%w: %q", err, s)
	}
	return Amount{Minor: minor, Currency: currency}, nil
}

// MustParse is Parse for constants in tests and tables.
func MustParse(s string) Amount {
	a, err := Parse(s)
	if err != nil {
		panic(err)
	}
	return a
}

func isCurrency(s string) bool {
	if len(s) != 3 {
		return false
	}
	for i := range len(s) {
		if s[i] < 'A' || s[i] > 'Z' {
			return false
		}
	}
	return true
}

// parseMinor reads a decimal number as minor units.
func parseMinor(number string, exponent int) (int64, error) {
	number = strings.ReplaceAll(number, "_", "")
	whole, fraction, hasPoint := strings.Cut(number, ".")
	if whole == "" || hasPoint && fraction == "" {
		return 0, ErrSyntax
	}
	if len(fraction) > exponent {
		return 0, ErrDecimals
	}
	units, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return 0, numberError(err)
	}
	scale := pow10(exponent)
	if units > math.MaxInt64/scale || units < math.MinInt64/scale {
		return 0, ErrRange
	}
	minor := units * scale
	if fraction == "" {
		return minor, nil
	}
	fraction += strings.Repeat("0", exponent-len(fraction))
	part, err := strconv.ParseUint(fraction, 10, 63)
	if err != nil {
		return 0, numberError(err)
	}
	if units < 0 {
		return minor - int64(part), nil
	}
	return minor + int64(part), nil
}

func numberError(err error) error {
	if errors.Is(err, strconv.ErrRange) {
		return ErrRange
	}
	return ErrSyntax
}

func pow10(n int) int64 {
	p := int64(1)
	for range n {
		p *= 10
	}
	return p
}

// String writes the amount with exactly the decimals of its currency.
func (a Amount) String() string {
	return a.Number() + " " + a.Currency
}

// Number is String without the currency.
func (a Amount) Number() string {
	exponent := Exponent(a.Currency)
	sign := ""
	minor := uint64(a.Minor)
	if a.Minor < 0 {
		sign, minor = "-", -minor
	}
	digits := strconv.FormatUint(minor, 10)
	if exponent == 0 {
		return sign + digits
	}
	if len(digits) <= exponent {
		digits = strings.Repeat("0", exponent-len(digits)+1) + digits
	}
	cut := len(digits) - exponent
	return sign + digits[:cut] + "." + digits[cut:]
}

// IsZero says whether the amount is nothing, in whatever currency.
func (a Amount) IsZero() bool { return a.Minor == 0 }

// Neg returns the amount with the other sign.
func (a Amount) Neg() Amount { return Amount{Minor: -a.Minor, Currency: a.Currency} }

// Abs returns the amount without its sign.
func (a Amount) Abs() Amount {
	if a.Minor < 0 {
		return a.Neg()
	}
	return a
}

// Add returns a + b. Both must be in the same currency.
func (a Amount) Add(b Amount) (Amount, error) {
	if a.Currency != b.Currency {
		return Amount{}, fmt.Errorf("%w: %s and %s", ErrCurrency, a.Currency, b.Currency)
	}
	sum := a.Minor + b.Minor
	if (sum > a.Minor) != (b.Minor > 0) && b.Minor != 0 {
		return Amount{}, ErrRange
	}
	return Amount{Minor: sum, Currency: a.Currency}, nil
}

// Split divides the amount into n parts that differ by at most one minor unit
// and add up to the amount again. Larger parts come first.
func (a Amount) Split(n int) []Amount {
	if n <= 0 {
		return nil
	}
	parts := make([]Amount, n)
	each := a.Minor / int64(n)
	rest := a.Minor % int64(n)
	for i := range parts {
		parts[i] = Amount{Minor: each, Currency: a.Currency}
		if int64(i) < rest {
			parts[i].Minor++
		}
	}
	return parts
}

// Convert exchanges the amount at a rate written as a decimal number, such as
// "1.0842": one unit of a costs rate units of the other currency.
func (a Amount) Convert(rate, currency string) (Amount, error) {
	whole, fraction, _ := strings.Cut(rate, ".")
	numerator, err := strconv.ParseInt(whole+fraction, 10, 64)
	if err != nil || numerator <= 0 {
		return Amount{}, fmt.Errorf("%w: rate %q", ErrSyntax, rate)
	}
	product := a.Minor * numerator
	if a.Minor != 0 && product/a.Minor != numerator {
		return Amount{}, ErrRange
	}
	scale := pow10(len(fraction)) * pow10(Exponent(a.Currency))
	minor := product * pow10(Exponent(currency)) / scale
	return Amount{Minor: minor, Currency: currency}, nil
}
