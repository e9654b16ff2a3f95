package report

import (
	"bytes"
	"strings"
	"testing"

	"example.com/ledger/internal/journal"
)

const sample = `
2024-01-01 Opening
    assets:bank:checking   1_000.00 EUR
    equity:opening

2024-01-15 * Zoo
    expenses:leisure         24.00 EUR
    assets:bank:checking

2024-01-15 * Aunt Mathilda ; birthday
    assets:bank:checking    100.00 EUR
    income:gifts

2024-01-10 * Market
    expenses:food:fruit       7.50 EUR
    expenses:food             2.50 EUR
    assets:bank:checking

2024-02-01 * Station
    expenses:travel:train    40.00 CHF
    assets:cash             -40.00 CHF
`

func load(t *testing.T) *journal.Journal {
	t.Helper()
	j, err := journal.Parse(strings.NewReader(sample), "sample.journal")
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func date(t *testing.T, s string) journal.Date {
	t.Helper()
	d, err := journal.ParseDate(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestBalance(t *testing.T) {
	var out bytes.Buffer
	if err := Balance(&out, load(t), Options{}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"-40.00 CHF",
		"1066.00 EUR assets",
		"1066.00 EUR bank",
		"1066.00 EUR checking",
		"-40.00 CHF cash",
		"-1000.00 EUR equity",
		"-1000.00 EUR opening",
		"40.00 CHF",
		"34.00 EUR expenses",
		"10.00 EUR food",
		"7.50 EUR fruit",
		"24.00 EUR leisure",
		"40.00 CHF travel",
		"40.00 CHF train",
		"-100.00 EUR income",
		"-100.00 EUR gifts",
		"------------",
		"0",
	}
	compare(t, out.String(), want)
}

func TestBalance_Depth(t *testing.T) {
	var out bytes.Buffer
	if err := Balance(&out, load(t), Options{Depth: 1, To: date(t, "2024-02-01")}); err != nil {
		t.Fatal(err)
	}
	compare(t, out.String(), []string{
		"1066.00 EUR assets",
		"-1000.00 EUR equity",
		"34.00 EUR expenses",
		"-100.00 EUR income",
		"------------",
		"0",
	})
}

func TestBalance_Account(t *testing.T) {
	var out bytes.Buffer
	if err := Balance(&out, load(t), Options{Account: "expenses:food"}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "leisure") || !strings.Contains(out.String(), "fruit") {
		t.Errorf("got\n%s", out.String())
	}
}

func TestRegister_KeepsTheOrderOfTheFile(t *testing.T) {
	var got []string
	for _, e := range Register(load(t), Options{Account: "assets:bank"}) {
		got = append(got, e.Date.String()+" "+e.Payee+" "+e.Running.String())
	}
	compare(t, strings.Join(got, "\n"), []string{
		"2024-01-01 Opening 1000.00 EUR",
		"2024-01-10 Market 990.00 EUR",
		"2024-01-15 Zoo 966.00 EUR",
		"2024-01-15 Aunt Mathilda 1066.00 EUR",
	})
}

func TestWriteRegister(t *testing.T) {
	var out bytes.Buffer
	if err := WriteRegister(&out, Register(load(t), Options{Account: "income"})); err != nil {
		t.Fatal(err)
	}
	compare(t, out.String(), []string{"2024-01-15 Aunt Mathilda income:gifts -100.00 EUR -100.00 EUR"})
}

// compare holds a table against lines with single spaces.
func compare(t *testing.T, got string, want []string) {
	t.Helper()
	lines := strings.Split(strings.TrimRight(got, "\n"), "\n")
	for i := range max(len(lines), len(want)) {
		var g, w string
		if i < len(lines) {
			g = strings.Join(strings.Fields(lines[i]), " ")
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Errorf("line %d\n got: %s\nwant: %s", i+1, g, w)
		}
	}
	if t.Failed() {
		t.Logf("the whole table:\n%s", got)
	}
}
