package store

import (
	"iter"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// phrase is words in a row.
type phrase struct {
	words  []string // in lower case
	prefix bool     // the last one is a beginning
}

// Bounds of a query.
const (
	maxQuery   = 1024 // bytes
	maxPhrases = 32
)

// parseQuery splits a query into phrases. What holds no word is left out.
func parseQuery(text string) []phrase {
	text = strings.ToValidUTF8(text[:min(len(text), maxQuery)], " ")
	var out []phrase
	add := func(part string) {
		p := phrase{prefix: strings.HasSuffix(part, "*")}
		for _, word := range words([]byte(part)) {
			p.words = append(p.words, word)
		}
		if len(p.words) > 0 && len(out) < maxPhrases {
			out = append(out, p)
		}
	}
	parts := strings.Split(text, `"`)
	for i, part := range parts {
		if i%2 == 1 && i < len(parts)-1 { // between two quotes
			add(part)
			continue
		}
		for word := range strings.FieldsSeq(part) {
			add(word)
		}
	}
	return out
}

// match is the query as FTS5 wants it. It is made of words and nothing else of the
// user's, so that there is nothing to be escaped.
func match(phrases []phrase, operator string) string {
	parts := make([]string, len(phrases))
	for i, p := range phrases {
		parts[i] = `"` + strings.Join(p.words, " ") + `"`
		if p.prefix {
			parts[i] += " *"
		}
	}
	return strings.Join(parts, operator)
}

// words yields the words of a text as the index sees them, with their places.
func words(text []byte) iter.Seq2[span, string] {
	return func(yield func(span, string) bool) {
		start := -1
		for i := 0; i <= len(text); {
			r, n := rune(' '), 1
			if i < len(text) {
				r, n = rune(text[i]), 1
				if r >= utf8.RuneSelf {
					r, n = utf8.DecodeRune(text[i:])
				}
			}
			switch {
			case isWord(r) && start < 0:
				start = i
			case !isWord(r) && start >= 0:
				if !yield(span{start, i}, strings.ToLower(string(text[start:i]))) {
					return
				}
				start = -1
			}
			i += n
		}
	}
}

type span struct{ start, end int }

// isWord is what tokenchars '_' adds to the tokenizer unicode61.
func isWord(r rune) bool {
	if r < utf8.RuneSelf {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_'
	}
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r) || unicode.Is(unicode.Co, r))
}

// How much of a text an excerpt shows before and behind the match, in bytes.
const (
	excerptBefore = 100
	excerptBehind = 180
)

// excerpt is the text around the first match on one line; its beginning where
// there is none.
func excerpt(text []byte, phrases []phrase) string {
	at := firstMatch(text, phrases)
	from, to := max(at-excerptBefore, 0), min(at+excerptBehind, len(text))
	for from > 0 && from < at && !utf8.RuneStart(text[from]) {
		from++
	}
	for to < len(text) && to > at && !utf8.RuneStart(text[to]) {
		to--
	}
	out := strings.Join(strings.Fields(strings.ToValidUTF8(string(text[from:to]), "\uFFFD")), " ")
	if from > 0 {
		out = "…" + out
	}
	if to < len(text) {
		out += "…"
	}
	return out
}

// firstMatch is where the first of the phrases begins, 0 if there is none.
func firstMatch(text []byte, phrases []phrase) int {
	if len(phrases) == 0 {
		return 0
	}
	longest := 0
	for _, p := range phrases {
		longest = max(longest, len(p.words))
	}
	// The last words seen, to compare with a phrase once its last one comes.
	var recent []string
	var starts []int
	for at, word := range words(text) {
		if len(recent) == longest {
			recent, starts = recent[1:], starts[1:]
		}
		recent, starts = append(recent, word), append(starts, at.start)
		for _, p := range phrases {
			n := len(recent) - len(p.words)
			if n < 0 {
				continue
			}
			last := len(p.words) - 1
			if slices.Equal(recent[n:len(recent)-1], p.words[:last]) &&
				(word == p.words[last] || p.prefix && strings.HasPrefix(word, p.words[last])) {
				return starts[n]
			}
		}
	}
	return 0
}
