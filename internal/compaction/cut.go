package compaction

import (
	"strings"
	"unicode/utf8"
)

// headTail keeps the first head and the last tail characters of a text, with
// a line between them that says that something is missing. It does not say how
// much: a text may be cut again later, and a figure would then be wrong. The
// text itself comes back where the cut would not be shorter. Characters are
// never split.
func headTail(text string, head, tail int) string {
	start := byteOffset(text, head)
	end := len(text)
	for range tail {
		if end <= start {
			return text
		}
		_, n := utf8.DecodeLastRuneInString(text[:end])
		end -= n
	}
	return cutBetween(text, start, end)
}

// headLine keeps the first head characters and the last line, of which at most
// line characters: agents put the path of a spilled output there. White space at
// the end is no line.
func headLine(text string, head, line int) string {
	trimmed := strings.TrimRight(text, "\n\r ")
	start := byteOffset(text, head)
	end := strings.LastIndexByte(trimmed, '\n') + 1
	for n := utf8.RuneCountInString(trimmed[end:]); n > line; n-- {
		_, size := utf8.DecodeRuneInString(trimmed[end:])
		end += size
	}
	if end <= start {
		return text
	}
	short := cutBetween(trimmed, start, end)
	if len(short) == len(trimmed) {
		return text
	}
	if strings.HasSuffix(text, "\n") {
		short += "\n"
	}
	return short
}

const cutMarker = "\n[text was removed here to save context]\n"

func cutBetween(text string, start, end int) string {
	if end-start <= len(cutMarker) {
		return text
	}
	return text[:start] + cutMarker + text[end:]
}

// byteOffset is the offset after n characters.
func byteOffset(text string, n int) int {
	at := 0
	for range n {
		if at >= len(text) {
			break
		}
		_, size := utf8.DecodeRuneInString(text[at:])
		at += size
	}
	return at
}

// cutToBytes keeps about limit bytes of a text, beginning and end.
func cutToBytes(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	chars := limit * utf8.RuneCountInString(text) / len(text)
	return headTail(text, chars/2, chars-chars/2)
}

// firstLine returns a text's first line, at most n characters.
func firstLine(text string, n int) string {
	text = strings.TrimSpace(text)
	if i := strings.IndexByte(text, '\n'); i >= 0 {
		text = text[:i]
	}
	return ellipsis(text, n)
}

// ellipsis cuts a text to n characters.
func ellipsis(text string, n int) string {
	at := byteOffset(text, n)
	if at == len(text) {
		return text
	}
	return text[:at] + "…"
}
