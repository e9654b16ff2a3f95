package recording

import (
	"bytes"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// Answer is what the model said in a turn.
type Answer struct {
	Raw       []byte // the assistant message as it stands in the next request
	Text      string // the content; text parts are joined
	Reasoning string // reasoning_content
	Calls     []Call
}

// Call is a tool call of an answer.
type Call struct {
	ID        string
	Name      string
	Arguments string // a JSON object, as the model wrote it
}

// Answer returns the recorded answer of a turn. The caller owns it. A turn
// that is not there panics, as with Request; a message of a shape that no
// server sends is an error.
func (s *Session) Answer(turn int) (Answer, error) {
	at := s.spans[s.turns[turn]]
	a := Answer{Raw: bytes.Clone(s.history[at.start:at.end])}
	err := eachMember(a.Raw, func(name string, value jsontext.Value) error {
		var err error
		switch {
		case value.Kind() == 'n':
		case name == "content":
			a.Text, err = contentText(value)
		case name == "reasoning_content":
			a.Reasoning, err = text(value)
		case name == "tool_calls":
			a.Calls, err = calls(value)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return a, fmt.Errorf("answer of turn %d: %w", turn, err)
	}
	return a, nil
}

// contentText reads a content, which is a string or a list of parts.
func contentText(value jsontext.Value) (string, error) {
	if value.Kind() != '[' {
		return text(value)
	}
	var all string
	err := eachElement(value, func(part jsontext.Value) error {
		return eachMember(part, func(name string, value jsontext.Value) error {
			if name != "text" {
				return nil
			}
			s, err := text(value)
			all += s
			return err
		})
	})
	return all, err
}

// calls reads the list of tool calls.
func calls(value jsontext.Value) ([]Call, error) {
	var list []Call
	err := eachElement(value, func(call jsontext.Value) error {
		var c Call
		err := eachMember(call, func(name string, value jsontext.Value) error {
			var err error
			switch name {
			case "id":
				c.ID, err = text(value)
			case "function":
				err = c.function(value)
			}
			return err
		})
		list = append(list, c)
		return err
	})
	return list, err
}

// function reads the name and the arguments of a call.
func (c *Call) function(value jsontext.Value) error {
	return eachMember(value, func(name string, value jsontext.Value) error {
		var err error
		switch name {
		case "name":
			c.Name, err = text(value)
		case "arguments":
			c.Arguments, err = text(value)
		}
		return err
	})
}
