package config

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	// Key is the key, dotted from the root: compaction.tools[2].kind. For a file that cannot be read it is
	// the setting that names the file, for one that is not YAML its path.
	Key string
	// Text says what is wrong, to be read after the key.
	Text string
	// Got is the value as it was written, quoted where it is text and masked where it is a secret; "" where
	// there is none to show.
	Got string
	// Origin says where the value came from: "at compactproxy.yaml:12", "from COMPACTPROXY_LISTEN",
	// "from --listen"; "" for a default.
	Origin string
	// Fix says what to do; "" where Text says it already.
	Fix string

	line int // in the file, 0 where the value is not from there
}

// Error puts the problem on one line.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Key)
	b.WriteString(": ")
	b.WriteString(p.Text)
	switch {
	case p.Got != "" && p.Origin != "":
		b.WriteString(" (got " + p.Got + " " + p.Origin + ")")
	case p.Got != "":
		b.WriteString(" (got " + p.Got + ")")
	case p.Origin != "":
		b.WriteString(" (" + p.Origin + ")")
	}
	if p.Fix != "" {
		b.WriteString("; " + p.Fix)
	}
	return b.String()
}

// Problems is everything that is wrong with a configuration; as an error it has one line per problem.
type Problems []*Problem

// Error joins the problems, one a line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find each problem.
func (ps Problems) Unwrap() []error {
	errs := make([]error, len(ps))
	for i, p := range ps {
		errs[i] = p
	}
	return errs
}

// err is ps as an error, nil where there is no problem. Those of the file come first, from top to bottom.
func (ps Problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	slices.SortStableFunc(ps, func(a, b *Problem) int {
		if (a.line == 0) != (b.line == 0) {
			return b.line - a.line
		}
		return a.line - b.line
	})
	return ps
}

// origin is where a value came from.
type origin struct {
	text string // as in Problem.Origin
	line int    // as in Problem.line
}

// from notes the origin of the value that p is about.
func (p *Problem) from(o origin) { p.Origin, p.line = o.text, o.line }

// gotRunes is how much of a value a message shows, in characters.
const gotRunes = 60

// quote shows a text in a message: in quotes, on one line, shortened.
func quote(text string) string { return strconv.Quote(shorten(text)) }

// plain shows a word in a message without quotes where that is unambiguous.
func plain(text string) string {
	text = shorten(text)
	if text == "" || strings.ContainsFunc(text, func(r rune) bool { return r == '"' || r == unicode.ReplacementChar || !unicode.IsGraphic(r) }) {
		return strconv.Quote(text)
	}
	return text
}

func shorten(text string) string {
	if runes := []rune(text); len(runes) > gotRunes {
		return string(runes[:gotRunes]) + "..."
	}
	return text
}

// choice writes a, b or c.
func choice(options []string) string {
	if len(options) < 2 {
		return strings.Join(options, "")
	}
	last := len(options) - 1
	return strings.Join(options[:last], ", ") + " or " + options[last]
}
