package upstream_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/compactproxy/compactproxy/internal/upstream"
)

// wantRefusal is a line of testdata/refusals.jsonl: a refusal in the shape and wording of a server,
// and what it is to be taken for.
type wantRefusal struct {
	Name    string `json:"name"`
	Status  int    `json:"status"`
	Body    string `json:"body"`
	Kind    string `json:"kind"`
	Prompt  int    `json:"prompt"`
	Window  int    `json:"window"`
	Output  int    `json:"output"`
	AtLeast bool   `json:"at_least"`
}

func TestClassify(t *testing.T) {
	for _, row := range jsonLines[wantRefusal](t, testdata(t, "refusals.jsonl")) {
		t.Run(row.Name, func(t *testing.T) {
			got := upstream.Classify(row.Status, []byte(row.Body))
			want := upstream.Refusal{
				Kind:         got.Kind,
				PromptTokens: row.Prompt,
				Window:       row.Window,
				OutputTokens: row.Output,
				AtLeast:      row.AtLeast,
			}
			if got.Kind.String() != row.Kind {
				t.Errorf("kind %v, want %v", got.Kind, row.Kind)
			}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(upstream.Refusal{}, "Type", "Code", "Wording")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if t.Failed() {
				t.Logf("%d %s\nrecognised as %q", row.Status, row.Body, got.Wording)
			}
		})
	}
}

func TestClassify_NamesTheErrorAsItNamesItself(t *testing.T) {
	for _, tt := range []struct{ name, body, wantType, wantCode string }{
		{"llama-server", `{"error":{"code":400,"message":"x","type":"invalid_request_error"}}`, "invalid_request_error", "400"},
		{"flat", `{"object":"error","message":"x","type":"BadRequestError","code":"3051"}`, "BadRequestError", "3051"},
		{"the envelope is no type", `{"type":"error","error":{"type":"invalid_request_error","message":"x"}}`, "invalid_request_error", ""},
		{"outermost first", `{"error":{"type":"outer","code":"1","message":"{\"error\":{\"type\":\"inner\",\"code\":\"2\"}}"}}`, "outer", "1"},
		{"inner where the outer has none", `{"error":{"type":null,"message":"{\"error\":{\"type\":\"inner\",\"code\":\"2\"}}"}}`, "inner", "2"},
		{"text", `nothing to name`, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := upstream.Classify(400, []byte(tt.body))
			if got.Type != tt.wantType || got.Code != tt.wantCode {
				t.Errorf("type %q, code %q; want %q, %q", got.Type, got.Code, tt.wantType, tt.wantCode)
			}
		})
	}
}

// One refusal, in every carrier a server or a gateway has put one into.
func TestClassify_FindsTheSameInEveryCarrier(t *testing.T) {
	const message = "request (9001 tokens) exceeds the available context size (8192 tokens), try increasing it"
	quoted := func(s string) string {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	object := `{"error":{"message":` + quoted(message) + `}}`
	carriers := map[string]string{
		"plain text":               message,
		"a string":                 quoted(message),
		"error is an object":       object,
		"error is a string":        `{"error":` + quoted(message) + `}`,
		"error is an array":        `{"error":[` + quoted(message) + `]}`,
		"message on top":           `{"message":` + quoted(message) + `}`,
		"message on top, no error": `{"error":null,"message":` + quoted(message) + `}`,
		"an array":                 `[` + object + `]`,
		"errors":                   `{"errors":[{"message":` + quoted(message) + `}]}`,
		"detail":                   `{"detail":` + quoted(message) + `}`,
		"details":                  `{"error":{"details":[{"message":` + quoted(message) + `}]}}`,
		"error in an error":        `{"error":` + object + `}`,
		"response.failed":          `{"type":"response.failed","response":` + object + `}`,
		"beside choices":           `{"choices":[],"error":{"message":` + quoted(message) + `}}`,
		"in a choice":              `{"choices":[{"error":{"message":` + quoted(message) + `}}]}`,
		"JSON in a string":         `{"error":` + quoted(object) + `}`,
		"JSON in JSON in a string": `{"error":` + quoted(`{"message":`+quoted("x: "+object)+`}`) + `}`,
		"a data line":              "data: " + object + "\n\n",
		"an event":                 "event: error\ndata: " + object + "\n\n",
		"an event with CR LF":      "event: error\r\ndata: " + object + "\r\n\r\n",
		"an error line":            "error: " + object + "\n\n",
		"surrounded by space":      "\n  " + object + " \r\n",
		"a byte order of names":    `{"error":{"code":400,"param":null,"x":{"y":[1,2,{}]},"message":` + quoted(message) + `,"type":""}}`,
	}
	for name, body := range carriers {
		t.Run(name, func(t *testing.T) {
			got := upstream.Classify(400, []byte(body))
			if got.Kind != upstream.TooLong || got.PromptTokens != 9001 || got.Window != 8192 {
				t.Errorf("%+v\n%s", got, body)
			}
		})
	}
}

func TestClassify_StatusVetoes(t *testing.T) {
	statuses := []int{-1, 0, 100, 199, 201, 204, 302, 399, 401, 402, 403, 429, 501, 502, 503, 504, 529, 600}
	for _, row := range jsonLines[wantRefusal](t, testdata(t, "refusals.jsonl")) {
		if !upstream.Classify(row.Status, []byte(row.Body)).Kind.Overflow() {
			continue
		}
		for _, status := range statuses {
			if got := upstream.Classify(status, []byte(row.Body)); got.Kind.Overflow() {
				t.Errorf("%s: an overflow at %d", row.Name, status)
			}
		}
	}
}

func TestClassify_LooksAtTheFirst64KiB(t *testing.T) {
	const refusal = `"message":"prompt is too long: 9001 tokens > 8192 maximum"`
	pad := strings.Repeat("x", 100<<10)
	for _, tt := range []struct {
		name, body string
		want       upstream.Kind
	}{
		{"said before the padding", `{"error":{` + refusal + `,"pad":"` + pad + `"}}`, upstream.TooLong},
		{"said after the padding", `{"error":{"pad":"` + pad + `",` + refusal + `}}`, upstream.None},
		{"a message that quotes everything", `{"error":{"message":"prompt is too long ` + pad + `"}}`, upstream.None},
		{"text", "prompt is too long " + pad, upstream.TooLong},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := upstream.Classify(400, []byte(tt.body)); got.Kind != tt.want {
				t.Errorf("%v, want %v", got.Kind, tt.want)
			}
		})
	}
}

// Shapes that would be dear for a careless reader. The limit is a hundred times what they take, since
// only something else than linear work is to be found.
func TestClassify_WorkIsBounded(t *testing.T) {
	for name, body := range map[string]string{
		"many messages":     `[` + strings.Repeat(`"a{",`, 1<<20) + `"b"]`,
		"deep arrays":       strings.Repeat("[", 1<<20),
		"deep errors":       strings.Repeat(`{"error":`, 1<<20),
		"many braces":       `{"error":"` + strings.Repeat("{", 1<<20) + `"}`,
		"braces in text":    strings.Repeat("{", 1<<20),
		"nested strings":    nested(20),
		"almost a wording":  strings.Repeat("maximum context length is 1 tokens (1 in the ", 1<<16),
		"almost every rule": strings.Repeat("`inputs` tokens + maximum context length is 4 tokens, prompt is too long: 1 tokens > ", 1<<14),
		"digits":            strings.Repeat("1", 1<<20),
		"a huge number":     `{"error":{"type":"exceed_context_size_error","n_ctx":` + strings.Repeat("9", 60<<10) + `}}`,
		"lines":             strings.Repeat("data: {\"error\":\"x\"}\n", 1<<16),
		"invalid UTF-8":     `{"error":"` + strings.Repeat("\xff", 1<<20) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			got := upstream.Classify(400, []byte(body))
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
			checkRefusal(t, 400, got)
		})
	}
}

// nested is a refusal, n times JSON in a string.
func nested(n int) string {
	s := `{"error":{"message":"prompt is too long"}}`
	for range n {
		if len(s) > 60<<10 {
			break
		}
		b, _ := json.Marshal(s)
		s = `{"error":` + string(b) + `}`
	}
	return s
}

func TestClassifyFinish(t *testing.T) {
	if got := upstream.ClassifyFinish("model_context_window_exceeded"); got.Kind != upstream.TooLong {
		t.Errorf("model_context_window_exceeded: %v", got.Kind)
	}
	for _, reason := range []string{"", "stop", "length", "tool_calls", "content_filter", "function_call", "end_turn", "max_tokens"} {
		if got := upstream.ClassifyFinish(reason); got != (upstream.Refusal{}) {
			t.Errorf("%q: %+v", reason, got)
		}
	}
}

func TestKind_String(t *testing.T) {
	seen := map[string]bool{}
	for kind := upstream.None; kind <= upstream.OverRate; kind++ {
		if name := kind.String(); name == "" || strings.Contains(name, "(") || seen[name] {
			t.Errorf("kind %d is called %q", kind, name)
		} else {
			seen[name] = true
		}
	}
	if got := (upstream.OverRate + 1).String(); got != "kind(6)" {
		t.Errorf("an unknown kind is called %q", got)
	}
}

// checkRefusal checks what is promised of every refusal.
func checkRefusal(t *testing.T, status int, r upstream.Refusal) {
	t.Helper()
	switch {
	case r.PromptTokens < 0 || r.Window < 0 || r.OutputTokens < 0:
		t.Errorf("negative numbers: %+v", r)
	case r.Kind.Overflow() && (status == 401 || status == 402 || status == 403 || status == 429 || status > 500 || status < 400 && status != 200):
		t.Errorf("an overflow at %d: %+v", status, r)
	case r.Kind != upstream.TooLong && r.Kind != upstream.OutputTooLong && (r.PromptTokens != 0 || r.Window != 0 || r.OutputTokens != 0 || r.AtLeast):
		t.Errorf("numbers without their kind: %+v", r)
	case r.Kind == upstream.TooLong && r.PromptTokens > 0 && r.Window > 0 && r.PromptTokens < r.Window && !r.AtLeast:
		t.Errorf("too long, and yet below the window: %+v", r)
	case r.Kind == upstream.OutputTooLong && !(0 < r.PromptTokens && r.PromptTokens < r.Window && r.OutputTokens > 0):
		t.Errorf("the input is not shown to fit: %+v", r)
	case r.AtLeast && r.PromptTokens == 0:
		t.Errorf("a bound without a number: %+v", r)
	}
}

func FuzzClassify(f *testing.F) {
	for _, row := range jsonLines[wantRefusal](f, testdata(f, "refusals.jsonl")) {
		f.Add(row.Status, []byte(row.Body))
	}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		before := bytes.Clone(body)
		got := upstream.Classify(status, body)
		checkRefusal(t, status, got)
		if !bytes.Equal(before, body) {
			t.Error("the body was changed")
		}
		if again := upstream.Classify(status, body); again != got {
			t.Errorf("not the same twice: %+v, %+v", got, again)
		}
		checkTranslation(t, body, got)
	})
}

// publicRefusal is a row of the shared collection of real refusals and look-alikes.
type publicRefusal struct {
	Backend  string `json:"backend"`
	Status   int    `json:"status"`
	Body     string `json:"body"`
	Overflow bool   `json:"overflow"`
	Prompt   *int   `json:"n_prompt_tokens"`
	Window   *int   `json:"n_ctx"`
	Output   *int   `json:"n_output_requested"`
}

func TestClassify_EveryPublicRefusal(t *testing.T) {
	rows := jsonLines[publicRefusal](t, sharedFile(t, "overflow.jsonl"))
	kinds := map[upstream.Kind]int{}
	var overflows, verdictsWrong, empty, numbers, numbersWrong int
	for i, row := range rows {
		got := upstream.Classify(row.Status, []byte(row.Body))
		kinds[got.Kind]++
		want := row.Overflow
		if want {
			overflows++
		}
		if want && strings.TrimSpace(row.Body) == "" {
			empty++ // Cerebras: there is nothing to go by
			continue
		}
		// A look-alike whose own numbers say that the input fits: nothing to compact for, but to lower
		// max_tokens for.
		if !want && row.Prompt != nil && row.Window != nil && *row.Prompt < *row.Window {
			want = true
			if got.Kind != upstream.OutputTooLong {
				t.Errorf("row %d, %s: %v, want %v", i, row.Backend, got.Kind, upstream.OutputTooLong)
			}
		}
		if got.Kind.Overflow() != want {
			verdictsWrong++
			t.Errorf("row %d, %s: %v, want overflow %v\n%s", i, row.Backend, got.Kind, want, row.Body)
		}
		for _, n := range []struct {
			name string
			got  int
			want *int
		}{
			{"prompt", got.PromptTokens, row.Prompt},
			{"window", got.Window, row.Window},
			{"output", got.OutputTokens, row.Output},
		} {
			switch {
			case n.want == nil && n.got != 0:
				t.Errorf("row %d, %s: %s %d, but it has no such number\n%s", i, row.Backend, n.name, n.got, row.Body)
			case n.want == nil:
			case n.got != *n.want:
				numbersWrong++
				t.Errorf("row %d, %s: %s %d, want %d\n%s", i, row.Backend, n.name, n.got, *n.want, row.Body)
				fallthrough
			default:
				numbers++
			}
		}
		checkRefusal(t, row.Status, got)
		checkTranslation(t, []byte(row.Body), got)
	}
	t.Logf("%d rows, %d overflows and %d look-alikes: %d verdicts wrong, %d empty bodies missed; %d numbers, %d wrong; %v",
		len(rows), overflows, len(rows)-overflows, verdictsWrong, empty, numbers, numbersWrong, kinds)
}

// What a real llama-server answered to malformed requests is never an overflow, and what it answered
// to one that was too long always is.
func TestClassify_EveryCapturedRefusal(t *testing.T) {
	type exchange struct {
		Name     string `json:"name"`
		Response struct {
			Status int    `json:"status"`
			Body   string `json:"body_text"`
		} `json:"response"`
	}
	refusals := 0
	for _, path := range sharedFiles(t, "captures", "*.json") {
		var e exchange
		if err := json.Unmarshal(path.data, &e); err != nil || e.Response.Status < 400 {
			continue // other captures hold lists, or answers
		}
		refusals++
		got := upstream.Classify(e.Response.Status, []byte(e.Response.Body))
		want := strings.Contains(e.Response.Body, "exceed_context_size_error") || strings.Contains(e.Response.Body, "Context size has been exceeded")
		if got.Kind.Overflow() != want {
			t.Errorf("%s: %v\n%d %s", path.name, got.Kind, e.Response.Status, e.Response.Body)
		}
		checkRefusal(t, e.Response.Status, got)
		checkTranslation(t, []byte(e.Response.Body), got)
	}
	t.Logf("%d captured refusals", refusals)
}

func BenchmarkClassify(b *testing.B) {
	for _, bb := range []struct {
		name string
		body string
	}{
		{"llama-server", `{"error":{"code":400,"message":"request (9001 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9001,"n_ctx":8192}}`},
		{"unknown", `{"error":{"code":400,"message":"something else altogether","type":"invalid_request_error"}}`},
		{"unknown-64KiB", `{"error":{"message":"` + strings.Repeat("the tokens of this text exceed nothing. ", 1600) + `"}}`},
	} {
		b.Run(bb.name, func(b *testing.B) {
			body := []byte(bb.body)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				upstream.Classify(400, body)
			}
		})
	}
}
