package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestEventReader(t *testing.T) {
	tests := []struct {
		name   string
		stream string
		want   []string
	}{
		{"events", "data: 1\n\ndata: 2\n\n", []string{"data: 1\n\n", "data: 2\n\n"}},
		{"several lines", "event: x\ndata: 1\ndata: 2\n\n", []string{"event: x\ndata: 1\ndata: 2\n\n"}},
		{"CR LF", "data: 1\r\n\r\ndata: 2\r\n\r\n", []string{"data: 1\r\n\r\n", "data: 2\r\n\r\n"}},
		{"mixed ends", "data: 1\r\n\ndata: 2\n\r\n", []string{"data: 1\r\n\n", "data: 2\n\r\n"}},
		{"comments", ":\n\n: ping\n\ndata: 1\n\n", []string{":\n\n", ": ping\n\n", "data: 1\n\n"}},
		{"a comment without a blank line", ":\ndata: 1\n\n", []string{":\ndata: 1\n\n"}},
		{"no blank line at the end", "data: 1\n\ndata: 2\n", []string{"data: 1\n\n", "data: 2\n"}},
		{"no newline at the end", "data: 1\n\nda", []string{"data: 1\n\n", "da"}},
		{"blank lines first", "\n\ndata: 1\n\n", []string{"\n\n", "data: 1\n\n"}},
		{"three newlines", "data: 1\n\n\ndata: 2\n\n", []string{"data: 1\n\n", "\ndata: 2\n\n"}},
		{"empty", "", nil},
	}
	for _, tt := range tests {
		readers := map[string]io.Reader{
			"whole": strings.NewReader(tt.stream), "byte by byte": iotest.OneByteReader(strings.NewReader(tt.stream)),
			"halves": iotest.HalfReader(strings.NewReader(tt.stream)), "end with the data": iotest.DataErrReader(strings.NewReader(tt.stream)),
		}
		for how, r := range readers {
			t.Run(tt.name+", "+how, func(t *testing.T) {
				e := &eventReader{r: r}
				var got []string
				for {
					event, whole, err := e.next()
					if err != nil {
						if err != io.EOF {
							t.Errorf("got %v", err)
						}
						break
					}
					if ends := eventEnd(event, 0) == len(event); ends != whole {
						t.Errorf("%q: whole %v", event, whole)
					}
					got = append(got, string(event))
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

// What was read before a connection broke is given out first.
func TestEventReader_Error(t *testing.T) {
	broken := errors.New("broken")
	e := &eventReader{r: io.MultiReader(strings.NewReader("data: 1\n\ndata"), iotest.ErrReader(broken))}
	for _, want := range []string{"data: 1\n\n", "data"} {
		if got, _, err := e.next(); string(got) != want || err != nil {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	for range 2 {
		if _, _, err := e.next(); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	}
}

// An event without end is passed on, not collected for ever.
func TestEventReader_Endless(t *testing.T) {
	e := &eventReader{r: io.LimitReader(endless('x'), 16<<20)}
	total := 0
	for {
		event, whole, err := e.next()
		if err != nil {
			break
		}
		if whole || len(event) > maxLine+64<<10 {
			t.Fatalf("%d bytes, whole %v", len(event), whole)
		}
		total += len(event)
	}
	if total != 16<<20 {
		t.Errorf("%d bytes came through", total)
	}
}

type endless byte

func (e endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(e)
	}
	return len(b), nil
}

// ready gives out all that was read, and the slices stay what they are until
// the next call.
func TestEventReader_Ready(t *testing.T) {
	stream := "data: 1\n\ndata: 2\n\n:\n\ndata: 3\n\nda"
	e := &eventReader{r: io.MultiReader(strings.NewReader(stream), strings.NewReader("ta: 4\n\n"))}
	for _, want := range []string{"data: 1\n\ndata: 2\n\n:\n\ndata: 3\n\n", "data: 4\n\n"} {
		got, _, err := e.ready()
		if string(got) != want || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if _, _, err := e.ready(); err != io.EOF {
		t.Errorf("got %v", err)
	}
}

func TestEventData(t *testing.T) {
	for _, tt := range []struct{ event, want string }{
		{"data: {}\n\n", "{}"},
		{"data:{}\n\n", "{}"},
		{"data:  {} \r\n\r\n", "{}"},
		{"event: x\ndata: {}\n\n", "{}"},
		{"id: 1\nretry: 5\ndata: {}\n\n", "{}"},
		{"error: {\"a\":1}\n\n", `{"a":1}`},
		{":\n\n", ""},
		{": data: x\n\n", ""},
		{"event: x\n\n", ""},
		{"\n\n", ""},
	} {
		if got := string(eventData([]byte(tt.event))); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.event, got, tt.want)
		}
	}
}

func TestMatters(t *testing.T) {
	for line, want := range map[string]bool{
		`{"choices":[{"delta":{"content":"x"},"finish_reason":null}]}`:        false,
		`{"choices":[{"delta":{"content":"x"}}]}`:                             false,
		`{"choices":[{"delta":{"content":"x"},"finish_reason" : null}]}`:      false,
		`{"choices":[{"delta":{},"finish_reason":"stop"}]}`:                   true,
		`{"choices":[{"delta":{},"finish_reason" : "stop"}]}`:                 true,
		`{"choices":[],"usage":{"prompt_tokens":1}}`:                          true,
		`{"choices":[],"timings":{"cache_n":1}}`:                              true,
		`{"choices":[{"delta":{"content":"\"usage\" \"finish_reason\":1"}}]}`: false,
		`[DONE]`: false,
	} {
		if got := matters([]byte(line)); got != want {
			t.Errorf("%s: got %v", line, got)
		}
	}
}

func TestIsRoleChunk(t *testing.T) {
	for event, want := range map[string]bool{
		roleEvent: true,
		// OpenAI and vLLM send these with every chunk.
		strings.Replace(roleEvent, `"model"`, `"usage":null,"service_tier":"default","obfuscation":"abc","prompt_token_ids":null,"model"`, 1): true,
		`data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n":                                                  true,
		`data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}` + "\n\n":                                                               true,
		`data: {"choices":[{"index":0,"delta":{"role":"assistant","tool_calls":null}}]}` + "\n\n":                                             true,
		tokenEvent: false,
		`data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"}}]}` + "\n\n":                      false,
		`data: {"choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"hm"}}]}` + "\n\n":            false,
		`data: {"choices":[{"index":0,"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"c"}]}}]}` + "\n\n": false,
		`data: {"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":"stop"}]}` + "\n\n":              false,
		`data: {"choices":[{"index":0,"delta":{"role":"assistant"}}],"usage":{"prompt_tokens":1}}` + "\n\n":         false,
		`data: {"choices":[],"error":{"message":"\"role\""}}` + "\n\n":                                              false,
		`data: {"choices":[{"index":0,"delta":{"role":"assistant"}},{"index":1,"delta":{"content":"x"}}]}` + "\n\n": false,
		doneEvent: false,
		":\n\n":   false,
	} {
		if got := isRoleChunk([]byte(event)); got != want {
			t.Errorf("%s: got %v", event, got)
		}
	}
}

// The role chunks of return_progress say how far the prefill is: that is more
// than who speaks.
func TestIsRoleChunk_Progress(t *testing.T) {
	event := strings.Replace(roleEvent, `"model"`, `"prompt_progress":{"total":3031,"cache":9,"processed":2057,"time_ms":102},"model"`, 1)
	if isRoleChunk([]byte(event)) {
		t.Error("behind a keep-alive, the progress that the client asked for is dropped")
	}
}

func TestReidentify(t *testing.T) {
	tests := []struct{ name, event, want string }{
		{"id and created", "data: {\"id\":\"a\",\"created\":5,\"x\":1.0}\n\n", "data: {\"id\":\"ours\",\"created\":42,\"x\":1.0}\n\n"},
		{"llama-server's order", tokenEvent, strings.NewReplacer(theirID, "ours", "1700000000", "42").Replace(tokenEvent)},
		{"an escaped name is a name", "data: {\"\\u0069d\" : \"a\", \"d\":\"\\u00e9\"}\n\n", "data: {\"\\u0069d\" : \"ours\", \"d\":\"\\u00e9\"}\n\n"},
		{"ids further in are others'", `data: {"id":"a","choices":[{"delta":{"tool_calls":[{"id":"call_1","created":7}]}}]}` + "\n\n", `data: {"id":"ours","choices":[{"delta":{"tool_calls":[{"id":"call_1","created":7}]}}]}` + "\n\n"},
		{"nothing to change", "data: {\"x\":1}\n\n", "data: {\"x\":1}\n\n"},
		{"twice", "data: {\"id\":\"a\",\"id\":\"b\"}\n\n", "data: {\"id\":\"ours\",\"id\":\"ours\"}\n\n"},
		{"null and other kinds", "data: {\"id\":null,\"created\":\"x\"}\n\n", "data: {\"id\":\"ours\",\"created\":42}\n\n"},
		{"a named event", "event: x\r\nid: 7\r\ndata: {\"id\":\"a\"}\r\n\r\n", "event: x\r\nid: 7\r\ndata: {\"id\":\"ours\"}\r\n\r\n"},
		{"an error", "data: {\"error\":{\"id\":\"a\"}}\n\n", "data: {\"error\":{\"id\":\"a\"}}\n\n"},
		{"[DONE]", doneEvent, doneEvent},
		{"a comment", ": {\"id\":\"a\"}\n\n", ": {\"id\":\"a\"}\n\n"},
		{"an array", "data: [{\"id\":\"a\"}]\n\n", "data: [{\"id\":\"a\"}]\n\n"},
		{"no data", "event: x\n\n", "event: x\n\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, string(reidentify([]byte(tt.event), "ours", 42))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// FuzzReidentify: what was a chunk is one still, with the id and created that
// were asked for, and every other member as it was.
func FuzzReidentify(f *testing.F) {
	f.Add([]byte(strings.TrimPrefix(tokenEvent, "data: ")), "chatcmpl-x", int64(7))
	f.Add([]byte(`{"id":"\ud83d\ude00","created":1e3,"id":2,"a":[{"id":1}]}`), "\"\\\x00", int64(-1))
	f.Fuzz(func(t *testing.T, payload []byte, id string, created int64) {
		if bytes.ContainsAny(payload, "\n\r") || !json.Valid(payload) || !utf8.ValidString(id) {
			return
		}
		var before, after map[string]json.RawMessage
		if json.Unmarshal(payload, &before) != nil || before == nil {
			return
		}
		event := append(append([]byte("data: "), payload...), "\n\n"...)
		out := reidentify(event, id, created)
		got := bytes.TrimSuffix(bytes.TrimPrefix(out, []byte("data: ")), []byte("\n\n"))
		if bytes.ContainsAny(got, "\n\r") {
			t.Fatalf("broke the line: %q", out)
		}
		if err := json.Unmarshal(got, &after); err != nil {
			t.Fatalf("%v: %q became %q", err, payload, got)
		}
		if len(before) != len(after) {
			t.Fatalf("%q became %q", payload, got)
		}
		for name, value := range before {
			switch name {
			case "id":
				var s string
				if json.Unmarshal(after[name], &s) != nil || s != id {
					t.Fatalf("id %q became %s, want %q", value, after[name], id)
				}
			case "created":
				if string(after[name]) != fmt.Sprint(created) {
					t.Fatalf("created %q became %s", value, after[name])
				}
			default:
				if !bytes.Equal(value, after[name]) {
					t.Fatalf("%s: %q became %q", name, value, after[name])
				}
			}
		}
	})
}

func TestLineTap(t *testing.T) {
	tests := []struct {
		name   string
		stream string
		want   []string
	}{
		{"payloads", "data: 1\n\ndata: 2\n\n", []string{"1", "2"}},
		{"other fields", "event: x\nid: 3\ndata: 1\n: c\n\nerror: {}\n\n", []string{"1"}},
		{"CR LF", "data: 1\r\n\r\n", []string{"1"}},
		{"no newline at the end", "data: 1\n\ndata: 2", []string{"1"}},
		{"several in one event", "data: 1\ndata: 2\n\n", []string{"1", "2"}},
		{"empty", "data:\n\n", []string{""}},
		{"too long", "data: " + strings.Repeat("x", maxLine) + "\n\ndata: 1\n\n", []string{"1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, size := range []int{1, 2, 3, 7, 1 << 20} {
				if size < 3 && len(tt.stream) > 1<<16 {
					continue
				}
				var got []string
				tap := lineTap{payload: func(p []byte) { got = append(got, string(p)) }}
				for rest := []byte(tt.stream); len(rest) > 0; {
					n := min(size, len(rest))
					piece := bytes.Clone(rest[:n])
					tap.write(piece)
					clear(piece) // the caller may use its buffer again
					rest = rest[n:]
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("pieces of %d:\n%s", size, diff)
				}
			}
		})
	}
}

func TestDataEvent(t *testing.T) {
	for payload, want := range map[string]string{
		`{"a":1}`:                        "data: {\"a\":1}\n\n",
		"{\n \"a\": \"x\\ny\"\r\n}":      "data: {\"a\":\"x\\ny\"}\n\n",
		"not\nJSON":                      "data: notJSON\n\n",
		"{\"a\":\"\u2028\",\"b\":1e400}": "data: {\"a\":\"\u2028\",\"b\":1e400}\n\n",
	} {
		if got := string(dataEvent([]byte(payload))); got != want {
			t.Errorf("%q: got %q, want %q", payload, got, want)
		}
	}
}

// FuzzTap: whatever a server streams, however it is cut into pieces, the client
// gets the same bytes, and the same counts are read.
func FuzzTap(f *testing.F) {
	relayed := newTap()
	f.Add([]byte(roleEvent+tokenEvent+tokenEvent+endEvent+doneEvent), uint64(1))
	f.Add([]byte(":\n\n"+strings.ReplaceAll(roleEvent+tokenEvent+endEvent+doneEvent, "\n", "\r\n")), uint64(2))
	f.Add([]byte(roleEvent+"data: "+poolError+"\n\n"), uint64(3))
	f.Add([]byte("event: error\ndata: "+tooLong+"\n\n"), uint64(4))
	f.Add([]byte("error: "+tooLong+"\n\n"), uint64(5))
	f.Add([]byte(tokenEvent+`data: {"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":5}}`+"\n\n\n\n"+doneEvent), uint64(6))
	f.Add([]byte(`data: {"choices":[{"finish_reason":"model_context_window_exceeded"}]}`+"\n\n"+doneEvent), uint64(7))
	f.Add([]byte("\r\n\n\r\n\r\r\n\n"), uint64(8))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		if len(stream) > 16<<10 {
			return
		}
		body, want := relayed(t, stream, "observe") // in mode on, a refusal is worded anew
		if body != string(stream) {
			t.Fatalf("whole: %q became %q", stream, body)
		}
		r := rand.New(rand.NewPCG(seed, 0))
		for range 4 {
			var cuts []int
			most := 1 + r.IntN(40)
			for left := len(stream); left > 0; {
				n := r.IntN(most) // sometimes nothing is read
				cuts = append(cuts, n)
				left -= n
				if most == 1 {
					break
				}
			}
			body, got := relayed(t, stream, "observe", cuts...)
			if body != string(stream) {
				t.Fatalf("cut at %v: %q became %q", cuts, stream, body)
			}
			if got != want {
				t.Fatalf("cut at %v: counts %+v, want %+v", cuts, got, want)
			}
		}
		onBody, onWant := relayed(t, stream, "on")
		if again, got := relayed(t, stream, "on", 1, 2, 3, 5, 8, 13); again != onBody || got != onWant {
			t.Fatalf("in mode on the cut shows: %q, %q", onBody, again)
		}
	})
}
