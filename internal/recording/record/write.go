package main

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/go-json-experiment/json/jsontext"
)

// writer collects the messages of a session as JSON.
type writer struct {
	plan     *plan
	messages []string
	err      error // the first
}

// callID makes an id that looks random and is the same in every recording.
func callID(session string, n int) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%d", session, n)
	return fmt.Sprintf("call_%016x", h.Sum64())
}

func (w *writer) add(message string) { w.messages = append(w.messages, message) }

// quote writes a string. With @ascii the even messages are written as an
// encoder does that knows only ASCII.
func (w *writer) quote(s string) string {
	if w.plan.ascii && len(w.messages)%2 == 0 {
		return quoteASCII(s)
	}
	b, err := jsontext.AppendQuote(nil, s)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("message %d: %w", len(w.messages), err)
	}
	return string(b)
}

// quoteASCII escapes everything that is not ASCII, as UTF-16.
func quoteASCII(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r >= ' ' && r < 0x7f:
			b.WriteRune(r)
		default:
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		}
	}
	b.WriteByte('"')
	return b.String()
}

// content writes a text as the session's kind of content.
func (w *writer) content(text string) string {
	if !w.plan.parts {
		return w.quote(text)
	}
	// a long text in two parts, cut between paragraphs
	if i := strings.LastIndex(text, "\n\n"); i > 0 {
		return `[{"type":"text","text":` + w.quote(text[:i+2]) + `},{"type":"text","text":` + w.quote(text[i+2:]) + `}]`
	}
	return `[{"type":"text","text":` + w.quote(text) + `}]`
}

func (w *writer) system(text string) {
	w.add(`{"role":"system","content":` + w.content(text) + `}`)
}

func (w *writer) user(text string) {
	w.add(`{"role":"user","content":` + w.content(text) + `}`)
}

func (w *writer) result(id, tool, text string) {
	w.add(`{"role":"tool","tool_call_id":` + w.quote(id) + `,"name":` + w.quote(tool) + `,"content":` + w.content(text) + `}`)
}

func (w *writer) assistant(s step, ids []string) {
	var b strings.Builder
	b.WriteString(`{"role":"assistant"`)
	switch {
	case s.text != "":
		b.WriteString(`,"content":` + w.content(s.text))
	case w.plan.empty == "string":
		b.WriteString(`,"content":""`)
	case w.plan.empty == "null":
		b.WriteString(`,"content":null`)
	}
	if s.reasoning != "" {
		b.WriteString(`,"reasoning_content":` + w.quote(s.reasoning))
	}
	if len(s.calls) > 0 {
		b.WriteString(`,"tool_calls":[`)
		for i, c := range s.calls {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(`{"id":` + w.quote(ids[i]) + `,"type":"function","function":{"name":` + w.quote(c.tool) + `,"arguments":` + w.quote(w.arguments(c)) + `}}`)
		}
		b.WriteByte(']')
	}
	b.WriteByte('}')
	w.add(b.String())
}

// arguments writes the arguments of a call, in the order of the plan.
func (w *writer) arguments(c call) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, a := range c.args {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(w.quote(a.name) + ":")
		switch v := a.value.(type) {
		case string:
			b.WriteString(w.quote(v))
		case int:
			b.WriteString(strconv.Itoa(v))
		case []todo:
			b.WriteByte('[')
			for j, item := range v {
				if j > 0 {
					b.WriteByte(',')
				}
				b.WriteString(`{"text":` + w.quote(item.text) + `,"status":` + w.quote(item.state) + `}`)
			}
			b.WriteByte(']')
		}
	}
	b.WriteByte('}')
	return b.String()
}

// file puts the session together, a message a line.
func (w *writer) file(name string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "{\n\"name\": %s,\n\"note\": %s,\n\"tools\": [\n", strconv.Quote(name), strconv.Quote(w.plan.note))
	b.WriteString(strings.Join(tools, ",\n"))
	b.WriteString("\n],\n\"messages\": [\n")
	b.WriteString(strings.Join(w.messages, ",\n"))
	b.WriteString("\n]\n}\n")
	return []byte(b.String())
}
