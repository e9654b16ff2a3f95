package llamasim

import "strings"

// A token is up to six bytes of text, packed little-endian into a number that
// still fits a JSON reader's double. The text is cut into pieces first, much
// as byte-level BPE does it, and a piece of n bytes costs ceil(n/6) tokens:
//
//   - A word is a run of ASCII letters, digits and underscores with, if there
//     is one, the single byte ahead of it (a space, a tab, a bracket).
//   - A run of punctuation may have one space ahead and newlines in it.
//   - A run of white space is a piece.
//   - A byte outside ASCII, or NUL, costs a token of its own.
//   - So does each byte of an unbroken run of base64's alphabet after its
//     first 64: encoded data has no words in it.
//   - The template's markers cost one token each. A marker's number has zero
//     for its lowest byte, which no text gives.
//
// Six bytes, not fewer, is what makes source code come out at 3.3 to 3.5 bytes
// a token. Where a piece ends depends on no more than one byte after it, so
// the tokens of a text begin with the tokens of every earlier part of it, the
// last of these perhaps excepted.

// specials are the markers. Their order fixes their numbers.
var specials = [...]string{
	"<|endoftext|>",
	"<|im_start|>",
	markEnd,
	"<tool_call>",
	"</tool_call>",
	"<tool_response>",
	"</tool_response>",
	"<think>",
	"</think>",
	markImage,
}

const (
	markEnd   = "<|im_end|>"
	markImage = "<|image_pad|>"
)

const (
	tokenBytes = 6
	longRun    = 64
)

// Kinds of bytes.
const (
	kindPunct = iota
	kindWord
	kindSpace
	kindAlone
)

var (
	byteKind [256]uint8
	inBase64 [256]bool
)

func init() {
	for b := range byteKind {
		switch {
		case b >= 0x80 || b == 0:
			byteKind[b] = kindAlone
		case b == ' ' || b == '\n' || b == '\t' || b == '\r':
			byteKind[b] = kindSpace
		case b == '_' || b >= '0' && b <= '9' || b >= 'A' && b <= 'Z' || b >= 'a' && b <= 'z':
			byteKind[b] = kindWord
		}
		inBase64[b] = byteKind[b] == kindWord && b != '_' || b == '+' || b == '/' || b == '='
	}
}

// CountTokens is the number of tokens of a text, markers counted as one each.
func CountTokens(text string) int { return len(tokenize(text)) }

// tokenize cuts text, markers included, into tokens.
func tokenize(text string) []uint64 {
	return appendTokens(make([]uint64, 0, len(text)/3+1), text, true)
}

// appendTokens appends the tokens of text. Without markers, these are text
// like any other.
func appendTokens(tokens []uint64, text string, markers bool) []uint64 {
	for text != "" {
		start, end := longRunIn(text)
		tokens = appendPieces(tokens, text[:start], markers)
		for i := start; i < end; i++ {
			tokens = append(tokens, uint64(text[i]))
		}
		text = text[end:]
	}
	return tokens
}

// longRunIn finds the part of the first long run of base64's alphabet that is
// beyond its first 64 bytes. Without one it is empty, at the end of text.
func longRunIn(text string) (start, end int) {
	// A run that long has a byte in every 64th place.
	for i := longRun; i < len(text); i += longRun {
		if !inBase64[text[i]] {
			continue
		}
		first := i
		for first > 0 && inBase64[text[first-1]] {
			first--
		}
		end = i + 1
		for end < len(text) && inBase64[text[end]] {
			end++
		}
		if end-first > longRun {
			return first + longRun, end
		}
	}
	return len(text), len(text)
}

func appendPieces(tokens []uint64, text string, markers bool) []uint64 {
	for i := 0; i < len(text); {
		if n := markerAt(text, i, markers); n >= 0 {
			tokens = append(tokens, markerToken(n))
			i += len(specials[n])
			continue
		}
		end := pieceEnd(text, i, markers)
		for ; end-i > tokenBytes; i += tokenBytes {
			tokens = append(tokens, pack(text[i:i+tokenBytes]))
		}
		tokens = append(tokens, pack(text[i:end]))
		i = end
	}
	return tokens
}

// pieceEnd is where the piece that starts at i, which is no marker, ends.
func pieceEnd(text string, i int, markers bool) int {
	kind := byteKind[text[i]]
	if joined, ok := leads(text, i); ok {
		kind = joined
	}
	i++
	if kind == kindAlone {
		return i
	}
	for ; i < len(text); i++ {
		next := byteKind[text[i]]
		if kind == kindPunct && text[i] == '\n' {
			continue
		}
		if next != kind {
			return i
		}
		if kind == kindWord {
			continue
		}
		if _, ok := leads(text, i); ok || markerAt(text, i, markers) >= 0 {
			return i
		}
	}
	return i
}

// leads reports whether the byte at i is the one ahead of a piece of another
// kind, to which it then belongs.
func leads(text string, i int) (kind uint8, ok bool) {
	b := text[i]
	if i+1 == len(text) || b == '\n' {
		return 0, false
	}
	next := byteKind[text[i+1]]
	switch byteKind[b] {
	case kindPunct:
		return next, next == kindWord
	case kindSpace:
		return next, next == kindWord || next == kindPunct && b == ' '
	}
	return 0, false
}

// markerAt is the index of the marker at i, or -1.
func markerAt(text string, i int, markers bool) int {
	if !markers || text[i] != '<' {
		return -1
	}
	for n, marker := range specials {
		if strings.HasPrefix(text[i:], marker) {
			return n
		}
	}
	return -1
}

func markerToken(index int) uint64 { return uint64(index+1) << 8 }

// markerOf is the marker that a token stands for, if it stands for one.
func markerOf(token uint64) (string, bool) {
	index := token >> 8
	if token&0xff != 0 || index == 0 || index > uint64(len(specials)) {
		return "", false
	}
	return specials[index-1], true
}

func pack(piece string) uint64 {
	var token uint64
	for i := len(piece) - 1; i >= 0; i-- {
		token = token<<8 | uint64(piece[i])
	}
	return token
}

// tokenText is the text that a token stands for.
func tokenText(token uint64) string {
	if marker, ok := markerOf(token); ok {
		return marker
	}
	text := make([]byte, 0, tokenBytes)
	for first := true; first || token > 0; first = false {
		text = append(text, byte(token))
		token >>= 8
	}
	return string(text)
}

// tokenLen is len(tokenText(token)), without making it.
func tokenLen(token uint64) int {
	if marker, ok := markerOf(token); ok {
		return len(marker)
	}
	n := 1
	for token >>= 8; token > 0; token >>= 8 {
		n++
	}
	return n
}

// commonPrefix is how many tokens a and b begin with alike.
func commonPrefix(a, b []uint64) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	for i, token := range a {
		if token != b[i] {
			return i
		}
	}
	return n
}
