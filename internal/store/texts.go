package store

import (
	"bytes"
	"crypto/sha256"
	"errors"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/compactproxy/compactproxy/internal/transcript"
)

// cutMessage is a message taken apart.
type cutMessage struct {
	key   transcript.Hash
	role  string
	shell []byte // the raw bytes without the literals
	parts []part
}

// part is a literal that was cut out of a message.
type part struct {
	at      int // where in the shell it goes
	literal []byte
}

// cut takes a message apart. Empty strings stay in the shell.
func cut(m *transcript.Message) cutMessage {
	raw := m.Raw()
	c := cutMessage{key: keyOf(raw), role: m.Role.String(), shell: make([]byte, 0, min(len(raw), 512))}
	done := 0
	for start, end := range m.LiteralSpans {
		if start < done || end-start <= len(`""`) {
			continue
		}
		c.shell = append(c.shell, raw[done:start]...)
		c.parts = append(c.parts, part{len(c.shell), raw[start:end]})
		done = end
	}
	c.shell = append(c.shell, raw[done:]...)
	return c
}

var errParts = errors.New("the parts of a message do not fit")

// join undoes cut. Parts come in ascending order.
func join(shell []byte, parts []part) ([]byte, error) {
	size, done := len(shell), 0
	for _, p := range parts {
		if p.at < done || p.at > len(shell) {
			return nil, errParts
		}
		size, done = size+len(p.literal), p.at
	}
	out := make([]byte, 0, size)
	done = 0
	for _, p := range parts {
		out = append(append(out, shell[done:p.at]...), p.literal...)
		done = p.at
	}
	return append(out, shell[done:]...), nil
}

// keyOf identifies stored bytes. Tool results are third-party text: a hash that can
// be forged would put one in another's place.
func keyOf(b []byte) (key transcript.Hash) {
	sum := sha256.Sum256(b)
	copy(key[:], sum[:])
	return key
}

// decode is what a literal says: a string without its escapes, anything else as it
// stands. The result may share memory with the literal.
func decode(literal []byte) []byte {
	if len(literal) < 2 || literal[0] != '"' {
		return literal
	}
	inner := literal[1 : len(literal)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	out, _ := jsontext.AppendUnquote(nil, literal) // what is not UTF-8 becomes U+FFFD
	return out
}
