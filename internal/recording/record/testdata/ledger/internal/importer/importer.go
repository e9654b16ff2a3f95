// Package importer turns a bank's CSV export into transactions.
package importer

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"example.com/ledger/internal/journal"
	"example.com/ledger/internal/money"
)

// Profile says how a bank writes its export.
type Profile struct {
	Name       string
	Comma      rune
	DateLayout string // as in package time
	Date       string // the names of the columns
	Payee      string
	Purpose    string
	Amount     string
	Currency   string
	Reference  string // may be missing
}

// profiles are tried in this order; the first whose columns are all there wins.
var profiles = []Profile{
	{
		Name:       "classic",
		Comma:      ',',
		DateLayout: "2006-01-02",
		Date:       "Date",
		Payee:      "Counterparty",
		Purpose:    "Purpose",
		Amount:     "Amount",
		Currency:   "Currency",
		Reference:  "Reference",
	},
}

// Options steer an import.
type Options struct {
	Account string // the bank account the export belongs to
	Rules   *Rules
}

// Errors that callers tell apart.
var (
	ErrNoProfile = errors.New("no profile fits the header")
	ErrEmpty     = errors.New("the export is empty")
)

// RowError is a row of the export that cannot be read.
type RowError struct {
	Line int
	Err  error
}

func (e *RowError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

func (e *RowError) Unwrap() error { return e.Err }

// Import reads an export. It returns all transactions or an error, never a part.
func Import(r io.Reader, o Options) ([]*journal.Transaction, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read export: %w", err)
	}
	text := string(data)
	if strings.TrimSpace(text) == "" {
		return nil, ErrEmpty
	}
	profile, err := detect(text)
	if err != nil {
		return nil, err
	}
	reader := csv.NewReader(strings.NewReader(text))
	reader.Comma = profile.Comma
	reader.TrimLeadingSpace = true
	header, err := reader.Read()
	if err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	columns := index(header)
	var list []*journal.Transaction
	for {
		row, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read export: %w", err)
		}
		line, _ := reader.FieldPos(0)
		t, err := profile.transaction(columns, row, o)
		if err != nil {
			return nil, &RowError{Line: line, Err: err}
		}
		list = append(list, t)
	}
}

// detect finds the profile whose columns are in the header.
func detect(text string) (*Profile, error) {
	header, _, _ := strings.Cut(text, "\n")
	header = strings.TrimRight(header, "\r")
	var missing []string
	for i := range profiles {
		p := &profiles[i]
		columns := index(strings.Split(header, string(p.Comma)))
		missing = p.missing(columns)
		if len(missing) == 0 {
			return p, nil
		}
	}
	return nil, fmt.Errorf("%w: no column %s", ErrNoProfile, strings.Join(missing, ", "))
}

// index maps the names of the columns to their positions.
func index(header []string) map[string]int {
	columns := make(map[string]int, len(header))
	for i, name := range header {
		columns[strings.Trim(strings.TrimSpace(name), `"`)] = i
	}
	return columns
}

// missing lists the columns that the profile needs and the header lacks.
func (p *Profile) missing(columns map[string]int) []string {
	var names []string
	for _, name := range []string{p.Date, p.Payee, p.Purpose, p.Amount, p.Currency} {
		if _, ok := columns[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// transaction reads one row.
func (p *Profile) transaction(columns map[string]int, row []string, o Options) (*journal.Transaction, error) {
	field := func(name string) string {
		if i, ok := columns[name]; ok && i < len(row) {
			return strings.TrimSpace(row[i])
		}
		return ""
	}
	day, err := time.Parse(p.DateLayout, field(p.Date))
	if err != nil {
		return nil, fmt.Errorf("date %q: want the form %s", field(p.Date), p.DateLayout)
	}
	amount, err := money.Parse(field(p.Amount) + " " + field(p.Currency))
	if err != nil {
		return nil, err
	}
	payee := field(p.Payee)
	if payee == "" {
		payee = field(p.Purpose)
	}
	return &journal.Transaction{
		Date:      journal.Date{Year: day.Year(), Month: int(day.Month()), Day: day.Day()},
		Cleared:   true,
		Payee:     payee,
		Comment:   field(p.Purpose),
		Reference: field(p.Reference),
		Postings: []journal.Posting{
			{Account: o.Rules.Account(payee), Amount: amount.Neg()},
			{Account: o.Account, Amount: amount},
		},
	}, nil
}

// New leaves out the transactions that the journal already has.
func New(j *journal.Journal, list []*journal.Transaction) []*journal.Transaction {
	known := make(map[string]bool)
	for _, t := range j.Transactions {
		known[key(t)] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(t *journal.Transaction) bool { return known[key(t)] })
}

// key recognises a transaction: the bank's reference where there is one,
// otherwise date, amount and payee.
func key(t *journal.Transaction) string {
	if t.Reference != "" {
		return "ref " + t.Reference
	}
	amount := ""
	if len(t.Postings) > 0 {
		amount = t.Postings[0].Amount.Abs().String()
	}
	return fmt.Sprintf("%s %s %s", t.Date, amount, strings.ToLower(t.Payee))
}
