package tinymodel

import (
	"iter"
	"strings"
	"unicode"
	"unicode/utf8"
)

// words yields the pieces of text that byte-pair encoding never merges across,
// as the server's "qwen2" pre-tokenizer cuts them. Training on pieces cut in
// another way would learn tokens that the server can never produce. The rules
// are those of the published pattern
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N}
//	| ?[^\s\p{L}\p{N}]+[\r\n]* | \s*[\r\n]+ | \s+(?!\S) | \s+
//
// which package regexp cannot express because of the look-ahead.
func words(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for len(text) > 0 {
			n := wordLen(text)
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
	}
}

// wordLen returns the length in bytes of the piece that text, which is not
// empty, begins with.
func wordLen(text string) int {
	if n := contraction(text); n > 0 {
		return n
	}
	r, size := utf8.DecodeRuneInString(text)
	switch {
	case unicode.IsLetter(r):
		return span(text, unicode.IsLetter)
	case unicode.IsNumber(r):
		return size
	}
	// One leading character, often a space, belongs to the letters behind it.
	if !isBreak(r) {
		if n := span(text[size:], unicode.IsLetter); n > 0 {
			return size + n
		}
	}
	lead := 0
	if r == ' ' {
		lead = 1
	}
	if n := span(text[lead:], isSymbol); n > 0 {
		n += lead
		return n + span(text[n:], isBreak)
	}
	// Only white space can be left. It runs up to and including its last line
	// break; without one it leaves its last character to the word that follows.
	n := span(text, unicode.IsSpace)
	if last := strings.LastIndexAny(text[:n], "\r\n"); last >= 0 {
		return last + 1
	}
	if n < len(text) {
		_, last := utf8.DecodeLastRuneInString(text[:n])
		if n > last {
			return n - last
		}
	}
	return n
}

// contraction returns the length of an English ending such as 're.
func contraction(text string) int {
	if text[0] != '\'' {
		return 0
	}
	for _, ending := range [...]string{"s", "t", "re", "ve", "m", "ll", "d"} {
		if end := 1 + len(ending); len(text) >= end && strings.EqualFold(text[1:end], ending) {
			return end
		}
	}
	return 0
}

// span returns how many bytes of text, from its start, are runes that satisfy
// is.
func span(text string, is func(rune) bool) int {
	for i, r := range text {
		if !is(r) {
			return i
		}
	}
	return len(text)
}

func isBreak(r rune) bool { return r == '\n' || r == '\r' }

func isSymbol(r rune) bool {
	return !unicode.IsSpace(r) && !unicode.IsLetter(r) && !unicode.IsNumber(r)
}
