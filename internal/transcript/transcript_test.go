package transcript

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/corpus"
)

func parse(t testing.TB, body string) *Body {
	t.Helper()
	b, err := Parse([]byte(body))
	if err != nil {
		t.Fatalf("Parse(%s): %v", body, err)
	}
	return b
}

func TestParse_ReadsWhatServersRead(t *testing.T) {
	b := parse(t, ` {"model":"m","x_unknown":[1.0,9007199254740993,1e400],"messages" : [
	  {"role":"system","content":"S"} , {"r\u006fle":"user","content":[{"type":"text","text":"a\u00e9"},{"type":"image_url","image_url":{"url":"data:x"}},{"type":"text","text":"b"}]},
	  {"role":"assistant","content":null,"reasoning_content":"think","tool_calls":[{"id":"c1","type":"function","function":{"name":"read","arguments":"{\"p\": \"\\u00e9\"}"}},{"id":"c2","function":{"name":"obj","arguments":{"k":1.0}}}]},
	  {"role":"tool","tool_call_id":"c1","content":"first","content":"last"}
	],"stream":true,"max_tokens":100.0,"max_completion_tokens":50,"tools":[{"type":"function"}]}`)
	if got := b.Leading(); got != 1 {
		t.Errorf("Leading = %d", got)
	}
	type view struct {
		Role, Text, Reasoning, Answers string
		Calls                          []string
		Images                         int
	}
	var got []view
	for _, m := range b.Messages {
		v := view{Role: m.Role.String(), Text: m.Text(), Reasoning: m.Reasoning(), Answers: m.Answers, Images: m.Images()}
		for _, c := range m.Calls {
			v.Calls = append(v.Calls, c.ID+" "+c.Name+" "+string(c.Arguments))
		}
		got = append(got, v)
	}
	want := []view{
		{Role: "system", Text: "S"},
		{Role: "user", Text: "aé\nb", Images: 1},
		{Role: "assistant", Reasoning: "think", Calls: []string{`c1 read {"p": "\u00e9"}`, `c2 obj {"k":1.0}`}},
		{Role: "tool", Text: "last", Answers: "c1"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if !b.Stream || !b.HasTools || b.Model != "m" || b.MaxTokens != 50 {
		t.Errorf("fields: %+v", b)
	}
}

func TestParse_LeavesTheRestToTheServer(t *testing.T) {
	deep := strings.Repeat("[", 20000) + strings.Repeat("]", 20000)
	for name, body := range map[string]string{
		"empty":              "",
		"not JSON":           `{"messages":[`,
		"trailing data":      `{"messages":[]} x`,
		"an array":           `[]`,
		"a string":           `"x"`,
		"no messages":        `{"model":"m"}`,
		"messages a string":  `{"messages":""}`,
		"messages null":      `{"messages":null}`,
		"message a string":   `{"messages":["x"]}`,
		"message null":       `{"messages":[null]}`,
		"deeper than a body": `{"messages":[],"x":` + deep + `}`,
	} {
		if b, err := Parse([]byte(body)); err == nil {
			t.Errorf("%s: accepted: %+v", name, b)
		}
	}
}

func TestParse_OddButLegal(t *testing.T) {
	for name, body := range map[string]string{
		"empty list":             `{"messages":[ ]}`,
		"message without member": `{"messages":[{}]}`,
		"lone surrogate":         `{"messages":[{"role":"user","content":"\ud800 x"}]}`,
		"NUL":                    `{"messages":[{"role":"user","content":"a\u0000b"}]}`,
		"invalid UTF-8":          "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}",
		"huge numbers":           `{"messages":[],"seed":1e400,"n":9007199254740993}`,
		"duplicate keys":         `{"messages":[{"role":"user"}],"messages":[]}`,
		"content a number":       `{"messages":[{"role":"user","content":5}]}`,
		"calls null":             `{"messages":[{"role":"assistant","tool_calls":null}]}`,
		"call a string":          `{"messages":[{"role":"assistant","tool_calls":["x"]}]}`,
	} {
		b, err := Parse([]byte(body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if out := b.Rewrite(b.Messages); len(body) > 0 && &out[0] != &b.raw[0] {
			t.Errorf("%s: an unchanged list gave another slice", name)
		}
	}
}

// TestEdits_TouchOnlyTheirValue edits every kind of message and compares all
// other values through an independent parser.
func TestEdits_TouchOnlyTheirValue(t *testing.T) {
	for _, tc := range []struct {
		name, in, want string
		edit           func(m *Message) Message
	}{
		{"string content", `{ "role":"tool", "content":"old\n", "x":1.0 }`, `{ "role":"tool", "content":"new", "x":1.0 }`,
			func(m *Message) Message { return m.WithText("new") }},
		{"parts keep their number", `{"role":"tool","content":[{"type":"text","text":"a","k":1},{"type":"text","text":"b"}]}`,
			`{"role":"tool","content":[{"type":"text","text":"new","k":1},{"type":"text","text":""}]}`,
			func(m *Message) Message { return m.WithText("new") }},
		{"null content", `{"role":"assistant","content":null}`, `{"role":"assistant","content":"new"}`,
			func(m *Message) Message { return m.WithText("new") }},
		{"missing content", `{"role":"user"}`, `{"role":"user","content":"new"}`,
			func(m *Message) Message { return m.WithText("new") }},
		{"empty object", `{}`, `{"content":"new"}`, func(m *Message) Message { return m.WithText("new") }},
		{"empty parts", `{"role":"user","content":[ ]}`, `{"role":"user","content":"new"}`,
			func(m *Message) Message { return m.WithText("new") }},
		{"append to a string", `{"role":"user","content":"a\u00e9"}`, `{"role":"user","content":"a\u00e9\n\nmore"}`,
			func(m *Message) Message { return m.WithAppended("more") }},
		{"append to an empty string", `{"role":"user","content":""}`, `{"role":"user","content":"more"}`,
			func(m *Message) Message { return m.WithAppended("more") }},
		{"append to parts", `{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{}}]}`,
			`{"role":"user","content":[{"type":"text","text":"a\n\nmore"},{"type":"image_url","image_url":{}}]}`,
			func(m *Message) Message { return m.WithAppended("more") }},
		{"append to an image", `{"role":"user","content":[{"type":"image_url","image_url":{}} ]}`,
			`{"role":"user","content":[{"type":"image_url","image_url":{}},{"type":"text","text":"more"} ]}`,
			func(m *Message) Message { return m.WithAppended("more") }},
		{"prepend", `{"role":"user","content":"a"}`, `{"role":"user","content":"first\n\na"}`,
			func(m *Message) Message { return m.WithPrepended("first") }},
		{"arguments in a string", `{"role":"assistant","tool_calls":[{"id":"a","function":{"arguments":"{}","name":"f"}}]}`,
			`{"role":"assistant","tool_calls":[{"id":"a","function":{"arguments":"{\"k\":\"v\"}","name":"f"}}]}`,
			func(m *Message) Message { return m.WithArguments(map[int][]byte{0: []byte(`{"k":"v"}`)}) }},
		{"arguments as an object", `{"role":"assistant","tool_calls":[{"id":"a","function":{"arguments":{},"name":"f"}}]}`,
			`{"role":"assistant","tool_calls":[{"id":"a","function":{"arguments":{"k":"v"},"name":"f"}}]}`,
			func(m *Message) Message { return m.WithArguments(map[int][]byte{0: []byte(`{"k":"v"}`)}) }},
		{"reasoning", `{"role":"assistant","content":"c","reasoning_content":"long"}`, `{"role":"assistant","content":"c","reasoning_content":"s"}`,
			func(m *Message) Message { return m.WithReasoning("s") }},
		{"no reasoning", `{"role":"assistant","content":"c"}`, `{"role":"assistant","content":"c"}`,
			func(m *Message) Message { return m.WithReasoning("s") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := ParseMessage([]byte(tc.in))
			if err != nil {
				t.Fatal(err)
			}
			got := tc.edit(&m)
			if string(got.Raw()) != tc.want {
				t.Errorf("\n got %s\nwant %s", got.Raw(), tc.want)
			}
			if string(m.Raw()) != tc.in {
				t.Errorf("the message itself changed: %s", m.Raw())
			}
		})
	}
}

func TestRewrite_KeepsEveryOtherByte(t *testing.T) {
	const before, after = "{ \"a\" : 1.0,\n \"messages\" : [ ", " ] ,\"tools\":[ ], \"z\":\"\\u00e9\" }\r\n"
	messages := []string{`{"role":"system","content":"s"}`, `{ "role":"user" }`, `{"role":"assistant","content":"x"}`, `{"role":"user","content":"end"}`}
	b := parse(t, before+strings.Join(messages, " , ")+after)
	one := NewUser("one")
	for _, tc := range []struct {
		name string
		list []Message
		want string
	}{
		{"middle replaced", []Message{b.Messages[0], one, b.Messages[3]}, messages[0] + `,{"role":"user","content":"one"},` + messages[3]},
		{"head replaced", []Message{one, b.Messages[2], b.Messages[3]}, `{"role":"user","content":"one"},` + messages[2] + " , " + messages[3]},
		{"tail replaced", []Message{b.Messages[0], b.Messages[1], one}, messages[0] + " , " + messages[1] + `,{"role":"user","content":"one"}`},
		{"middle removed", []Message{b.Messages[0], b.Messages[3]}, messages[0] + "," + messages[3]},
		{"head removed", []Message{b.Messages[2], b.Messages[3]}, messages[2] + " , " + messages[3]},
		{"tail removed", []Message{b.Messages[0]}, messages[0]},
		{"everything removed", nil, ""},
		{"added at the end", append(b.Messages[:4:4], one), strings.Join(messages, " , ") + `,{"role":"user","content":"one"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := string(b.Rewrite(tc.list)); got != before+tc.want+after {
				t.Errorf("\n got %q\nwant %q", got, before+tc.want+after)
			}
		})
	}
	empty := parse(t, `{"messages":[]}`)
	if got := string(empty.Rewrite([]Message{one})); got != `{"messages":[{"role":"user","content":"one"}]}` {
		t.Errorf("into an empty list: %s", got)
	}
}

func TestRewriteCapped(t *testing.T) {
	b := parse(t, `{"max_tokens": 64000 ,"messages":[],"max_completion_tokens":64000.0}`)
	if got := string(b.RewriteCapped(b.Messages, 123)); got != `{"max_tokens": 123 ,"messages":[],"max_completion_tokens":123}` {
		t.Errorf("got %s", got)
	}
}

func fingerprint(t testing.TB, raw string) Hash {
	t.Helper()
	m, err := ParseMessage([]byte(raw))
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return Fingerprint(&m)
}

const qwenDate = `<system-reminder>\nThe current date is: Monday, November 30, 2026. Note: This is the authoritative current date \u2014 it may differ from the \"Today's date\" mentioned earlier in the conversation startup context.\n</system-reminder>`

func TestFingerprint_LeavesOutWhatClientsChange(t *testing.T) {
	for name, pair := range map[string][2]string{
		"ids":                 {`{"role":"tool","tool_call_id":"a","content":"x"}`, `{"role":"tool","tool_call_id":"b","content":"x"}`},
		"string and one part": {`{"role":"user","content":"x"}`, `{"role":"user","content":[{"type":"text","text":"x"}]}`},
		"cache_control":       {`{"role":"user","content":[{"type":"text","text":"x","cache_control":{}}],"cache_control":1}`, `{"role":"user","content":"x"}`},
		"cache_control of an image": {`{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"},"cache_control":{}}]}`,
			`{"role":"user","content":[{"type":"image_url","image_url": {"url":"u"}}]}`},
		"null, empty and missing content": {`{"role":"assistant","content":null,"tool_calls":[]}`, `{"role":"assistant"}`},
		"reasoning":                       {`{"role":"assistant","content":"x","reasoning_content":"r"}`, `{"role":"assistant","content":"x"}`},
		"argument spacing and escapes": {`{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\": \"\\u00e9\", \"b\":1.0}"}}]}`,
			`{"role":"assistant","tool_calls":[{"id":"2","function":{"name":"f","arguments":"{\"a\":\"é\",\"b\":1.0}"}}]}`},
		"arguments as an object": {`{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]}`,
			`{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]}`},
		"ids of custom calls": {`{"role":"assistant","tool_calls":[{"id":"1","type":"custom","custom":{"name":"p","input":"a"}}]}`,
			`{"role":"assistant","tool_calls":[{"type":"custom","id":"2","custom": {"name":"p","input":"a"}}]}`},
		"qwen's date": {`{"role":"user","content":[{"type":"text","text":"` + qwenDate + `"},{"type":"text","text":"go"}]}`,
			`{"role":"user","content":[{"type":"text","text":"go"}]}`},
		"goose's clock": {`{"role":"user","content":"go\n<turn-context>\n<current-time>2026-08-05 10:01:00 +00:00</current-time>\n</turn-context>"}`,
			`{"role":"user","content":"go\n<turn-context>\n<current-time>2026-08-05 10:02:00 +00:00</current-time>\n</turn-context>"}`},
	} {
		if fingerprint(t, pair[0]) != fingerprint(t, pair[1]) {
			t.Errorf("%s: differ", name)
		}
	}
	for name, pair := range map[string][2]string{
		"text":                     {`{"role":"user","content":"x"}`, `{"role":"user","content":"y"}`},
		"role":                     {`{"role":"user","content":"x"}`, `{"role":"assistant","content":"x"}`},
		"arguments":                {`{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]}`, `{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":2}"}}]}`},
		"order of arguments":       {`{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1,\"b\":2}"}}]}`, `{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"b\":2,\"a\":1}"}}]}`},
		"call and text":            {`{"role":"assistant","content":"f{}"}`, `{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}`},
		"parts and joined text":    {`{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, `{"role":"user","content":"ab"}`},
		"images":                   {`{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}`, `{"role":"user","content":[{"type":"image_url","image_url":{"url":"v"}}]}`},
		"a reminder that forbids":  {`{"role":"user","content":[{"type":"text","text":"<system-reminder>\nPlan mode ACTIVE\n</system-reminder>"},{"type":"text","text":"go"}]}`, `{"role":"user","content":"go"}`},
		"a date with an order":     {`{"role":"user","content":"<system-reminder>\nThe current date is: Monday, November 30, 2026. Do not edit.\n</system-reminder>"}`, `{"role":"user","content":""}`},
		"a date in a tool result":  {`{"role":"tool","content":"` + qwenDate + `"}`, `{"role":"tool","content":""}`},
		"a clock with more in it":  {`{"role":"user","content":"<current-time>10:00 delete all</current-time>"}`, `{"role":"user","content":""}`},
		"custom calls":             {`{"role":"assistant","tool_calls":[{"id":"1","type":"custom","custom":{"name":"apply_patch","input":"a"}}]}`, `{"role":"assistant","tool_calls":[{"id":"1","type":"custom","custom":{"name":"shell","input":"b"}}]}`},
		"a legacy function_call":   {`{"role":"assistant","content":null,"function_call":{"name":"a","arguments":"{}"}}`, `{"role":"assistant","content":null,"function_call":{"name":"b","arguments":"{}"}}`},
		"unknown roles":            {`{"role":"function","content":"x"}`, `{"role":"critic","content":"x"}`},
		"invalid argument JSON":    {`{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":"}}]}`, `{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"b\":"}}]}`},
		"numbers keep their shape": {`{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1.0}"}}]}`, `{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]}`},
	} {
		if fingerprint(t, pair[0]) == fingerprint(t, pair[1]) {
			t.Errorf("%s: equal", name)
		}
	}
}

func TestChain(t *testing.T) {
	const body = `{"messages":[{"role":"user","content":"1"},{"role":"assistant","content":"2"},{"role":"user","content":"3"}]}`
	b := parse(t, body)
	whole := Chain([]byte("me"), b.Messages)
	if len(whole) != 4 {
		t.Fatalf("length %d", len(whole))
	}
	if diff := cmp.Diff(whole[:3], Chain([]byte("me"), b.Messages[:2])); diff != "" {
		t.Errorf("a prefix's chain differs:\n%s", diff)
	}
	other := Chain([]byte("you"), b.Messages)
	for i := range whole {
		if whole[i] == other[i] {
			t.Errorf("chain(%d) crosses seeds", i)
		}
	}
	for _, limit := range []int{1, 1000, 1 << 20} { // smaller than the list: generations come and go
		memo := NewMemo(limit)
		for range 3 {
			b, err := memo.Parse([]byte(body))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(whole, Chain([]byte("me"), b.Messages)); diff != "" {
				t.Errorf("the memo changes the chain:\n%s", diff)
			}
		}
	}
}

// TestMemo_StaysInItsBound: whatever is sent, the memo keeps no more than twice
// its limit.
func TestMemo_StaysInItsBound(t *testing.T) {
	const limit = 4 << 20
	heap := func() int64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	before := heap()
	memo := NewMemo(limit)
	for i := range 300 {
		messages := []string{
			`{"role":"assistant","tool_calls":[` + strings.Repeat("{},", 400) + fmt.Sprintf(`{"id":"%d"}]}`, i),
			fmt.Sprintf(`{"role":"assistant","tool_calls":[{"id":"%d","function":{"name":"f","arguments":"%s"}}]}`, i, strings.Repeat("x", 40<<10)),
		}
		if i%100 == 0 { // and some giants
			messages = append(messages,
				`{"role":"assistant","tool_calls":[`+strings.Repeat("{},", 20_000)+fmt.Sprintf(`{"id":"%d"}]}`, i),
				fmt.Sprintf(`{"role":"assistant","tool_calls":[{"id":"%d","function":{"name":"f","arguments":"%s"}}]}`, i, strings.Repeat("x", 3<<20)),
				`{"role":"user","content":[`+strings.Repeat("{},", 20_000)+fmt.Sprintf(`{"type":"%d"}]}`, i),
			)
		}
		for _, message := range messages {
			if _, err := memo.Parse([]byte(`{"messages":[` + message + `]}`)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if kept := heap() - before; kept > 3*limit {
		t.Errorf("%d bytes are kept for a limit of %d", kept, limit)
	}
	runtime.KeepAlive(memo)
}

func TestParse_TooManyItems(t *testing.T) {
	for name, body := range map[string]string{
		"messages": `{"messages":[` + strings.Repeat("{},", maxItems) + `{}]}`,
		"calls":    `{"messages":[{"role":"assistant","tool_calls":[` + strings.Repeat("{},", maxItems+1) + `{}]}]}`,
		"parts":    `{"messages":[{"role":"user","content":[` + strings.Repeat("{},", maxItems+1) + `{}]}]}`,
	} {
		if _, err := Parse([]byte(body)); !errors.Is(err, ErrNotChat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMemo: what is remembered is what would be read, and edits of it do not
// carry over.
func TestMemo(t *testing.T) {
	memo := NewMemo(1 << 20)
	raw := benchBody(20 << 10)
	want := parse(t, string(raw))
	for range 2 {
		b, err := memo.Parse(bytes.Clone(raw))
		if err != nil {
			t.Fatal(err)
		}
		agree(t, "memo", b)
		for i := range b.Messages {
			m := &b.Messages[i]
			if !bytes.Equal(m.Raw(), want.Messages[i].Raw()) || m.Text() != want.Messages[i].Text() || m.ContentBytes() != want.Messages[i].ContentBytes() {
				t.Fatalf("message %d differs", i)
			}
			edited := m.WithText("other")
			if edited.fingerprint() != Fingerprint(&edited) || edited.fingerprint() == m.fingerprint() {
				t.Fatalf("message %d: the edit has the old fingerprint", i)
			}
		}
	}
}

func TestTurns(t *testing.T) {
	b := parse(t, `{"messages":[{"role":"tool"},{"role":"user"},{"role":"assistant"},{"role":"tool"},{"role":"tool"},{"role":"assistant"},{"role":"user"}]}`)
	want := []Turn{{0, 1, Tool}, {1, 2, User}, {2, 5, Assistant}, {5, 6, Assistant}, {6, 7, User}}
	if diff := cmp.Diff(want, Turns(b.Messages)); diff != "" {
		t.Error(diff)
	}
}

// ---- real bodies

// TestCaptures parses every captured chat request and gives it back untouched.
func TestCaptures(t *testing.T) {
	n := 0
	for _, file := range corpus.Files(t, "clients") {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var capture struct {
			Requests []struct{ Body json.RawMessage }
		}
		if json.Unmarshal(raw, &capture) != nil {
			continue
		}
		for _, r := range capture.Requests {
			if !bytes.Contains(r.Body, []byte(`"messages"`)) {
				continue
			}
			b, err := Parse(r.Body)
			if err != nil {
				continue // codex's and claude's own formats
			}
			n++
			agree(t, filepath.Base(file), b)
		}
	}
	if n < 100 {
		t.Errorf("only %d chat requests in the captures", n)
	}
}

// agree compares the index with encoding/json.
func agree(t *testing.T, name string, b *Body) {
	t.Helper()
	var want struct {
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
			Calls   []struct {
				ID       string
				Function struct {
					Name      string
					Arguments json.RawMessage
				}
			} `json:"tool_calls"`
			Answers string `json:"tool_call_id"`
		}
	}
	if err := json.Unmarshal(b.Raw(), &want); err != nil {
		return // a shape that only the index tolerates
	}
	if len(want.Messages) != len(b.Messages) {
		t.Fatalf("%s: %d messages, want %d", name, len(b.Messages), len(want.Messages))
	}
	for i, w := range want.Messages {
		m := b.Messages[i]
		if m.Role.String() != w.Role && m.Role != Unknown || m.Answers != w.Answers || len(m.Calls) != len(w.Calls) {
			t.Errorf("%s: messages[%d] read as %v %q %d calls", name, i, m.Role, m.Answers, len(m.Calls))
		}
		var text string
		if json.Unmarshal(w.Content, &text) == nil && m.Text() != text && utf8.ValidString(text) {
			t.Errorf("%s: messages[%d] text differs", name, i)
		}
		for c := range w.Calls {
			if m.Calls[c].ID != w.Calls[c].ID || m.Calls[c].Name != w.Calls[c].Function.Name {
				t.Errorf("%s: messages[%d] call %d differs", name, i, c)
			}
		}
	}
}

// ---- fuzzing

func seeds(f *testing.F) {
	for _, s := range []string{
		`{"messages":[{"role":"user","content":"x"}]}`,
		`{"messages":""}`, `{"messages":[]}`, `[]`, `{"messages":[{}],"messages":[{"role":"tool"}]}`,
		`{"max_tokens":5,"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"}]}]}`,
		`{"messages":[{"r\u006fle":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}],"reasoning_content":"r"},{"role":"tool","tool_call_id":"a","content":"\ud800"}]}`,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\x00\"}]}",
		`{"messages":[{"role":"user","content":5},{"role":1},{"content":null}] , "stream" : true}`,
	} {
		f.Add([]byte(s))
	}
}

func FuzzIndex(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := Parse(bytes.Clone(raw))
		if err != nil {
			return
		}
		if !json.Valid(raw) && utf8.Valid(raw) && !bytes.Contains(raw, []byte{0x7f}) {
			t.Fatalf("accepted what encoding/json refuses: %q", raw)
		}
		if out := b.Rewrite(b.Messages); !bytes.Equal(out, raw) || len(raw) > 0 && &out[0] != &b.raw[0] {
			t.Fatalf("no edit changed bytes: %q", out)
		}
		for i := range b.Messages {
			m := &b.Messages[i]
			Fingerprint(m)
			if again, err := ParseMessage(m.Raw()); err != nil || !bytes.Equal(again.Raw(), m.Raw()) {
				t.Fatalf("message %d does not stand alone: %v", i, err)
			}
		}
	})
}

func FuzzEdits(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := Parse(raw)
		if err != nil || len(b.Messages) == 0 {
			return
		}
		for i := range b.Messages {
			m := &b.Messages[i]
			edits := []Message{m.WithText("neu\n\"ü"), m.WithAppended("more"), m.WithPrepended("first"), m.WithReasoning("r")}
			for c := range m.Calls {
				edits = append(edits, m.WithArguments(map[int][]byte{c: []byte(`{"k":1}`)}))
			}
			for n, e := range edits {
				list := append([]Message(nil), b.Messages...)
				list[i] = e
				out := b.Rewrite(list)
				again, err := Parse(out)
				if err != nil {
					t.Fatalf("edit %d of message %d is not a body: %v\n%s", n, i, err, out)
				}
				if len(again.Messages) != len(b.Messages) {
					t.Fatalf("edit %d changed the number of messages", n)
				}
				for j := range list {
					if !bytes.Equal(again.Messages[j].Raw(), list[j].Raw()) {
						t.Fatalf("edit %d of message %d changed message %d", n, i, j)
					}
				}
				start, end := b.spans[i].start, b.spans[i].end
				if !bytes.HasPrefix(out, raw[:start]) || !bytes.HasSuffix(out, raw[end:]) {
					t.Fatalf("edit %d of message %d changed bytes outside it", n, i)
				}
			}
		}
	})
}

// ---- benchmarks; budgets on two shared cores: index 1 MB under 3 ms

func benchBody(size int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"model":"m","stream":true,"messages":[{"role":"system","content":"You are an agent."},{"role":"user","content":"Do it."}`)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `,{"role":"assistant","content":null,"tool_calls":[{"id":"call_%d","type":"function","function":{"name":"read","arguments":"{\"path\": \"f%d.go\"}"}}]}`, i, i)
		fmt.Fprintf(&b, `,{"role":"tool","tool_call_id":"call_%d","content":%q}`, i, strings.Repeat("func f() error {\n\treturn \"x\"\n}\n", 60))
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

var sizes = []struct {
	name  string
	bytes int
}{{"10KB", 10 << 10}, {"100KB", 100 << 10}, {"1MB", 1 << 20}, {"10MB", 10 << 20}}

func BenchmarkIndex(b *testing.B) {
	for _, s := range sizes {
		raw := benchBody(s.bytes)
		b.Run(s.name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSeen is index and chain of a history that was seen before.
func BenchmarkSeen(b *testing.B) {
	for _, s := range sizes {
		raw := benchBody(s.bytes)
		b.Run(s.name, func(b *testing.B) {
			memo := NewMemo(64 << 20)
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				body, err := memo.Parse(raw)
				if err != nil {
					b.Fatal(err)
				}
				Chain(nil, body.Messages)
			}
		})
	}
}

func BenchmarkEdit(b *testing.B) {
	for _, s := range sizes {
		body, err := Parse(benchBody(s.bytes))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(s.name+"/100results", func(b *testing.B) {
			b.SetBytes(int64(s.bytes))
			for b.Loop() {
				list := append([]Message(nil), body.Messages...)
				for i := range list {
					if list[i].Role == Tool && i < 200 {
						list[i] = list[i].WithText("[removed]")
					}
				}
				body.Rewrite(list)
			}
		})
	}
}
