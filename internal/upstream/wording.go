package upstream

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// contextLengthExceeded is the code by which OpenAI names an overflow. Some agents know no other.
	contextLengthExceeded = "context_length_exceeded"
	// openAIWords is how its message begins; the agents that read texts look for these words.
	openAIWords = "maximum context length is"
)

// Translate makes an overflow recognisable for agents that know only OpenAI's: the code becomes
// "context_length_exceeded", and OpenAI's wording, with the numbers that are known, is added to the
// message. Every other byte stays as it was, type and numbers and unknown fields among them.
//
// It knows three shapes: an error object, message and code on top, and an error that is a string
// (which gets the wording only). Anything else is returned as it is, and so is what needs no change:
// translating twice is translating once. The result shares no memory with body unless it is body.
func Translate(body []byte, r Refusal) []byte {
	if !r.Kind.Overflow() {
		return body
	}
	top, ok := readMembers(body, 0)
	if !ok || !onlySpace(body[top.end:]) {
		return body
	}
	var edits []edit
	switch top.err.kind(body) {
	case '{':
		inner, ok := readMembers(body, top.err.start)
		if !ok {
			return body
		}
		edits = inner.translate(body, r)
	case '"':
		edits = addWording(body, top.err, r)
	default:
		if top.message.kind(body) != '"' {
			return body
		}
		edits = top.translate(body, r)
	}
	return splice(body, edits)
}

// A span is a value's place in a body. The zero span is a value that is not there.
type span struct{ start, end int }

func (s span) kind(body []byte) byte {
	if s.end == 0 {
		return 0
	}
	return body[s.start]
}

// members are the places of an object's members that matter here. Of names that occur twice the last
// counts, as for most readers.
type members struct {
	open, end          int // of the object: behind its brace, behind its end
	empty              bool
	err, message, code span
}

// readMembers reads the object that begins at or after start.
func readMembers(body []byte, start int) (members, bool) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(body[start:]), lenient...)
	if dec.PeekKind() != '{' {
		return members{}, false
	}
	if _, err := dec.ReadToken(); err != nil {
		return members{}, false
	}
	m := members{open: start + int(dec.InputOffset()), empty: true}
	for dec.PeekKind() != '}' {
		m.empty = false
		name, err := dec.ReadToken()
		if err != nil {
			return members{}, false
		}
		var at *span
		switch name.String() {
		case "error":
			at = &m.err
		case "message":
			at = &m.message
		case "code":
			at = &m.code
		}
		value, err := dec.ReadValue()
		if err != nil {
			return members{}, false
		}
		if at != nil {
			end := start + int(dec.InputOffset())
			*at = span{end - len(value), end}
		}
	}
	if _, err := dec.ReadToken(); err != nil {
		return members{}, false
	}
	m.end = start + int(dec.InputOffset())
	return m, true
}

func onlySpace(b []byte) bool {
	_, err := jsontext.NewDecoder(bytes.NewBuffer(b)).ReadToken()
	return err == io.EOF
}

// An edit replaces a span, which is empty for an insertion.
type edit struct {
	span
	with string
}

func (m members) translate(body []byte, r Refusal) []edit {
	edits := addWording(body, m.message, r)
	const quoted = `"` + contextLengthExceeded + `"`
	switch {
	case m.code.end == 0 && m.empty:
		edits = append(edits, edit{span{m.open, m.open}, `"code":` + quoted})
	case m.code.end == 0:
		edits = append(edits, edit{span{m.open, m.open}, `"code":` + quoted + `,`})
	case text(body, m.code) != contextLengthExceeded:
		edits = append(edits, edit{m.code, quoted})
	}
	return edits
}

// addWording puts the wording at the end of a string's text, before its closing quote.
func addWording(body []byte, at span, r Refusal) []edit {
	if at.kind(body) != '"' {
		return nil
	}
	said := text(body, at)
	if strings.Contains(strings.ToLower(said), openAIWords) {
		return nil
	}
	join := ". "
	switch {
	case said == "" || strings.ContainsAny(said[len(said)-1:], " \n"):
		join = ""
	case strings.ContainsAny(said[len(said)-1:], ".!?"):
		join = " "
	}
	return []edit{{span{at.end - 1, at.end - 1}, join + r.openAI()}}
}

// openAI words a refusal as OpenAI does. The sentences need no escaping in JSON.
func (r Refusal) openAI() string {
	var b strings.Builder
	b.WriteString("This model's " + openAIWords)
	measured := r.PromptTokens > 0 && !r.AtLeast
	switch {
	case r.Window > 0 && r.Kind == OutputTooLong && measured:
		fmt.Fprintf(&b, " %d tokens. However, you requested %d tokens (%d in the messages, %d in the completion).",
			r.Window, int64(r.PromptTokens)+int64(r.OutputTokens), r.PromptTokens, r.OutputTokens)
	case r.Window > 0 && measured:
		fmt.Fprintf(&b, " %d tokens. However, your messages resulted in %d tokens.", r.Window, r.PromptTokens)
	case r.Window > 0:
		fmt.Fprintf(&b, " %d tokens. However, you requested more tokens than that.", r.Window)
	case measured:
		fmt.Fprintf(&b, " exceeded. Your messages resulted in %d tokens.", r.PromptTokens)
	default:
		b.WriteString(" exceeded.")
	}
	b.WriteString(" Please reduce the length of the messages")
	if r.Kind == OutputTooLong {
		b.WriteString(" or completion")
	}
	b.WriteString(".")
	return b.String()
}

// text returns a value's text: what a string says, or what a number is.
func text(body []byte, at span) string {
	raw := body[at.start:at.end]
	if raw[0] != '"' {
		return string(raw)
	}
	unquoted, _ := jsontext.AppendUnquote(nil, raw) // the error is invalid UTF-8, which it replaces
	return string(unquoted)
}

func splice(body []byte, edits []edit) []byte {
	if len(edits) == 0 {
		return body
	}
	slices.SortFunc(edits, func(a, b edit) int { return a.start - b.start })
	var out []byte
	done := 0
	for _, e := range edits {
		out = append(out, body[done:e.start]...)
		out = append(out, e.with...)
		done = e.end
	}
	return append(out, body[done:]...)
}
