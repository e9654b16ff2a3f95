package compaction

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/compactproxy/compactproxy/internal/transcript"
)

// A short notation for message lists. Ids follow the calls' order, so a test
// only names them where it is about them.

// quoted is s as a JSON string, letters beyond ASCII unescaped.
func quoted(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func message(raw string) transcript.Message {
	m, err := transcript.ParseMessage([]byte(raw))
	if err != nil {
		panic("not a message: " + raw)
	}
	return m
}

func user(text string) transcript.Message {
	return message(`{"role":"user","content":` + quoted(text) + `}`)
}

func system(text string) transcript.Message {
	return message(`{"role":"system","content":` + quoted(text) + `}`)
}

func says(text string) transcript.Message {
	return message(`{"role":"assistant","content":` + quoted(text) + `}`)
}

type toolCall struct{ id, name, args string }

func calls(list ...toolCall) transcript.Message { return thinks("", list...) }

// thinks is an assistant message with reasoning and calls.
func thinks(reasoning string, list ...toolCall) transcript.Message {
	var b strings.Builder
	b.WriteString(`{"role":"assistant","content":null`)
	if reasoning != "" {
		b.WriteString(`,"reasoning_content":` + quoted(reasoning))
	}
	if len(list) > 0 {
		b.WriteString(`,"tool_calls":[`)
		for i, c := range list {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(`{"id":` + quoted(c.id) + `,"type":"function","function":{"name":` + quoted(c.name) + `,"arguments":` + quoted(c.args) + `}}`)
		}
		b.WriteString(`]`)
	}
	b.WriteString(`}`)
	return message(b.String())
}

func answer(id, text string) transcript.Message {
	return message(`{"role":"tool","tool_call_id":` + quoted(id) + `,"content":` + quoted(text) + `}`)
}

// round is one call and its result.
func round(name, args, text string) []transcript.Message {
	return []transcript.Message{calls(toolCall{"c1", name, args}), answer("c1", text)}
}

// read is a round that reads a whole file.
func read(path, text string) []transcript.Message {
	return round("read", `{"path":`+quoted(path)+`}`, text)
}

// listOf joins messages and rounds.
func listOf(parts ...any) []transcript.Message {
	var list []transcript.Message
	for _, p := range parts {
		switch p := p.(type) {
		case transcript.Message:
			list = append(list, p)
		case []transcript.Message:
			list = append(list, p...)
		default:
			panic("neither a message nor a round")
		}
	}
	return list
}

// lines is a text of n numbered lines, none like another.
func lines(name string, n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(name)
		b.WriteString(" line ")
		b.WriteString(strings.Repeat(string(rune('a'+i%26)), 3+i%7))
		b.WriteString(" of the file\n")
	}
	return b.String()
}

func edits(entries []Entry) string {
	var out []string
	for i := range entries {
		if e := entries[i].Edit.String(); e != "" {
			out = append(out, e)
		} else {
			out = append(out, "-")
		}
	}
	return strings.Join(out, " ")
}

func raws(entries []Entry) []string {
	out := make([]string, len(entries))
	for i := range entries {
		out[i] = string(entries[i].Raw())
	}
	return out
}

func texts(entries []Entry) []string {
	out := make([]string, len(entries))
	for i := range entries {
		out[i] = entries[i].Text()
	}
	return out
}

// scaleOf is what a server says that counts one token for three bytes.
func scaleOf(entries []Entry, overhead, window int) Scale {
	list := weightOf(entries)
	return Scale{Prompt: (overhead + list) / 3, Window: window, Overhead: overhead, List: list}
}

// refused is the request of a recovery of a list without a checkpoint.
func refused(list []transcript.Message, window int) Request {
	entries := Entries(list, 0)
	return Request{Entries: entries, Originals: list, Open: len(entries), Scale: scaleOf(entries, 0, window)}
}

func mustRecover(t testing.TB, req Request) Outcome {
	t.Helper()
	out, err := DefaultSettings().Recover(req)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
