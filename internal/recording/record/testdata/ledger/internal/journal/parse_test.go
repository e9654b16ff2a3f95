package journal

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"example.com/ledger/internal/money"
)

func parse(t *testing.T, text string) (*Journal, error) {
	t.Helper()
	return Parse(strings.NewReader(text), "test.journal")
}

func mustParse(t *testing.T, text string) *Journal {
	t.Helper()
	j, err := parse(t, text)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestParse_Transaction(t *testing.T) {
	j := mustParse(t, `
; groceries of January
2024-01-03 * Kornblatt Bakery ; weekly #food #bread ref:A17
    expenses:food:bread      6.40 EUR ; rye
    assets:bank:checking
`)
	if len(j.Transactions) != 1 {
		t.Fatalf("got %d transactions", len(j.Transactions))
	}
	tr := j.Transactions[0]
	t.Logf("%+v", *tr)
	if tr.Date != (Date{2024, 1, 3}) || !tr.Cleared || tr.Payee != "Kornblatt Bakery" {
		t.Errorf("header: %v %v %q", tr.Date, tr.Cleared, tr.Payee)
	}
	if !slices.Equal(tr.Tags, []string{"food", "bread"}) || tr.Reference != "A17" {
		t.Errorf("tags %q, reference %q", tr.Tags, tr.Reference)
	}
	if tr.Line != 3 || tr.Postings[0].Line != 4 {
		t.Errorf("lines: %d, %d", tr.Line, tr.Postings[0].Line)
	}
	if p := tr.Postings[0]; p.Comment != "rye" || p.Amount != money.MustParse("6.40 EUR") {
		t.Errorf("first posting: %+v", p)
	}
	if p := tr.Postings[1]; !p.Elided || p.Amount != money.MustParse("-6.40 EUR") {
		t.Errorf("second posting: %+v", p)
	}
}

func TestParse_QuotedPayee(t *testing.T) {
	j := mustParse(t, `
2024-02-11 "Hardware; Tools & More" ; shelf #home
    expenses:home:repair  31.95 EUR
    assets:bank:checking
`)
	tr := j.Transactions[0]
	if tr.Payee != "Hardware; Tools & More" {
		t.Errorf("payee %q", tr.Payee)
	}
	if tr.Comment != "shelf #home" {
		t.Errorf("comment %q", tr.Comment)
	}
}

func TestParse_SeveralCurrencies(t *testing.T) {
	j := mustParse(t, `
2024-03-01 Exchange office
    assets:cash   100.00 USD
    assets:cash   -92.50 EUR
    equity:exchange  -100.00 USD
    equity:exchange  92.50 EUR
`)
	if got := j.Transactions[0].Sum(); !got.IsZero() {
		t.Errorf("sum is %s", got)
	}
}

func TestParse_Problems(t *testing.T) {
	tests := []struct {
		name string
		text string
		line int
		want string
	}{
		{"bad date", "2024-13-01 Nobody\n    assets:cash  1 EUR\n    equity:x\n", 1, "no such day"},
		{"no leap year", "2023-02-29 Nobody\n    assets:cash  1 EUR\n    equity:x\n", 1, "no such day"},
		{"no payee", "2024-01-01 *\n    assets:cash  1 EUR\n    equity:x\n", 1, "without a payee"},
		{"bad amount", "2024-01-01 Shop\n    assets:cash  1,50 EUR\n    equity:x\n", 2, "not an amount"},
		{"bad account", "2024-01-01 Shop\n    pocket:cash  1 EUR\n    equity:x\n", 2, "does not start with"},
		{"empty part", "2024-01-01 Shop\n    assets::cash  1 EUR\n    equity:x\n", 2, "empty part"},
		{"two elided", "2024-01-01 Shop\n    assets:cash\n    equity:x\n", 3, "only one posting"},
		{"ambiguous", "2024-01-01 Shop\n    assets:cash  1 EUR\n    assets:cash  1 USD\n    equity:x\n", 4, "ambiguous"},
		{"unbalanced", "\n2024-01-01 Shop\n    assets:cash  1 EUR\n    equity:x  -2 EUR\n\n; end\n", 2, "does not balance"},
		{"one posting", "2024-01-01 Shop\n    assets:cash  1 EUR\n\n", 1, "at least two postings"},
		{"outside", "    assets:cash  1 EUR\n", 1, "outside a transaction"},
		{"nonsense", "hello\n", 1, "cannot read"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			j, err := parse(t, tt.text)
			t.Logf("error: %v", err)
			var problem *ParseError
			if !errors.As(err, &problem) {
				t.Fatalf("got error %v", err)
			}
			if problem.Line != tt.line || !strings.Contains(problem.Msg, tt.want) {
				t.Errorf("got line %d: %s\nwant line %d: %s", problem.Line, problem.Msg, tt.line, tt.want)
			}
			if len(j.Transactions) != 0 {
				t.Errorf("the transaction was kept")
			}
		})
	}
}

func TestParse_GoesOnAfterAProblem(t *testing.T) {
	j, err := parse(t, `
2024-01-01 Broken
    assets:cash  x EUR
    equity:opening

2024-01-02 Fine
    assets:cash  1.00 EUR
    equity:opening
hello
2024-01-03 Fine too
    assets:cash  1.00 EUR
    equity:opening
`)
	if err == nil || strings.Count(err.Error(), "test.journal:") != 2 {
		t.Errorf("want two problems, got %v", err)
	}
	if len(j.Transactions) != 2 {
		t.Errorf("got %d transactions, want 2", len(j.Transactions))
	}
}

func TestWrite_RoundTrips(t *testing.T) {
	text := `2024-01-03 * Kornblatt Bakery ; weekly #food
    expenses:food:bread         6.40 EUR ; rye
    expenses:food:cake         12.00 EUR
    assets:bank:checking

2024-02-11 "Hardware; Tools & More" ; ref:B2
    expenses:home:repair      31.95 EUR
    assets:bank:checking
`
	j := mustParse(t, text)
	var out bytes.Buffer
	if err := Write(&out, j.Transactions); err != nil {
		t.Fatal(err)
	}
	again := mustParse(t, out.String())
	if len(again.Transactions) != len(j.Transactions) {
		t.Fatalf("%d transactions became %d:\n%s", len(j.Transactions), len(again.Transactions), out.String())
	}
	for i, tr := range again.Transactions {
		if tr.Payee != j.Transactions[i].Payee || tr.Comment != j.Transactions[i].Comment {
			t.Errorf("transaction %d: %q %q became %q %q", i,
				j.Transactions[i].Payee, j.Transactions[i].Comment, tr.Payee, tr.Comment)
		}
	}
}

func TestBetween(t *testing.T) {
	j := mustParse(t, `
2024-01-31 A
    assets:cash  1 EUR
    equity:x
2024-02-01 B
    assets:cash  1 EUR
    equity:x
2024-03-01 C
    assets:cash  1 EUR
    equity:x
`)
	var got []string
	for _, tr := range j.Between(Date{2024, 2, 1}, Date{2024, 3, 1}) {
		got = append(got, tr.Payee)
	}
	if !slices.Equal(got, []string{"B"}) {
		t.Errorf("got %q", got)
	}
}
