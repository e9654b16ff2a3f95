package importer

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Rules decide which account a payee belongs to.
type Rules struct {
	list     []rule
	fallback string
}

type rule struct {
	pattern string // in lower case
	account string
}

// ParseRules reads a rules file: a pattern and an account a line, separated by
// two spaces or a tab. Lines that start with # are comments.
func ParseRules(r io.Reader) (*Rules, error) {
	rules := &Rules{fallback: "expenses:unsorted"}
	scanner := bufio.NewScanner(r)
	line := 0
	for scanner.Scan() {
		line++
		text := strings.TrimSpace(scanner.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		cut := strings.LastIndexAny(text, " \t")
		if cut < 0 {
			return nil, fmt.Errorf("line %d: no account for %q", line, text)
		}
		pattern := strings.ToLower(strings.TrimSpace(text[:cut]))
		account := text[cut+1:]
		if pattern == "default" {
			rules.fallback = account
			continue
		}
		rules.list = append(rules.list, rule{pattern, account})
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	return rules, nil
}

// Account returns the account for a payee; the first pattern it contains wins.
func (r *Rules) Account(payee string) string {
	if r == nil {
		return "expenses:unsorted"
	}
	lower := strings.ToLower(payee)
	for _, rule := range r.list {
		if strings.Contains(lower, rule.pattern) {
			return rule.account
		}
	}
	return r.fallback
}
