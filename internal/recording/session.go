package recording

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Session is a recorded history that can be played turn by turn. A turn is an
// assistant message; turns are counted from 0.
type Session struct {
	Name string
	Note string // what the session is good for

	tools   []byte // an array, empty where there are none
	history []byte // all messages, separated by commas
	spans   []span // of the messages within history
	turns   []int  // indexes of the assistant messages
}

// span is a stretch of bytes.
type span struct{ start, end int }

// Parse reads a session file: an object with messages and, optionally, name,
// note and tools; other members are ignored. Messages are not checked beyond
// being objects, a session may be as odd as what it stands for. The session
// does not refer to data afterwards.
func Parse(data []byte) (*Session, error) {
	s := &Session{}
	found := false
	err := eachMember(data, func(name string, value jsontext.Value) error {
		var err error
		switch name {
		case "name":
			s.Name, err = text(value)
		case "note":
			s.Note, err = text(value)
		case "tools":
			if value.Kind() != 'n' {
				err = s.addTools(value)
			}
		case "messages":
			found = true
			err = s.addMessages(value)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("parse session: %w", err)
	}
	if !found {
		return nil, errors.New("parse session: no messages")
	}
	return s, nil
}

// addTools copies the tools without what stands between them.
func (s *Session) addTools(list jsontext.Value) error {
	err := eachElement(list, func(tool jsontext.Value) error {
		s.tools = append(append(s.tools, ','), tool...)
		return nil
	})
	if len(s.tools) > 0 {
		s.tools[0] = '['
		s.tools = append(s.tools, ']')
	}
	return err
}

// addMessages copies the messages without what stands between them.
func (s *Session) addMessages(list jsontext.Value) error {
	s.history = make([]byte, 0, len(list))
	return eachElement(list, func(message jsontext.Value) error {
		if len(s.spans) > 0 {
			s.history = append(s.history, ',')
		}
		role := ""
		err := eachMember(message, func(name string, value jsontext.Value) error {
			if name != "role" {
				return nil
			}
			var err error
			role, err = text(value)
			return err
		})
		if err != nil {
			return fmt.Errorf("message %d: %w", len(s.spans), err)
		}
		if role == "assistant" {
			s.turns = append(s.turns, len(s.spans))
		}
		start := len(s.history)
		s.history = append(s.history, message...)
		s.spans = append(s.spans, span{start, len(s.history)})
		return nil
	})
}

// Turns returns the number of turns.
func (s *Session) Turns() int { return len(s.turns) }

// Messages returns how many messages the request of a turn holds.
func (s *Session) Messages(turn int) int { return s.turns[turn] }

// Options say what a request holds besides messages and tools.
type Options struct {
	Model        string // "local" where it is empty
	Stream       bool
	IncludeUsage bool // ask for usage in the stream; only sent with Stream
	MaxTokens    int  // left out where it is 0
}

// Request returns the body that an agent sends to get the answer of a turn:
// all messages before it, the tools, and the options. The caller owns the
// bytes. A turn that is not there is a mistake of the caller and panics.
func (s *Session) Request(turn int, o Options) []byte {
	end := 0
	if n := s.turns[turn]; n > 0 {
		end = s.spans[n-1].end
	}
	model := o.Model
	if model == "" {
		model = "local"
	}
	const around = 200 // the options, with room to spare
	body := make([]byte, 0, end+len(s.tools)+len(model)+around)
	body = append(body, `{"model":`...)
	body = appendQuoted(body, model)
	body = append(body, `,"messages":[`...)
	body = append(body, s.history[:end]...)
	body = append(body, ']')
	if len(s.tools) > 0 {
		body = append(body, `,"tools":`...)
		body = append(body, s.tools...)
	}
	if o.Stream {
		body = append(body, `,"stream":true`...)
		if o.IncludeUsage {
			body = append(body, `,"stream_options":{"include_usage":true}`...)
		}
	}
	if o.MaxTokens > 0 {
		body = append(body, `,"max_tokens":`...)
		body = strconv.AppendInt(body, int64(o.MaxTokens), 10)
	}
	return append(body, '}')
}

// appendQuoted appends a JSON string. Text that is no UTF-8 is repaired, there
// is nothing better to do with a model's name.
func appendQuoted(dst []byte, s string) []byte {
	if quoted, err := jsontext.AppendQuote(dst, s); err == nil {
		return quoted
	}
	quoted, _ := jsontext.AppendQuote(dst, string(bytes.ToValidUTF8([]byte(s), []byte("\ufffd"))))
	return quoted
}

// lenient accepts what agents have been seen to send.
var lenient = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// eachMember calls visit for the members of a JSON object, in order. The value
// is only valid during the call.
func eachMember(object []byte, visit func(name string, value jsontext.Value) error) error {
	return each(object, '{', func(d *jsontext.Decoder) error {
		token, err := d.ReadToken()
		if err != nil {
			return err
		}
		name := token.String()
		value, err := d.ReadValue()
		if err != nil {
			return err
		}
		return visit(name, value)
	})
}

// eachElement is eachMember for an array.
func eachElement(array []byte, visit func(value jsontext.Value) error) error {
	return each(array, '[', func(d *jsontext.Decoder) error {
		value, err := d.ReadValue()
		if err != nil {
			return err
		}
		return visit(value)
	})
}

// each opens a JSON text that must be of a kind, calls next until it ends, and
// refuses anything behind it.
func each(data []byte, open jsontext.Kind, next func(*jsontext.Decoder) error) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(data), lenient...) // reads a Buffer without a copy
	if kind := d.PeekKind(); kind != open {
		if _, err := d.ReadValue(); err != nil {
			return err
		}
		return fmt.Errorf("want %s, got %s", open, kind)
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for {
		switch d.PeekKind() {
		case '}', ']':
			if _, err := d.ReadToken(); err != nil {
				return err
			}
			if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
				return errors.New("something follows the end")
			}
			return nil
		}
		if err := next(d); err != nil {
			return err
		}
	}
}

// text decodes a JSON string that was read by a decoder. Bytes that are no
// UTF-8 come out as replacement characters.
func text(value jsontext.Value) (string, error) {
	if value.Kind() != '"' {
		return "", fmt.Errorf("want a string, got %s", value.Kind())
	}
	b, _ := jsontext.AppendUnquote(nil, value) // the decoder has checked all but the UTF-8
	return string(b), nil
}
