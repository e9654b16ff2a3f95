package transcript

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// walker reads tokens of raw and knows where they stand in it.
type walker struct {
	d   *jsontext.Decoder
	raw []byte
}

func newWalker(raw []byte) *walker {
	return &walker{d: jsontext.NewDecoder(bytes.NewBuffer(raw), decodeOptions...), raw: raw}
}

// value reads the next value whole and returns its span.
func (w *walker) value() (span, error) {
	v, err := w.d.ReadValue()
	if err != nil {
		return span{}, err
	}
	end := int(w.d.InputOffset())
	return span{end - len(v), end}, nil
}

func (w *walker) bytes(s span) []byte { return w.raw[s.start:s.end] }

// members walks the members of the object that comes next. fn must consume
// exactly the member's value. The key is decoded, since "r\u006fle" is a role
// to every server.
func (w *walker) members(fn func(key string, kind jsontext.Kind) error) error {
	if _, err := w.d.ReadToken(); err != nil {
		return err
	}
	for w.d.PeekKind() == '"' {
		k, err := w.value()
		if err != nil {
			return err
		}
		if err := fn(string(unquote(w.bytes(k))), w.d.PeekKind()); err != nil {
			return err
		}
	}
	_, err := w.d.ReadToken()
	return err
}

// elements walks the elements of the array that comes next.
func (w *walker) elements(fn func(kind jsontext.Kind) error) error {
	if _, err := w.d.ReadToken(); err != nil {
		return err
	}
	for {
		kind := w.d.PeekKind()
		if kind == ']' || kind == 0 {
			_, err := w.d.ReadToken()
			return err
		}
		if err := fn(kind); err != nil {
			return err
		}
	}
}

func expectEnd(d *jsontext.Decoder) error {
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return errors.New("index body: data after the JSON value")
	}
	return nil
}

// readMessage reads the object that comes next as a message.
func readMessage(w *walker) (Message, error) {
	var m Message
	m.empty = true
	err := w.members(func(key string, kind jsontext.Kind) error {
		m.empty = false
		switch key {
		case "role":
			s, err := w.value()
			if err == nil {
				if m.Role = roleOf(w.bytes(s), kind); m.Role == Unknown {
					m.other = append(m.other, s)
				}
			}
			return err
		case "function_call":
			s, err := w.value()
			if err == nil && kind == '{' {
				m.other = append(m.other, s)
			}
			return err
		case "content":
			return w.readContent(&m, kind)
		case "tool_calls":
			m.Calls = nil
			if kind != '[' {
				_, err := w.value()
				return err
			}
			return w.elements(func(kind jsontext.Kind) error {
				if len(m.Calls) > maxItems {
					return ErrNotChat
				}
				return w.readCall(&m, kind)
			})
		case "tool_call_id":
			s, err := w.value()
			if err == nil && kind == '"' {
				m.Answers = string(unquote(w.bytes(s)))
			}
			return err
		case "reasoning_content", "reasoning":
			s, err := w.value()
			if err == nil && kind == '"' {
				m.reasoning = append(m.reasoning, s)
			}
			return err
		}
		return w.d.SkipValue()
	})
	if err != nil {
		return Message{}, err
	}
	end := int(w.d.InputOffset())
	m.raw = w.raw[:end:end]
	m.close = end - 1
	for literal := range m.Literals {
		m.dense += denseBytes(literal)
	}
	return m, nil
}

func roleOf(lit []byte, kind jsontext.Kind) Role {
	if kind != '"' {
		return Unknown
	}
	switch string(unquote(lit)) {
	case "system":
		return System
	case "developer":
		return Developer
	case "user":
		return User
	case "assistant":
		return Assistant
	case "tool":
		return Tool
	}
	return Unknown
}

func (w *walker) readContent(m *Message, kind jsontext.Kind) error {
	m.Parts = nil
	if kind != '[' {
		s, err := w.value()
		m.content = s
		if err == nil && kind == '"' {
			m.Parts = []Part{{Kind: TextPart, text: s, raw: s}}
		}
		return err
	}
	start, err := w.peekStart()
	if err != nil {
		return err
	}
	err = w.elements(func(kind jsontext.Kind) error {
		p, err := w.readPart(kind)
		m.Parts = append(m.Parts, p)
		if len(m.Parts) > maxItems {
			return ErrNotChat
		}
		return err
	})
	m.content = span{start, int(w.d.InputOffset())}
	return err
}

func (w *walker) readPart(kind jsontext.Kind) (Part, error) {
	if kind != '{' {
		s, err := w.value()
		return Part{Kind: OpaquePart, raw: s}, err
	}
	p := Part{Kind: OpaquePart}
	var isText, isImage bool
	var text span
	whole, err := w.peekStart()
	if err != nil {
		return p, err
	}
	err = w.members(func(key string, kind jsontext.Kind) error {
		s, err := w.value()
		if err != nil {
			return err
		}
		switch {
		case key == "type" && kind == '"':
			t := string(unquote(w.bytes(s)))
			isText, isImage = t == "text", t == "image_url" || t == "image" || t == "input_image"
		case key == "text":
			text = span{}
			if kind == '"' {
				text = s
			}
		}
		return nil
	})
	p.raw = span{whole, int(w.d.InputOffset())}
	switch {
	case isText && text.exists():
		p.Kind, p.text = TextPart, text
	case isImage:
		p.Kind = ImagePart
	}
	return p, err
}

// peekStart returns where the next value begins.
func (w *walker) peekStart() (int, error) {
	w.d.PeekKind() // moves over the delimiter
	at := int(w.d.InputOffset())
	for at < len(w.raw) {
		switch w.raw[at] {
		case ' ', '\t', '\r', '\n', ',', ':':
			at++
			continue
		}
		return at, nil
	}
	return 0, io.ErrUnexpectedEOF
}

func (w *walker) readCall(m *Message, kind jsontext.Kind) error {
	var c Call
	if kind != '{' {
		s, err := w.value()
		c.whole = s
		m.Calls = append(m.Calls, c)
		return err
	}
	start, err := w.peekStart()
	if err != nil {
		return err
	}
	err = w.members(func(key string, kind jsontext.Kind) error {
		if key == "function" && kind == '{' {
			return w.members(func(key string, kind jsontext.Kind) error {
				s, err := w.value()
				if err != nil {
					return err
				}
				switch {
				case key == "name" && kind == '"':
					c.Name = string(unquote(w.bytes(s)))
				case key == "arguments":
					c.arguments, c.quoted = s, kind == '"'
					c.Arguments = bytes.Clone(w.bytes(s))
					if c.quoted {
						c.Arguments, _ = jsontext.AppendUnquote([]byte{}, w.bytes(s))
					}
					c.Valid = jsontext.Value(c.Arguments).IsValid(decodeOptions...)
				}
				return nil
			})
		}
		s, err := w.value()
		if err == nil && key == "id" && kind == '"' {
			c.ID = string(unquote(w.bytes(s)))
		}
		return err
	})
	c.whole = span{start, int(w.d.InputOffset())}
	m.Calls = append(m.Calls, c)
	return err
}

// Body is a chat request over its raw bytes.
type Body struct {
	// Messages is the list as the client sent it.
	Messages []Message
	// Model is the requested model, "" if missing.
	Model string
	// Stream tells whether the client asked for server-sent events.
	Stream bool
	// HasTools tells whether tools are declared.
	HasTools bool
	// MaxTokens is the requested cap on the answer in tokens, 0 if none.
	MaxTokens int

	raw       []byte
	spans     []span // where each message stands
	inside    span   // the interior of the messages array
	tools     span
	maxTokens []span // every spelling that is present
}

// maxItems bounds messages, parts and calls of one body together. An item takes a
// hundred times the memory of the "{}," that makes one; no agent comes near.
const maxItems = 300_000

// ErrNotChat says that a body is valid JSON but no chat request that this
// package understands; the server should answer it.
var ErrNotChat = errors.New("index body: no list of message objects")

// Parse indexes a chat body. raw is kept and must not be changed. An error
// means: forward the body as it is and let the server answer.
func Parse(raw []byte) (*Body, error) { return (*Memo)(nil).Parse(raw) }

// Parse is the function [Parse], fast for messages that were seen before.
func (f *Memo) Parse(raw []byte) (*Body, error) {
	b := &Body{raw: raw}
	w := newWalker(raw)
	d := w.d
	if d.PeekKind() != '{' {
		if _, err := d.ReadValue(); err != nil {
			return nil, fmt.Errorf("index body: %w", err)
		}
		return nil, ErrNotChat
	}
	found := false
	err := w.members(func(key string, kind jsontext.Kind) error {
		switch key {
		case "messages":
			found = kind == '['
			b.Messages, b.spans = nil, nil
			if !found {
				return d.SkipValue()
			}
			return b.readMessages(w, f)
		case "tools":
			s, err := w.value()
			b.tools = s
			b.HasTools = err == nil && kind == '[' && len(bytes.TrimSpace(raw[s.start+1:s.end-1])) > 0
			return err
		case "model", "stream", "max_tokens", "max_completion_tokens", "n_predict":
			s, err := w.value()
			if err == nil {
				b.readField(key, kind, s)
			}
			return err
		}
		return d.SkipValue()
	})
	if err == nil {
		err = expectEnd(d)
	}
	if errors.Is(err, ErrNotChat) {
		return nil, ErrNotChat
	}
	if err != nil {
		return nil, fmt.Errorf("index body: %w", err)
	}
	if !found {
		return nil, ErrNotChat
	}
	return b, nil
}

func (b *Body) readField(key string, kind jsontext.Kind, s span) {
	lit := b.raw[s.start:s.end]
	switch key {
	case "model":
		b.Model = ""
		if kind == '"' {
			b.Model = string(unquote(lit))
		}
	case "stream":
		b.Stream = kind == 't'
	default: // the three spellings of the cap on the answer
		if kind != '0' {
			return
		}
		f, err := strconv.ParseFloat(string(lit), 64)
		if err != nil || f <= 0 || f > 1<<40 {
			return // negative means "no cap" to llama-server
		}
		b.maxTokens = append(b.maxTokens, s)
		if n := int(f); b.MaxTokens == 0 || n < b.MaxTokens {
			b.MaxTokens = n
		}
	}
}

func (b *Body) readMessages(w *walker, memo *Memo) error {
	open, items := -1, 0
	err := w.elements(func(kind jsontext.Kind) error {
		if kind != '{' {
			return ErrNotChat
		}
		s, err := w.value()
		if err != nil {
			return err
		}
		if open < 0 {
			open = s.start
		}
		m, err := memo.message(w.raw[s.start:s.end:s.end])
		if err != nil {
			return err
		}
		if items += 1 + len(m.Parts) + len(m.Calls); items > maxItems {
			return ErrNotChat
		}
		b.Messages = append(b.Messages, m)
		b.spans = append(b.spans, s)
		return nil
	})
	end := int(w.d.InputOffset()) - 1 // before the bracket
	if n := len(b.spans); n > 0 {
		end = b.spans[n-1].end
	} else {
		open = end
	}
	b.inside = span{open, end}
	return err
}

// Raw returns the body as the client sent it.
func (b *Body) Raw() []byte { return b.raw }

// Tools returns the raw tools array, nil if there is none.
func (b *Body) Tools() []byte {
	if !b.tools.exists() {
		return nil
	}
	return b.raw[b.tools.start:b.tools.end]
}

// Leading counts the system and developer messages that open the list. They
// are never part of a checkpoint: agents put dates into them.
func (b *Body) Leading() int {
	n := 0
	for n < len(b.Messages) && b.Messages[n].Role.Instructs() {
		n++
	}
	return n
}

// Rewrite returns the body with its message list replaced. Messages that stand
// at the beginning or the end of the client's list keep their bytes and the
// spacing between them; an unchanged list gives back the client's own slice.
func (b *Body) Rewrite(list []Message) []byte {
	return b.build(list, 0)
}

// RewriteCapped is [Body.Rewrite] with the requested cap on the answer lowered
// to maxTokens, in every spelling that the client used.
func (b *Body) RewriteCapped(list []Message, maxTokens int) []byte {
	return b.build(list, maxTokens)
}

func (b *Body) build(list []Message, maxTokens int) []byte {
	var edits []splice
	if e, changed := b.listEdit(list); changed {
		edits = append(edits, e)
	}
	if maxTokens > 0 {
		value := strconv.AppendInt(nil, int64(maxTokens), 10)
		for _, s := range b.maxTokens {
			edits = append(edits, splice{s, value})
		}
	}
	if len(edits) == 0 {
		return b.raw
	}
	sortSplices(edits)
	return rebuild(b.raw, edits)
}

// listEdit narrows the change to the messages between the common beginning and
// the common end of both lists.
func (b *Body) listEdit(list []Message) (splice, bool) {
	own := b.Messages
	head := 0
	for head < len(own) && head < len(list) && same(own[head].raw, list[head].raw) {
		head++
	}
	if head == len(own) && head == len(list) {
		return splice{}, false
	}
	tail := 0
	for tail < len(own)-head && tail < len(list)-head &&
		same(own[len(own)-1-tail].raw, list[len(list)-1-tail].raw) {
		tail++
	}
	at := b.inside
	var with []byte
	middle := list[head : len(list)-tail]
	if head > 0 {
		at.start = b.spans[head-1].end
	}
	if tail > 0 {
		at.end = b.spans[len(own)-tail].start
	}
	for i, m := range middle {
		if i > 0 || head > 0 {
			with = append(with, ',')
		}
		with = append(with, m.raw...)
	}
	if tail > 0 && (len(middle) > 0 || head > 0) {
		with = append(with, ',')
	}
	return splice{at, with}, true
}

// same compares two messages' bytes; messages of one body mostly share memory.
func same(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || bytes.Equal(a, b))
}

func sortSplices(edits []splice) {
	for i := 1; i < len(edits); i++ {
		for j := i; j > 0 && edits[j].at.start < edits[j-1].at.start; j-- {
			edits[j], edits[j-1] = edits[j-1], edits[j]
		}
	}
}
