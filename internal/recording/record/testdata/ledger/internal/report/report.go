// Package report writes tables about a journal.
package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"example.com/ledger/internal/account"
	"example.com/ledger/internal/journal"
	"example.com/ledger/internal/money"
)

// Options say what a report shows.
type Options struct {
	From, To journal.Date // To is exclusive; zero means no limit
	Depth    int          // 0 shows every level
	Account  string       // only this account and those below it
	Zero     bool         // show accounts with nothing on them
}

// Balance writes the account tree with totals.
func Balance(w io.Writer, j *journal.Journal, o Options) error {
	tree := account.Build(j.Between(o.From, o.To))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	var sum money.Sum
	tree.Walk(func(n *account.Node) bool {
		if o.Account != "" && !within(n.Path, o.Account) && !within(o.Account, n.Path) {
			return false
		}
		total := n.Total()
		if n.Depth == 1 {
			sum.AddSum(total)
		}
		if total.IsZero() && !o.Zero {
			return false
		}
		writeBalance(table, strings.Repeat("  ", n.Depth-1)+n.Name, total)
		return o.Depth == 0 || n.Depth < o.Depth
	})
	fmt.Fprintf(table, "%s\t\t  %s\n", strings.Repeat("-", 12), "")
	writeBalance(table, "", sum)
	return table.Flush()
}

// writeBalance writes a line for each currency, the name beside the last.
func writeBalance(table io.Writer, name string, total money.Sum) {
	amounts := total.Amounts()
	if len(amounts) == 0 {
		fmt.Fprintf(table, "0\t\t  %s\n", name)
		return
	}
	for i, a := range amounts {
		label := ""
		if i == len(amounts)-1 {
			label = name
		}
		fmt.Fprintf(table, "%s\t%s\t  %s\n", a.Number(), a.Currency, label)
	}
}

// within says whether an account is another one or below it.
func within(path, above string) bool {
	return path == above || strings.HasPrefix(path, above+":")
}

// Entry is a line of the register.
type Entry struct {
	Date    journal.Date
	Payee   string
	Account string
	Amount  money.Amount
	Running money.Sum
}

// Register lists the postings in the order of their dates, with the running
// balance of what it shows.
func Register(j *journal.Journal, o Options) []Entry {
	list := slices.Clone(j.Between(o.From, o.To))
	slices.SortFunc(list, func(a, b *journal.Transaction) int {
		if c := a.Date.Compare(b.Date); c != 0 {
			return c
		}
		return strings.Compare(a.Payee, b.Payee)
	})
	var entries []Entry
	var running money.Sum
	for _, t := range list {
		for _, p := range t.Postings {
			if o.Account != "" && !within(p.Account, o.Account) {
				continue
			}
			running.Add(p.Amount)
			entries = append(entries, Entry{
				Date:    t.Date,
				Payee:   t.Payee,
				Account: p.Account,
				Amount:  p.Amount,
				Running: running.Clone(),
			})
		}
	}
	return entries
}

// WriteRegister writes the register as a table.
func WriteRegister(w io.Writer, entries []Entry) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, e := range entries {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", e.Date, cut(e.Payee, 24), e.Account, e.Amount, e.Running)
	}
	return table.Flush()
}

// cut shortens a text to n characters.
func cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
