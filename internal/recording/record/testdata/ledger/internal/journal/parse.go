package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"example.com/ledger/internal/money"
)

// ParseError is a problem at a line of a journal.
type ParseError struct {
	File string
	Line int
	Msg  string
}

func (e *ParseError) Error() string {
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg)
}

// Parse reads a journal. It goes on after a problem and returns all of them,
// joined; a transaction with a problem is left out of the journal.
func Parse(r io.Reader, name string) (*Journal, error) {
	p := parser{journal: &Journal{Name: name}}
	scanner := bufio.NewScanner(r)
	scanner.Buffer(make([]byte, 0, 64*1024), 1024*1024)
	for scanner.Scan() {
		p.line++
		p.parseLine(strings.TrimRight(scanner.Text(), " \t\r"))
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	p.finish()
	return p.journal, errors.Join(p.problems...)
}

// parser holds the state between lines.
type parser struct {
	journal  *Journal
	line     int
	current  *Transaction
	broken   bool // the current transaction has a problem and will be dropped
	problems []error
}

func (p *parser) problem(line int, format string, args ...any) {
	p.problems = append(p.problems, &ParseError{File: p.journal.Name, Line: line, Msg: fmt.Sprintf(format, args...)})
}

func (p *parser) parseLine(text string) {
	switch {
	case text == "":
		p.finish()
	case text[0] == ';' || text[0] == '#':
		// a comment of the file
	case text[0] == ' ' || text[0] == '\t':
		p.parsePosting(text)
	case text[0] >= '0' && text[0] <= '9':
		p.finish()
		p.parseHeader(text)
	case strings.HasPrefix(text, "account "):
		p.finish()
		p.parseAccount(strings.TrimSpace(strings.TrimPrefix(text, "account ")))
	default:
		p.finish()
		p.problem(p.line, "cannot read %q", text)
	}
}

func (p *parser) parseAccount(name string) {
	if err := checkAccount(name); err != nil {
		p.problem(p.line, "%v", err)
		return
	}
	p.journal.Declared = append(p.journal.Declared, name)
}

// parseHeader reads the first line of a transaction:
// DATE [*] PAYEE [; COMMENT].
func (p *parser) parseHeader(text string) {
	p.current = &Transaction{Line: p.line}
	p.broken = false
	day, rest, _ := strings.Cut(text, " ")
	date, err := ParseDate(day)
	if err != nil {
		p.problem(p.line, "%v", err)
		p.broken = true
	}
	p.current.Date = date
	rest = strings.TrimSpace(rest)
	if after, ok := strings.CutPrefix(rest, "*"); ok {
		p.current.Cleared = true
		rest = strings.TrimSpace(after)
	}
	payee, comment := cutComment(rest)
	if payee == "" {
		p.problem(p.line, "transaction without a payee")
		p.broken = true
	}
	p.current.Payee = unquote(payee)
	p.current.Comment = comment
	p.current.Tags = tags(comment)
	p.current.Reference = reference(comment)
}

// parsePosting reads an indented line: ACCOUNT  [AMOUNT] [; COMMENT].
func (p *parser) parsePosting(text string) {
	if p.current == nil {
		p.problem(p.line, "posting outside a transaction")
		return
	}
	body, comment := cutComment(strings.TrimSpace(text))
	if body == "" {
		// a comment line of the transaction
		p.current.Tags = append(p.current.Tags, tags(comment)...)
		return
	}
	account, amount := cutAmount(body)
	posting := Posting{Account: account, Comment: comment, Line: p.line}
	if err := checkAccount(account); err != nil {
		p.problem(p.line, "%v", err)
		p.broken = true
	}
	if amount == "" {
		posting.Elided = true
	} else {
		a, err := money.Parse(amount)
		if err != nil {
			p.problem(p.line, "%v", err)
			p.broken = true
		}
		posting.Amount = a
	}
	p.current.Postings = append(p.current.Postings, posting)
}

// finish closes the current transaction: works out the elided amount, checks
// the balance, and files it.
func (p *parser) finish() {
	t := p.current
	p.current = nil
	if t == nil || p.broken {
		return
	}
	if len(t.Postings) < 2 {
		p.problem(p.line, "transaction needs at least two postings, has %d", len(t.Postings))
		return
	}
	elided := -1
	for i, posting := range t.Postings {
		if !posting.Elided {
			continue
		}
		if elided >= 0 {
			p.problem(posting.Line, "only one posting may leave out its amount")
			return
		}
		elided = i
	}
	sum := t.Sum()
	if elided >= 0 {
		if err := fillElided(t, elided, sum); err != nil {
			p.problem(t.Postings[elided].Line, "%v", err)
			return
		}
	} else if !sum.IsZero() {
		p.problem(p.line, "transaction does not balance, %s is left", sum)
		return
	}
	p.journal.Transactions = append(p.journal.Transactions, t)
}

// fillElided gives the posting without an amount what is left.
func fillElided(t *Transaction, index int, sum money.Sum) error {
	amounts := sum.Amounts()
	switch len(amounts) {
	case 0:
		return errors.New("nothing is left for the posting without an amount")
	case 1:
		t.Postings[index].Amount = amounts[0].Neg()
		return nil
	default:
		return fmt.Errorf("the missing amount is ambiguous, %s is left", sum)
	}
}

// cutComment splits a text at its comment.
func cutComment(text string) (body, comment string) {
	body, comment, _ = strings.Cut(text, ";")
	return strings.TrimSpace(body), strings.TrimSpace(comment)
}

// cutAmount splits a posting at the first run of two spaces or a tab.
func cutAmount(text string) (account, amount string) {
	for i := 0; i < len(text); i++ {
		if text[i] == '\t' || text[i] == ' ' && i+1 < len(text) && text[i+1] == ' ' {
			return text[:i], strings.TrimSpace(text[i:])
		}
	}
	return text, ""
}

// unquote removes the quotes around a payee that contains a semicolon.
func unquote(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		return s[1 : len(s)-1]
	}
	return s
}

// tags collects the words of a comment that start with #.
func tags(comment string) []string {
	var list []string
	for _, word := range strings.FieldsFunc(comment, func(r rune) bool { return unicode.IsSpace(r) || r == ',' }) {
		if len(word) > 1 && word[0] == '#' {
			list = append(list, word[1:])
		}
	}
	return list
}

// reference finds ref:XYZ in a comment.
func reference(comment string) string {
	for _, word := range strings.Fields(comment) {
		if ref, ok := strings.CutPrefix(word, "ref:"); ok {
			return ref
		}
	}
	return ""
}
