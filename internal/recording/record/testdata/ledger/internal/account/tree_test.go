package account

import (
	"slices"
	"strings"
	"testing"

	"example.com/ledger/internal/journal"
)

const sample = `
2024-01-01 Opening
    assets:bank:checking   1_000.00 EUR
    assets:bank              50.00 EUR
    equity:opening

2024-01-02 Market
    expenses:food:fruit      7.50 EUR
    expenses:food            2.50 EUR
    assets:bank:checking

2024-01-03 Station
    expenses:travel:train   40.00 CHF
    assets:cash            -40.00 CHF
`

func build(t *testing.T) *Tree {
	t.Helper()
	j, err := journal.Parse(strings.NewReader(sample), "sample.journal")
	if err != nil {
		t.Fatal(err)
	}
	return Build(j.Transactions)
}

func TestTotal(t *testing.T) {
	tree := build(t)
	tests := []struct{ path, own, total string }{
		{"assets", "0", "1040.00 EUR, -40.00 CHF"},
		{"assets:bank", "50.00 EUR", "1040.00 EUR"},
		{"assets:bank:checking", "990.00 EUR", "990.00 EUR"},
		{"assets:cash", "-40.00 CHF", "-40.00 CHF"},
		{"equity", "0", "-1050.00 EUR"},
		{"expenses", "0", "10.00 EUR, 40.00 CHF"},
		{"expenses:food", "2.50 EUR", "10.00 EUR"},
		{"expenses:food:fruit", "7.50 EUR", "7.50 EUR"},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			n := tree.Find(tt.path)
			if n == nil {
				t.Fatal("no such account")
			}
			if got := n.Own.String(); got != sorted(tt.own) {
				t.Errorf("own sum is %s, want %s", got, sorted(tt.own))
			}
			if got := n.Total().String(); got != sorted(tt.total) {
				t.Errorf("total is %s, want %s", got, sorted(tt.total))
			}
		})
	}
}

// sorted puts the amounts of a sum in the order of their currencies.
func sorted(sum string) string {
	parts := strings.Split(sum, ", ")
	slices.SortFunc(parts, func(a, b string) int { return strings.Compare(a[max(0, len(a)-3):], b[max(0, len(b)-3):]) })
	return strings.Join(parts, ", ")
}

func TestTotal_OfEverythingIsZero(t *testing.T) {
	if got := build(t).Root.Total(); !got.IsZero() {
		t.Errorf("the whole tree adds up to %s", got)
	}
}

func TestWalk(t *testing.T) {
	var got []string
	build(t).Walk(func(n *Node) bool {
		got = append(got, strings.Repeat(" ", n.Depth-1)+n.Name)
		return n.Depth < 2
	})
	want := []string{"assets", " bank", " cash", "equity", " opening", "expenses", " food", " travel"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestParent(t *testing.T) {
	tree := build(t)
	if p := tree.Find("assets").Parent(); p != nil {
		t.Errorf("assets has the parent %q", p.Path)
	}
	if p := tree.Find("assets:bank:checking").Parent(); p == nil || p.Path != "assets:bank" {
		t.Errorf("parent of checking: %v", p)
	}
}
