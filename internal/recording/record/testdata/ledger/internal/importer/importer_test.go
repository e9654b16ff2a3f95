package importer

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.com/ledger/internal/journal"
	"example.com/ledger/internal/money"
)

const classic = `Date,Counterparty,Purpose,Amount,Currency,Reference
2024-01-05,Kornblatt Bakery,"Card payment, shop 12",-6.40,EUR,A17
2024-01-31,Northwind Ltd,Salary January,2850.00,EUR,A18
`

func rules(t *testing.T) *Rules {
	t.Helper()
	r, err := ParseRules(strings.NewReader(`
# pattern        account
kornblatt        expenses:food:bread
CITY UTILITIES   expenses:home:energy
northwind        income:salary
default          expenses:unsorted
`))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestImport_Classic(t *testing.T) {
	list, err := Import(strings.NewReader(classic), Options{Account: "assets:bank:checking", Rules: rules(t)})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 {
		t.Fatalf("got %d transactions", len(list))
	}
	first := list[0]
	if first.Payee != "Kornblatt Bakery" || first.Comment != "Card payment, shop 12" || first.Reference != "A17" {
		t.Errorf("first: %+v", *first)
	}
	want := []journal.Posting{
		{Account: "expenses:food:bread", Amount: money.MustParse("6.40 EUR")},
		{Account: "assets:bank:checking", Amount: money.MustParse("-6.40 EUR")},
	}
	if !slices.Equal(first.Postings, want) {
		t.Errorf("postings: %+v", first.Postings)
	}
	for _, tr := range list {
		if sum := tr.Sum(); !sum.IsZero() {
			t.Errorf("%s does not balance: %s", tr.Payee, sum)
		}
	}
}

func TestImport_Problems(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"empty", " \n", "the export is empty"},
		{"foreign header", "a,b,c\n1,2,3\n", "no profile fits the header"},
		{"bad date", strings.Replace(classic, "2024-01-31", "31/01/2024", 1), "line 3: date"},
		{"bad amount", strings.Replace(classic, "2850.00", "2.850,00", 1), "read export"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			list, err := Import(strings.NewReader(tt.text), Options{Account: "assets:bank"})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if list != nil {
				t.Errorf("half an import: %d transactions", len(list))
			}
		})
	}
}

// TestImport_Nightly reads the newest export as the nightly job does.
func TestImport_Nightly(t *testing.T) {
	f, err := os.Open(filepath.Join("testdata", "export-2024-05.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, err := Import(f, Options{Account: "assets:bank:checking", Rules: rules(t)})
	if err != nil {
		t.Fatalf("import of the May export: %v", err)
	}
	if len(list) != 96 {
		t.Errorf("got %d transactions, want 96", len(list))
	}
	var sum money.Sum
	for _, tr := range list {
		sum.Add(tr.Postings[1].Amount)
	}
	if got := sum.String(); got != "-1695.09 EUR" {
		t.Errorf("the export adds up to %s, the bank says -1695.09 EUR", got)
	}
}

func TestNew_LeavesOutWhatIsThere(t *testing.T) {
	list, err := Import(strings.NewReader(classic), Options{Account: "assets:bank:checking", Rules: rules(t)})
	if err != nil {
		t.Fatal(err)
	}
	j := &journal.Journal{Transactions: list[:1]}
	fresh := New(j, list)
	if len(fresh) != 1 || fresh[0].Reference != "A18" {
		t.Errorf("got %d new transactions", len(fresh))
	}
}

func TestRules(t *testing.T) {
	r := rules(t)
	tests := []struct{ payee, want string }{
		{"KORNBLATT BAKERY 12", "expenses:food:bread"},
		{"City Utilities Inc", "expenses:home:energy"},
		{"Unknown", "expenses:unsorted"},
	}
	for _, tt := range tests {
		if got := r.Account(tt.payee); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.payee, got, tt.want)
		}
	}
	if _, err := ParseRules(strings.NewReader("lonely\n")); err == nil {
		t.Error("a pattern without an account was accepted")
	}
}
