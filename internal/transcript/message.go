package transcript

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"
)

// Role says who speaks in a message.
type Role uint8

// The roles of the Chat Completions format. Unknown holds every other string,
// a missing role and a role that is not a string.
const (
	Unknown Role = iota
	System
	Developer
	User
	Assistant
	Tool
)

var roleNames = [...]string{"unknown", "system", "developer", "user", "assistant", "tool"}

func (r Role) String() string { return roleNames[r] }

// Instructs reports whether the role carries the operator's instructions:
// llama-server treats developer as system.
func (r Role) Instructs() bool { return r == System || r == Developer }

// span is a half-open byte range inside a message's raw bytes. The zero span
// stands for "not there".
type span struct{ start, end int }

func (s span) exists() bool { return s.end > s.start }

// PartKind tells what a content part holds.
type PartKind uint8

// A part is text, an image, or something this package passes on unread.
const (
	TextPart PartKind = iota
	ImagePart
	OpaquePart
)

// Part is one piece of a message's content. A content that is a plain string
// is a single text part.
type Part struct {
	Kind PartKind
	text span // the JSON string literal of a text part
	raw  span // the whole part
}

// Call is a tool call of an assistant message.
type Call struct {
	ID   string
	Name string
	// Arguments are the decoded arguments: the JSON text that stands inside the
	// string, or the bytes of the object where a client sent one unquoted.
	// They share no memory with the message, and are nil where it has none.
	Arguments []byte
	// Valid tells whether the arguments are JSON. They are not where max_tokens
	// cut the model off.
	Valid bool

	whole     span // the call as it stands
	arguments span // the value's literal, zero if missing
	quoted    bool // the literal is a JSON string
}

// Message is one message of a request. It is a value over bytes that must not
// be changed after [Parse] or [ParseMessage] has seen them.
type Message struct {
	// Role is who speaks.
	Role Role
	// Parts is the content in order; empty for null or missing content.
	Parts []Part
	// Calls are the tool calls of an assistant message, in order.
	Calls []Call
	// Answers is the id of the call that a tool message answers, "" if missing.
	Answers string

	raw       []byte
	content   span   // the content value's literal, zero if missing
	other     []span // what else a model may read: function_call, a role that is not known
	reasoning []span // string literals of reasoning_content and reasoning
	close     int    // offset of the closing brace
	dense     int    // see DenseBytes
	known     *known // what a Memo remembers of these bytes, nil if it was not asked
	empty     bool   // the object has no member
}

// Raw returns the message's bytes: as the client sent them, or as an edit left
// them. They must not be changed.
func (m *Message) Raw() []byte { return m.raw }

// Footprint is about how many bytes the message takes in memory: its own, and
// what was read out of it.
func (m *Message) Footprint() int {
	n := int(unsafe.Sizeof(*m)) + len(m.raw) + len(m.Answers)
	n += len(m.Parts)*int(unsafe.Sizeof(Part{})) + len(m.reasoning)*int(unsafe.Sizeof(span{}))
	for _, c := range m.Calls {
		n += int(unsafe.Sizeof(c)) + len(c.ID) + len(c.Name) + cap(c.Arguments)
	}
	return n
}

// Text returns the decoded text of all text parts, joined by a newline, as
// llama-server joins them.
func (m *Message) Text() string {
	var b strings.Builder
	first := true
	for _, p := range m.Parts {
		if p.Kind != TextPart {
			continue
		}
		if !first {
			b.WriteByte('\n')
		}
		first = false
		b.Write(m.unquote(p.text))
	}
	return b.String()
}

// TextBytes is an upper bound of len(Text()) that needs no decoding: the
// bytes of the literals.
func (m *Message) TextBytes() int {
	n := 0
	for _, p := range m.Parts {
		if p.Kind == TextPart {
			n += p.text.end - p.text.start - 2
		}
	}
	return n
}

// ContentBytes returns the bytes of what a model reads in this message: text,
// reasoning, call names and arguments, without image payloads.
func (m *Message) ContentBytes() int {
	n := m.TextBytes()
	for _, s := range m.reasoning {
		n += s.end - s.start - 2
	}
	for _, c := range m.Calls {
		if c.function() {
			n += len(c.Name) + len(c.Arguments)
		} else {
			n += c.whole.end - c.whole.start
		}
	}
	for _, s := range m.other {
		n += s.end - s.start
	}
	return n
}

// DenseBytes counts the bytes of long runs without any space or punctuation,
// such as base64 inside a text: a tokenizer finds nothing to merge there, and
// they cost near one token a byte where text costs a third (a reported
// session: 319,000 estimated, 1,029,893 real).
func (m *Message) DenseBytes() int { return m.dense }

func denseBytes(b []byte) int {
	const long = 256 // no word, path or hash is longer
	total, run := 0, 0
	for _, c := range b {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/' || c == '=' {
			run++
			continue
		}
		if run >= long {
			total += run
		}
		run = 0
	}
	if run >= long {
		total += run
	}
	return total
}

// function tells an ordinary call from one of another type, of which only the
// bytes are known.
func (c Call) function() bool { return c.Name != "" || c.arguments.exists() }

// Literals yields what a model reads in this message as it stands in the
// bytes: the literals of text, reasoning and arguments, escapes and all.
func (m *Message) Literals(yield func([]byte) bool) {
	for _, p := range m.Parts {
		if p.Kind == TextPart && !yield(m.raw[p.text.start:p.text.end]) {
			return
		}
	}
	for _, s := range m.reasoning {
		if !yield(m.raw[s.start:s.end]) {
			return
		}
	}
	for _, c := range m.Calls {
		if c.arguments.exists() && !yield(m.raw[c.arguments.start:c.arguments.end]) {
			return
		}
	}
}

// LiteralSpans yields where in [Message.Raw] the literals of [Message.Literals]
// stand, quotes included, in ascending order.
func (m *Message) LiteralSpans(yield func(start, end int) bool) {
	var spans []span
	for _, p := range m.Parts {
		if p.Kind == TextPart {
			spans = append(spans, p.text)
		}
	}
	spans = append(spans, m.reasoning...)
	for _, c := range m.Calls {
		if c.arguments.exists() {
			spans = append(spans, c.arguments)
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.start - b.start })
	for _, s := range spans {
		if !yield(s.start, s.end) {
			return
		}
	}
}

// Images counts the image parts.
func (m *Message) Images() int {
	n := 0
	for _, p := range m.Parts {
		if p.Kind == ImagePart {
			n++
		}
	}
	return n
}

// Reasoning returns the decoded reasoning text that the client echoes, "" if
// there is none.
func (m *Message) Reasoning() string {
	var b []byte
	for _, s := range m.reasoning {
		b = append(b, m.unquote(s)...)
	}
	return string(b)
}

func (m *Message) unquote(s span) []byte { return unquote(m.raw[s.start:s.end]) }

// unquote decodes a JSON string literal. The literal was validated by the
// index, so what can be wrong is only UTF-8, which decodes to U+FFFD.
func unquote(lit []byte) []byte {
	if body := lit[1 : len(lit)-1]; bytes.IndexByte(body, '\\') < 0 {
		return body
	}
	out, _ := jsontext.AppendUnquote(nil, lit)
	return out
}

// quote encodes s as a JSON string literal.
func quote(s string) []byte {
	out, err := jsontext.AppendQuote(nil, s)
	if err != nil { // invalid UTF-8: the literal is complete all the same
		out, _ = jsontext.AppendQuote(nil, strings.ToValidUTF8(s, "\uFFFD"))
	}
	return out
}

// decodeOptions accept what llama-server and encoding/json accept, so that a
// body is not refused here that the server would have taken.
var decodeOptions = []jsontext.Options{
	jsontext.AllowDuplicateNames(true),
	jsontext.AllowInvalidUTF8(true),
}

// ParseMessage indexes one message. raw must be a JSON object and is kept.
func ParseMessage(raw []byte) (Message, error) {
	w := newWalker(raw)
	if w.d.PeekKind() != '{' {
		return Message{}, ErrNotChat
	}
	m, err := readMessage(w)
	if err != nil {
		return Message{}, err
	}
	if err := expectEnd(w.d); err != nil {
		return Message{}, err
	}
	return m, nil
}

// mustParse indexes bytes that this package has built itself.
func mustParse(raw []byte) Message {
	m, err := ParseMessage(raw)
	if err != nil {
		panic(fmt.Sprintf("BUG: transcript built a message that is not JSON: %v", err))
	}
	return m
}

// ---- edits

// WithText returns the message with its text replaced. A string stays a
// string; of several text parts the first takes the text and the others become
// empty, so that the number of blocks stays. Content without any text part
// becomes a string.
func (m *Message) WithText(text string) Message {
	var edits []splice
	for _, p := range m.Parts {
		if p.Kind != TextPart {
			continue
		}
		edits = append(edits, splice{p.text, quote(text)})
		text = ""
	}
	if edits != nil {
		return m.apply(edits)
	}
	return m.withMember("content", m.content, quote(text))
}

// WithAppended returns the message with text added to the end of its text,
// after a blank line. An array of parts without text gains a part.
func (m *Message) WithAppended(text string) Message {
	for i := len(m.Parts) - 1; i >= 0; i-- {
		if p := m.Parts[i]; p.Kind == TextPart {
			at := span{p.text.end - 1, p.text.end - 1} // before the closing quote
			q := quote(joinAfter(p.text.end-p.text.start > 2, text))
			return m.apply([]splice{{at, q[1 : len(q)-1]}})
		}
	}
	if len(m.Parts) > 0 { // an array without text
		at := m.Parts[len(m.Parts)-1].raw.end
		part := append([]byte(`,{"type":"text","text":`), quote(text)...)
		return m.apply([]splice{{span{at, at}, append(part, '}')}})
	}
	return m.withMember("content", m.content, quote(text))
}

func joinAfter(hasText bool, text string) string {
	if hasText {
		return "\n\n" + text
	}
	return text
}

// WithPrepended returns the message with text put before its text, followed by
// a blank line.
func (m *Message) WithPrepended(text string) Message {
	for _, p := range m.Parts {
		if p.Kind == TextPart {
			at := span{p.text.start + 1, p.text.start + 1} // after the opening quote
			q := quote(text + "\n\n")
			return m.apply([]splice{{at, q[1 : len(q)-1]}})
		}
	}
	return m.WithAppended(text)
}

// WithArguments returns the message with the arguments of some calls replaced,
// all in one rebuild. The arguments are JSON text and go into a string, as the
// format wants them, unless the client sent an object. A call without arguments
// stays as it is: the server refuses it itself.
func (m *Message) WithArguments(byCall map[int][]byte) Message {
	var edits []splice
	for i, c := range m.Calls {
		arguments, ok := byCall[i]
		switch {
		case !ok || !c.arguments.exists():
		case !c.quoted && jsontext.Value(arguments).IsValid():
			edits = append(edits, splice{c.arguments, arguments})
		default:
			edits = append(edits, splice{c.arguments, quote(string(arguments))})
		}
	}
	return m.apply(edits)
}

// WithReasoning returns the message with its reasoning text replaced. A message
// without reasoning stays as it is.
func (m *Message) WithReasoning(text string) Message {
	var edits []splice
	for _, s := range m.reasoning {
		edits = append(edits, splice{s, quote(text)})
		text = ""
	}
	return m.apply(edits)
}

// withMember replaces the value at s, or adds the member where s is absent.
func (m *Message) withMember(name string, s span, value []byte) Message {
	if s.exists() {
		return m.apply([]splice{{s, value}})
	}
	add := append(append(quote(name), ':'), value...)
	if !m.empty {
		add = append([]byte{','}, add...)
	}
	return m.apply([]splice{{span{m.close, m.close}, add}})
}

func (m *Message) apply(edits []splice) Message {
	if len(edits) == 0 {
		return *m
	}
	return mustParse(rebuild(m.raw, edits))
}

// NewUser returns a user message of our own making.
func NewUser(text string) Message {
	return mustParse(append(append([]byte(`{"role":"user","content":`), quote(text)...), '}'))
}

// NewResult returns a tool message of our own making that answers call id.
func NewResult(id, text string) Message {
	raw := append([]byte(`{"role":"tool","tool_call_id":`), quote(id)...)
	raw = append(append(raw, `,"content":`...), quote(text)...)
	return mustParse(append(raw, '}'))
}

// splice replaces the bytes of a span.
type splice struct {
	at   span
	with []byte
}

// rebuild applies edits, sorted by position and without overlap, in one pass.
func rebuild(raw []byte, edits []splice) []byte {
	n := len(raw)
	for _, e := range edits {
		n += len(e.with) - (e.at.end - e.at.start)
	}
	out := make([]byte, 0, n)
	at := 0
	for _, e := range edits {
		out = append(out, raw[at:e.at.start]...)
		out = append(out, e.with...)
		at = e.at.end
	}
	return append(out, raw[at:]...)
}
