package journal

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Write writes transactions in the form that Parse reads, amounts aligned.
func Write(w io.Writer, list []*Transaction) error {
	out := bufio.NewWriter(w)
	for i, t := range list {
		if i > 0 {
			fmt.Fprintln(out)
		}
		writeTransaction(out, t)
	}
	return out.Flush()
}

func writeTransaction(out *bufio.Writer, t *Transaction) {
	fmt.Fprint(out, t.Date)
	if t.Cleared {
		fmt.Fprint(out, " *")
	}
	fmt.Fprintf(out, " %s", quote(t.Payee))
	if comment := fullComment(t); comment != "" {
		fmt.Fprintf(out, " ; %s", comment)
	}
	fmt.Fprintln(out)
	width := accountWidth(t)
	number := 0
	for _, p := range t.Postings {
		if !p.Elided {
			number = max(number, len(p.Amount.Number()))
		}
	}
	for _, p := range t.Postings {
		if p.Elided {
			fmt.Fprintf(out, "    %s", p.Account)
		} else {
			fmt.Fprintf(out, "    %-*s  %*s %s", width, p.Account, number, p.Amount.Number(), p.Amount.Currency)
		}
		if p.Comment != "" {
			fmt.Fprintf(out, " ; %s", p.Comment)
		}
		fmt.Fprintln(out)
	}
}

// fullComment is the comment with the bank's reference, which may only be a
// field after an import.
func fullComment(t *Transaction) string {
	if t.Reference == "" || reference(t.Comment) == t.Reference {
		return t.Comment
	}
	return strings.TrimSpace(t.Comment + " ref:" + t.Reference)
}

func accountWidth(t *Transaction) int {
	width := 24
	for _, p := range t.Postings {
		width = max(width, len(p.Account))
	}
	return width
}

// quote protects a payee that contains the sign of a comment.
func quote(payee string) string {
	if strings.Contains(payee, ";") {
		return `"` + payee + `"`
	}
	return payee
}
