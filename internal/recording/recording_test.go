package recording

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
)

// message is what the tests look at in a message.
type message struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	Reasoning  string          `json:"reasoning_content"`
	ToolCallID string          `json:"tool_call_id"`
	ToolCalls  []struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// text is the content, parts joined.
func (m message) text(t testing.TB) string {
	t.Helper()
	if m.Content == nil || string(m.Content) == "null" {
		return ""
	}
	s, err := contentText(jsontext.Value(m.Content))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func load(t testing.TB, name string) *Session {
	t.Helper()
	s, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// history decodes all messages of a session.
func history(t testing.TB, s *Session) []message {
	t.Helper()
	var list []message
	if err := json.Unmarshal(slices.Concat([]byte("["), s.history, []byte("]")), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestSessions_AreTheOnesWeRecorded(t *testing.T) {
	want := []string{"depot", "ledger", "reused-ids", "teashop"}
	if diff := cmp.Diff(want, Sessions()); diff != "" {
		t.Error(diff)
	}
	for _, name := range want {
		s := load(t, name)
		if s.Name != name || s.Note == "" {
			t.Errorf("%s is called %q, note %q", name, s.Name, s.Note)
		}
		if s.Turns() == 0 || len(s.tools) == 0 {
			t.Errorf("%s has %d turns and %d bytes of tools", name, s.Turns(), len(s.tools))
		}
	}
}

func TestLoad_UnknownSession(t *testing.T) {
	if _, err := Load("nope"); err == nil || !strings.Contains(err.Error(), "ledger") {
		t.Errorf("error %v, want one that lists the sessions", err)
	}
}

func TestSessions_HaveTheSizeTheyAreFor(t *testing.T) {
	tests := []struct {
		name               string
		minTurns, maxTurns int
		minBytes, maxBytes int // of the last request
		minLongest         int // of the longest result
		maxLongest         int
	}{
		// At 3.4 bytes a token five windows of 16,384 tokens are 278 KB.
		{"ledger", 72, 120, 300_000, 450_000, 20_000, 30_000},
		{"depot", 8, 25, 80_000, 120_000, 80_000, 95_000},
		{"teashop", 8, 25, 5_000, 60_000, 0, 2_000},
		{"reused-ids", 8, 25, 5_000, 60_000, 0, 3_000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := load(t, tt.name)
			if n := s.Turns(); n < tt.minTurns || n > tt.maxTurns {
				t.Errorf("%d turns, want %d to %d", n, tt.minTurns, tt.maxTurns)
			}
			if n := len(s.Request(s.Turns()-1, Options{})); n < tt.minBytes || n > tt.maxBytes {
				t.Errorf("the last request has %d bytes, want %d to %d", n, tt.minBytes, tt.maxBytes)
			}
			longest := 0
			for _, m := range history(t, s) {
				if m.Role == "tool" {
					longest = max(longest, len(m.text(t)))
				}
			}
			if longest < tt.minLongest || longest > tt.maxLongest {
				t.Errorf("the longest result has %d bytes, want %d to %d", longest, tt.minLongest, tt.maxLongest)
			}
		})
	}
}

// Every call is answered once, by the messages directly behind it, and nothing
// else is answered.
func TestSessions_AreLegallyPaired(t *testing.T) {
	for _, name := range Sessions() {
		t.Run(name, func(t *testing.T) {
			list := history(t, load(t, name))
			var open []string
			for i, m := range list {
				if m.Role == "tool" {
					at := slices.Index(open, m.ToolCallID)
					if at < 0 {
						t.Fatalf("message %d answers %q, open are %q", i, m.ToolCallID, open)
					}
					open = slices.Delete(open, at, at+1)
					continue
				}
				if len(open) > 0 {
					t.Fatalf("message %d is of the role %s while %q are open", i, m.Role, open)
				}
				for _, c := range m.ToolCalls {
					if m.Role != "assistant" || c.ID == "" || c.Type != "function" || slices.Contains(open, c.ID) {
						t.Errorf("message %d of the role %s: call %+v, open are %q", i, m.Role, c, open)
					}
					if !json.Valid([]byte(c.Function.Arguments)) || c.Function.Arguments[0] != '{' {
						t.Errorf("message %d: arguments %s", i, c.Function.Arguments)
					}
					open = append(open, c.ID)
				}
			}
			if len(open) > 0 {
				t.Errorf("%q are open at the end", open)
			}
			if last := list[len(list)-1]; last.Role != "assistant" || len(last.ToolCalls) > 0 || last.text(t) == "" {
				t.Errorf("the session ends with a message of the role %s, want an answer", last.Role)
			}
		})
	}
}

func TestRequest_ExtendsTheLast(t *testing.T) {
	const head, tail = `{"model":"local","messages":[`, `],"tools":[`
	for _, name := range Sessions() {
		t.Run(name, func(t *testing.T) {
			s := load(t, name)
			var before []byte
			for turn := range s.Turns() {
				body := s.Request(turn, Options{Stream: true, IncludeUsage: true, MaxTokens: 4096})
				end := bytes.LastIndex(body, []byte(tail))
				// every eighth is enough for what grows at one end
				valid := turn%8 != 0 && turn < s.Turns()-1 || json.Valid(body)
				if !valid || !bytes.HasPrefix(body, []byte(head)) || end < 0 {
					t.Fatalf("turn %d: no valid request", turn)
				}
				messages := body[len(head):end]
				if !bytes.HasPrefix(messages, before) {
					t.Fatalf("turn %d does not start with the messages and the answer of turn %d", turn, turn-1)
				}
				answer, err := s.Answer(turn)
				if err != nil {
					t.Fatal(err)
				}
				before = slices.Concat(messages, []byte(","), answer.Raw)
			}
			if !bytes.Equal(before, s.history) {
				t.Error("the last request and its answer are not the whole history")
			}
		})
	}
}

// The same again as a server reads it: decoded.
func TestRequest_HoldsTheMessagesBeforeTheTurn(t *testing.T) {
	for _, name := range Sessions() {
		s := load(t, name)
		for _, turn := range []int{0, s.Turns() / 2, s.Turns() - 1} {
			var request struct {
				Messages []message         `json:"messages"`
				Tools    []json.RawMessage `json:"tools"`
			}
			if err := json.Unmarshal(s.Request(turn, Options{}), &request); err != nil {
				t.Fatal(err)
			}
			if len(request.Tools) != 5 || len(request.Messages) != s.Messages(turn) {
				t.Errorf("%s, turn %d: %d tools, %d messages, want 5 and %d", name, turn, len(request.Tools), len(request.Messages), s.Messages(turn))
			}
			// not cmp.Diff, which takes half a minute for texts of this size
			if !reflect.DeepEqual(history(t, s)[:s.Messages(turn)], request.Messages) {
				t.Errorf("%s, turn %d: the messages are not those before the turn", name, turn)
			}
		}
	}
}

func TestRequest_IsTheSameEachTime(t *testing.T) {
	s := load(t, "ledger")
	a, b := s.Request(40, Options{}), s.Request(40, Options{})
	if !bytes.Equal(a, b) {
		t.Error("two requests of a turn differ")
	}
	a[len(a)/2] ^= 1 // the caller owns it
	if !bytes.Equal(b, s.Request(40, Options{})) {
		t.Error("changing a request changed the session")
	}
}

// What the demo and the tests of the passes rely on.
func TestLedger_ReadsLikeARealSession(t *testing.T) {
	s := load(t, "ledger")
	type use struct{ tool, arguments, result string }
	var uses []use
	calls := map[string]use{}
	parallel := 0
	var users []int
	for i, m := range history(t, s) {
		switch m.Role {
		case "user":
			users = append(users, i)
		case "assistant":
			if len(m.ToolCalls) > 1 {
				parallel++
			}
			for _, c := range m.ToolCalls {
				calls[c.ID] = use{tool: c.Function.Name, arguments: c.Function.Arguments}
			}
		case "tool":
			u := calls[m.ToolCallID]
			u.result = m.text(t)
			uses = append(uses, u)
		}
	}
	if len(users) != 2 {
		t.Fatalf("user messages at %v, want two", users)
	}
	if at := users[1] * 100 / len(history(t, s)); at < 55 || at > 80 {
		t.Errorf("the follow-up comes after %d %% of the messages", at)
	}
	if parallel < 20 {
		t.Errorf("%d turns with parallel calls, want at least 20", parallel)
	}
	same := map[use]int{}
	tools := map[string]int{}
	reads := map[string]int{}
	for _, u := range uses {
		tools[u.tool]++
		if u.tool == "read_file" {
			reads[u.arguments]++
		}
		if strings.Contains(u.result, "Command exited with code") {
			same[u]++
		}
	}
	for tool, want := range map[string]int{"read_file": 20, "write_file": 10, "edit_file": 30, "shell": 50, "todo_write": 8} {
		if tools[tool] < want {
			t.Errorf("%s is used %d times, want at least %d", tool, tools[tool], want)
		}
	}
	most := 0
	for _, n := range same {
		most = max(most, n)
	}
	if most < 3 {
		t.Errorf("the most repeated failure occurs %d times, want at least 3", most)
	}
	again := 0
	for _, n := range reads {
		if n > 1 {
			again++
		}
	}
	if again < 4 {
		t.Errorf("%d files are read again in full, want at least 4", again)
	}
}

func TestTeashop_IsHardOnTextHandling(t *testing.T) {
	s := load(t, "teashop")
	raw := string(s.history)
	for _, want := range []string{"お茶", `\ud83c\udf75`, "🍵", `\u001b[31m`, `\u202f`, `"content":[{"type":"text"`, `"content":null`} {
		if !strings.Contains(raw, want) {
			t.Errorf("%q does not occur", want)
		}
	}
	for turn := range s.Turns() {
		a, err := s.Answer(turn)
		if err != nil {
			t.Fatal(err)
		}
		if a.Reasoning == "" && len(a.Calls) > 0 {
			t.Errorf("turn %d has no reasoning", turn)
		}
		if !utf8.ValidString(a.Text) {
			t.Errorf("turn %d: text is no UTF-8", turn)
		}
	}
}

func TestReusedIDs_HasNoSystemMessageAndReusesIDs(t *testing.T) {
	list := history(t, load(t, "reused-ids"))
	if list[0].Role != "user" {
		t.Errorf("it starts with a message of the role %s", list[0].Role)
	}
	tools := map[string][]string{}
	for _, m := range list {
		for _, c := range m.ToolCalls {
			tools[c.ID] = append(tools[c.ID], c.Function.Name)
		}
	}
	first := tools["call_0"]
	if len(first) < 5 || len(slices.Compact(slices.Sorted(slices.Values(first)))) < 2 {
		t.Errorf("call_0 is used for %q", first)
	}
}

// A recording must not show where it was made, or how long it took.
func TestSessions_ShowNothingOfTheMachine(t *testing.T) {
	duration := regexp.MustCompile(`[0-9]\.[0-9][0-9]s`)
	for _, name := range Sessions() {
		raw := string(load(t, name).history)
		for _, place := range []string{"/root/", "/work/", "/private/", "/Users/", "/tmp/record", "/tmp/go-build"} {
			if strings.Contains(raw, place) {
				t.Errorf("%s shows %s", name, place)
			}
		}
		if homes := strings.Count(raw, "/home/"); homes != strings.Count(raw, "/home/dev/") {
			t.Errorf("%s shows another home", name)
		}
		for _, d := range duration.FindAllString(raw, -1) {
			if d != "0.00s" {
				t.Errorf("%s shows the duration %s", name, d)
			}
		}
	}
}

// Budget: building a request is one copy, 400 KB in less than 0.5 ms.
func BenchmarkRequest(b *testing.B) {
	s := load(b, "ledger")
	for _, turn := range []int{0, s.Turns() / 2, s.Turns() - 1} {
		b.Run(fmt.Sprintf("turn=%d", turn), func(b *testing.B) {
			b.SetBytes(int64(len(s.Request(turn, Options{}))))
			b.ReportAllocs()
			for b.Loop() {
				s.Request(turn, Options{Stream: true})
			}
		})
	}
}

// Budget: 400 KB in less than 5 ms.
func BenchmarkLoad(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		load(b, "ledger")
	}
}
