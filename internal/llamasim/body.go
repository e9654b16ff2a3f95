package llamasim

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// object is a JSON object's members. A name that is given twice has its last
// value, as in the real server's parser.
type object map[string]jsontext.Value

// lenient are the options for input that was found valid before.
var lenient = jsontext.AllowDuplicateNames(true)

// members reads v as an object. Any other value has no members.
func members(v jsontext.Value) object {
	o := object{}
	walk(v, '{', func(name string, member jsontext.Value) { o[name] = member })
	return o
}

// elements reads v as an array. Any other value has no elements.
func elements(v jsontext.Value) []jsontext.Value {
	var list []jsontext.Value
	walk(v, '[', func(_ string, element jsontext.Value) { list = append(list, element) })
	return list
}

// walk calls visit for what v, valid JSON, holds if it is of the given kind.
// The values are parts of v itself, not copies.
func walk(v jsontext.Value, kind jsontext.Kind, visit func(name string, value jsontext.Value)) {
	if v.Kind() != kind {
		return
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(v), lenient)
	if _, err := d.ReadToken(); err != nil {
		return
	}
	for k := d.PeekKind(); k != '}' && k != ']'; k = d.PeekKind() {
		name := ""
		if kind == '{' {
			token, err := d.ReadToken()
			if err != nil {
				return
			}
			name = token.String()
		}
		value, err := d.ReadValue()
		if err != nil {
			return
		}
		end := int(d.InputOffset())
		visit(name, v[end-len(value):end])
	}
}

// has reports whether the member is there, null included.
func (o object) has(name string) bool { return o[name] != nil }

// text is the member as a string, empty if it is none.
func (o object) text(name string) string { return text(o[name]) }

// flag is the member as a boolean, or fallback if it is none.
func (o object) flag(name string, fallback bool) bool {
	switch o[name].Kind() {
	case 't':
		return true
	case 'f':
		return false
	}
	return fallback
}

// number is the member as an integer, or fallback if it is no number.
func (o object) number(name string, fallback int) int {
	if o[name].Kind() != '0' {
		return fallback
	}
	return int(o.float(name))
}

// float is the member as a number, 0 if it is none.
func (o object) float(name string) float64 {
	f, err := strconv.ParseFloat(string(o[name]), 64)
	if err != nil {
		return 0
	}
	return f
}

func text(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	b, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return ""
	}
	return string(b)
}

// kindName is the type of a value in the words of the real server's parser.
func kindName(v jsontext.Value) string {
	switch v.Kind() {
	case 'n':
		return "null"
	case 't', 'f':
		return "boolean"
	case '"':
		return "string"
	case '0':
		return "number"
	case '{':
		return "object"
	default:
		return "array"
	}
}

// compact is v without spaces, as the real server quotes it in errors.
func compact(v jsontext.Value) string { return reformat(v) }

// spaced is v on one line with a space after each comma and colon, as
// templates print JSON.
func spaced(v jsontext.Value) string {
	return reformat(v, jsontext.SpaceAfterComma(true), jsontext.SpaceAfterColon(true))
}

// indented is v over several lines, two spaces a level.
func indented(v jsontext.Value) string { return reformat(v, jsontext.WithIndent("  ")) }

func reformat(v jsontext.Value, options ...jsontext.Options) string {
	b, err := jsontext.AppendFormat(nil, v, append(options, lenient)...)
	if err != nil {
		return string(v)
	}
	return string(b)
}
