package money

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name string
		in   string
		want Amount
		err  error
	}{
		{"two decimals", "12.34 EUR", New(1234, "EUR"), nil},
		{"one decimal", "12.3 EUR", New(1230, "EUR"), nil},
		{"no decimals", "12 EUR", New(1200, "EUR"), nil},
		{"currency first", "EUR 12.34", New(1234, "EUR"), nil},
		{"negative", "-12.34 EUR", New(-1234, "EUR"), nil},
		{"negative below one", "-0.50 EUR", New(-50, "EUR"), nil},
		{"negative cent", "-0.01 USD", New(-1, "USD"), nil},
		{"zero", "0.00 EUR", New(0, "EUR"), nil},
		{"plus sign", "+3.00 CHF", New(300, "CHF"), nil},
		{"underscores", "1_234_567.89 EUR", New(123456789, "EUR"), nil},
		{"yen", "1200 JPY", New(1200, "JPY"), nil},
		{"dinar", "1.234 KWD", New(1234, "KWD"), nil},
		{"dinar short", "1.2 KWD", New(1200, "KWD"), nil},
		{"spaces around", "  7.00   EUR ", New(700, "EUR"), nil},
		{"yen with decimals", "1.5 JPY", Amount{}, ErrDecimals},
		{"three decimals", "1.234 EUR", Amount{}, ErrDecimals},
		{"comma", "1,23 EUR", Amount{}, ErrSyntax},
		{"no currency", "1.23", Amount{}, ErrSyntax},
		{"lower case currency", "1.23 eur", Amount{}, ErrSyntax},
		{"long currency", "1.23 EURO", Amount{}, ErrSyntax},
		{"two numbers", "1.23 4.56", Amount{}, ErrSyntax},
		{"empty", "", Amount{}, ErrSyntax},
		{"only a point", ". EUR", Amount{}, ErrSyntax},
		{"trailing point", "5. EUR", Amount{}, ErrSyntax},
		{"two signs", "--5 EUR", Amount{}, ErrSyntax},
		{"sign in the fraction", "5.-5 EUR", Amount{}, ErrSyntax},
		{"too large", "92233720368547758.08 EUR", Amount{}, ErrRange},
		{"much too large", "99999999999999999999 EUR", Amount{}, ErrRange},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(tt.in)
			t.Logf("Parse(%q) = %+v, %v", tt.in, got, err)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error = %v, want %v", err, tt.err)
			}
			if got != tt.want {
				t.Errorf("got %d %s, want %d %s", got.Minor, got.Currency, tt.want.Minor, tt.want.Currency)
			}
		})
	}
}

func TestString_RoundTrips(t *testing.T) {
	for _, currency := range []string{"EUR", "JPY", "KWD"} {
		for _, minor := range []int64{0, 1, -1, 9, 10, 99, 100, -100, 12345, -98765, 1_000_000} {
			a := New(minor, currency)
			t.Run(a.String(), func(t *testing.T) {
				back, err := Parse(a.String())
				if err != nil {
					t.Fatal(err)
				}
				if back != a {
					t.Errorf("%v came back as %v", a, back)
				}
			})
		}
	}
}

func TestAdd(t *testing.T) {
	got, err := MustParse("1.10 EUR").Add(MustParse("2.20 EUR"))
	if err != nil || got != MustParse("3.30 EUR") {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := MustParse("1 EUR").Add(MustParse("1 USD")); !errors.Is(err, ErrCurrency) {
		t.Errorf("adding dollars to euros: %v", err)
	}
	huge := New(1<<62, "EUR")
	if _, err := huge.Add(huge); !errors.Is(err, ErrRange) {
		t.Errorf("overflow: %v", err)
	}
}

func TestSplit(t *testing.T) {
	tests := []struct {
		in   string
		n    int
		want []int64
	}{
		{"10.00 EUR", 2, []int64{500, 500}},
		{"10.00 EUR", 3, []int64{334, 333, 333}},
		{"0.02 EUR", 3, []int64{1, 1, 0}},
		{"100 JPY", 7, []int64{15, 15, 14, 14, 14, 14, 14}},
		{"-12.00 EUR", 5, []int64{-240, -240, -240, -240, -240}},
		{"1.00 EUR", 0, nil},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s by %d", tt.in, tt.n), func(t *testing.T) {
			var got []int64
			for _, part := range MustParse(tt.in).Split(tt.n) {
				got = append(got, part.Minor)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestConvert(t *testing.T) {
	tests := []struct {
		in, rate, currency string
		want               string
	}{
		{"100.00 EUR", "1.0842", "USD", "108.42 USD"},
		{"10.00 EUR", "162.5", "JPY", "1625 JPY"},
		{"1625 JPY", "0.0061", "EUR", "9.91 EUR"},
		{"1.000 KWD", "3.0", "EUR", "3.00 EUR"},
	}
	for _, tt := range tests {
		t.Run(tt.in+" in "+tt.currency, func(t *testing.T) {
			got, err := MustParse(tt.in).Convert(tt.rate, tt.currency)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestSum(t *testing.T) {
	var s Sum
	if s.String() != "0" {
		t.Errorf("empty sum is %q", s)
	}
	s.Add(MustParse("5.00 EUR"))
	s.Add(MustParse("2.00 USD"))
	s.Add(MustParse("-1.50 EUR"))
	if got := s.String(); got != "3.50 EUR, 2.00 USD" {
		t.Errorf("got %q", got)
	}
	c := s.Clone()
	c.Add(MustParse("-2.00 USD"))
	if got := c.String(); got != "3.50 EUR" {
		t.Errorf("after the dollars are gone: %q", got)
	}
	if got := s.Get("USD"); got != MustParse("2.00 USD") {
		t.Errorf("the clone changed its origin: %v", got)
	}
}
