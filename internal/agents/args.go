package agents

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// value is a JSON value of a call's arguments. Arguments are small next to
// results, so a plain tree is good enough.
type value struct {
	kind    jsontext.Kind // the first byte: n t f " 0 { [
	text    string        // a string's text, or a number as written
	members []member      // sorted by name, repeated names in their own order
	items   []value
}

type member struct {
	name  string
	value value
}

// parseValue reads exactly one JSON value. Repeated names are kept rather than
// refused: models do write them, and llama-server lets them through.
func parseValue(data []byte) (value, bool) {
	dec := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true))
	v, err := readValue(dec)
	if err != nil {
		return value{}, false
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return value{}, false
	}
	return v, true
}

// readValue recurses as deep as the decoder allows, which is 10,000 levels.
func readValue(dec *jsontext.Decoder) (value, error) {
	tok, err := dec.ReadToken()
	if err != nil {
		return value{}, err
	}
	v := value{kind: tok.Kind()}
	switch v.kind {
	case '"', '0':
		v.text = tok.String()
	case '[':
		for dec.PeekKind() != ']' {
			item, err := readValue(dec)
			if err != nil {
				return value{}, err
			}
			v.items = append(v.items, item)
		}
		_, err = dec.ReadToken()
	case '{':
		for dec.PeekKind() != '}' {
			name, err := dec.ReadToken()
			if err != nil {
				return value{}, err
			}
			m := member{name: name.String()}
			if m.value, err = readValue(dec); err != nil {
				return value{}, err
			}
			v.members = append(v.members, m)
		}
		_, err = dec.ReadToken()
		slices.SortStableFunc(v.members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	}
	return v, err
}

// rawMember returns the bytes of a top-level member as they were written.
func rawMember(data []byte, name string) jsontext.Value {
	dec := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true))
	if _, err := dec.ReadToken(); err != nil {
		return nil
	}
	for dec.PeekKind() == '"' {
		tok, err := dec.ReadToken()
		if err != nil {
			return nil
		}
		found := tok.String() == name
		raw, err := dec.ReadValue()
		if err != nil {
			return nil
		}
		if found {
			return bytes.Clone(raw)
		}
	}
	return nil
}

// member returns the only member of that name. A repeated name is no member at
// all: which of the two the tool will read is not for us to guess.
func (v value) member(name string) (value, bool) {
	i, ok := slices.BinarySearchFunc(v.members, name, func(m member, n string) int { return strings.Compare(m.name, n) })
	if !ok || (i+1 < len(v.members) && v.members[i+1].name == name) {
		return value{}, false
	}
	return v.members[i].value, true
}

func (v value) isNull() bool { return v.kind == 'n' }

// truthy errs towards true: a flag that is neither clearly off nor absent might
// be on. OpenHands sends its flags as the strings "true" and "false".
func (v value) truthy() bool {
	switch v.kind {
	case 'n', 'f':
		return false
	case '"':
		return v.text != "" && !strings.EqualFold(v.text, "false")
	case '0':
		return v.text != "0"
	}
	return true
}

// appendCanonical writes the value with members in order of name and without
// spacing, so that equal values are equal bytes. Numbers stay as written: 1 and
// 1.0 may be two things to a tool, and a missed match costs only tokens.
func (v value) appendCanonical(b []byte) []byte {
	switch v.kind {
	case 'n':
		return append(b, "null"...)
	case 't':
		return append(b, "true"...)
	case 'f':
		return append(b, "false"...)
	case '0':
		return append(b, v.text...)
	case '"':
		return appendQuoted(b, v.text)
	case '[':
		b = append(b, '[')
		for i, item := range v.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = item.appendCanonical(b)
		}
		return append(b, ']')
	case '{':
		b = append(b, '{')
		for i, m := range v.members {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendQuoted(b, m.name), ':')
			b = m.value.appendCanonical(b)
		}
		return append(b, '}')
	}
	return b
}

func appendQuoted(b []byte, s string) []byte {
	// The text was decoded from valid JSON, so quoting it cannot fail.
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// longKey is where a key gives way to its hash, so that the arguments of a
// write (a whole file) are not kept once more for every call.
const longKey = 256

// CallKey identifies a call by its name and all its arguments: two calls with
// equal keys asked the same question. The order of members and the spacing do
// not count, since clients re-serialise arguments on the way back. Arguments
// that are not JSON are compared byte for byte.
func CallKey(name string, args []byte) string {
	if v, ok := parseValue(args); ok {
		return callKey(name, v)
	}
	return name + "\n" + shorten(args)
}

func callKey(name string, v value) string {
	return name + "\n" + shorten(v.appendCanonical(nil))
}

func shorten(b []byte) string {
	if len(b) <= longKey {
		return string(b)
	}
	// No JSON value begins like this, so a hash never equals a short key.
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}
