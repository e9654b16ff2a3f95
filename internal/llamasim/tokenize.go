package llamasim

import (
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// tokenize answers POST /tokenize. Without content there are no tokens.
func (s *Server) tokenize(a *answer) error {
	if err := checkJSON(a.rec.Body); err != nil {
		return invalidRequest("%v", err)
	}
	o := members(a.rec.Body)
	if content := o["content"]; o.has("content") && content.Kind() != '"' {
		return typeError("string", content)
	}
	b := []byte(`{"tokens":[`)
	for i, token := range appendTokens(nil, o.text("content"), o.flag("parse_special", true)) {
		if i > 0 {
			b = append(b, ',')
		}
		if o.flag("with_pieces", false) {
			b = appendTokenPiece(b, token)
		} else {
			b = strconv.AppendUint(b, token, 10)
		}
	}
	a.json(append(b, "]}"...))
	return nil
}

func typeError(want string, got jsontext.Value) error {
	return invalidRequest("[json.exception.type_error.302] type must be %s, but is %s", want, kindName(got))
}

// appendTokenPiece appends a token with its text: a string, or the bytes of
// what is only part of a character.
func appendTokenPiece(b []byte, token uint64) []byte {
	b = append(b, `{"id":`...)
	b = strconv.AppendUint(b, token, 10)
	b = append(b, `,"piece":`...)
	if piece := tokenText(token); utf8.ValidString(piece) {
		b = appendString(b, piece)
	} else {
		b = append(b, '[')
		for i := range len(piece) {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendUint(b, uint64(piece[i]), 10)
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

// detokenize answers POST /detokenize.
func (s *Server) detokenize(a *answer) error {
	if err := checkJSON(a.rec.Body); err != nil {
		return invalidRequest("%v", err)
	}
	var text []byte
	for _, v := range elements(members(a.rec.Body)["tokens"]) {
		token, err := strconv.ParseUint(string(v), 10, 64)
		if err != nil {
			return typeError("number", v)
		}
		text = append(text, tokenText(token)...)
	}
	a.json(append(appendString([]byte(`{"content":`), string(text)), '}'))
	return nil
}
