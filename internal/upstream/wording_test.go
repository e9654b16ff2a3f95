package upstream_test

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/upstream"
)

func TestTranslate(t *testing.T) {
	const (
		reduce   = " Please reduce the length of the messages."
		measured = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens." + reduce
	)
	tooLong := upstream.Refusal{Kind: upstream.TooLong, PromptTokens: 9001, Window: 8192}
	for _, tt := range []struct {
		name    string
		refusal upstream.Refusal
		body    string
		want    string
	}{
		{
			"llama-server keeps its type and numbers", tooLong,
			`{"error":{"code":400,"message":"request (9001 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9001,"n_ctx":8192}}`,
			`{"error":{"code":"context_length_exceeded","message":"request (9001 tokens) exceeds the available context size (8192 tokens), try increasing it. ` + measured + `","type":"exceed_context_size_error","n_prompt_tokens":9001,"n_ctx":8192}}`,
		},
		{
			"space, escapes, order and unknown fields stay", tooLong,
			"\r\n{ \"x\" : [1.0, 1e400] , \"error\" : {\t\"message\" : \"na\\u00efve \\/ \\ud800\" ,\"code\":null, \"y\":{ } } }\n",
			"\r\n{ \"x\" : [1.0, 1e400] , \"error\" : {\t\"message\" : \"na\\u00efve \\/ \\ud800. " + measured + "\" ,\"code\":\"context_length_exceeded\", \"y\":{ } } }\n",
		},
		{
			"a code is added where there is none", tooLong,
			`{"error":{"message":"Too long!","type":"x"}}`,
			`{"error":{"code":"context_length_exceeded","message":"Too long! ` + measured + `","type":"x"}}`,
		},
		{
			"a flat body", tooLong,
			`{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}`,
			`{"object":"error","message":"too long. ` + measured + `","type":"BadRequestError","param":null,"code":"context_length_exceeded"}`,
		},
		{
			"a flat body without a code", tooLong,
			`{"message":"Input is too long for requested model."}`,
			`{"code":"context_length_exceeded","message":"Input is too long for requested model. ` + measured + `"}`,
		},
		{
			"a flat body whose error is no error", tooLong,
			`{"error":true,"message":"too long"}`,
			`{"code":"context_length_exceeded","error":true,"message":"too long. ` + measured + `"}`,
		},
		{
			"an error that is a string", tooLong,
			`{"code":"Client specified an invalid argument","error":"too long"}`,
			`{"code":"Client specified an invalid argument","error":"too long. ` + measured + `"}`,
		},
		{
			"an error that is an empty string", tooLong,
			`{"error":""}`,
			`{"error":"` + measured + `"}`,
		},
		{
			"an error without a message", tooLong,
			`{"error":{}}`,
			`{"error":{"code":"context_length_exceeded"}}`,
		},
		{
			"of names that occur twice the last", tooLong,
			`{"error":1,"error":{"message":"first","code":1,"message":"last","c\u006fde":2}}`,
			`{"error":1,"error":{"message":"first","code":1,"message":"last. ` + measured + `","c\u006fde":"context_length_exceeded"}}`,
		},
		{
			"OpenAI's own is not touched", tooLong,
			`{"error":{"message":"This model's maximum context length is 8192 tokens. However, ...","code":"context_length_exceeded"}}`,
			`{"error":{"message":"This model's maximum context length is 8192 tokens. However, ...","code":"context_length_exceeded"}}`,
		},
		{
			"vLLM has the words and not the code", tooLong,
			`{"error":{"message":"This model's maximum context length is 8192 tokens.","code":400}}`,
			`{"error":{"message":"This model's maximum context length is 8192 tokens.","code":"context_length_exceeded"}}`,
		},
		{
			"the reply does not fit",
			upstream.Refusal{Kind: upstream.OutputTooLong, PromptTokens: 3500, Window: 4096, OutputTokens: 1000},
			`{"error":{"message":"m","code":1}}`,
			`{"error":{"message":"m. This model's maximum context length is 4096 tokens. However, you requested 4500 tokens (3500 in the messages, 1000 in the completion). Please reduce the length of the messages or completion.","code":"context_length_exceeded"}}`,
		},
		{
			"a bound is not passed off as a measurement",
			upstream.Refusal{Kind: upstream.TooLong, PromptTokens: 100, Window: 4096, AtLeast: true},
			`{"error":{"message":"m","code":1}}`,
			`{"error":{"message":"m. This model's maximum context length is 4096 tokens. However, you requested more tokens than that. Please reduce the length of the messages.","code":"context_length_exceeded"}}`,
		},
		{
			"only the input is known",
			upstream.Refusal{Kind: upstream.TooLong, PromptTokens: 9001},
			`{"error":{"message":"m","code":1}}`,
			`{"error":{"message":"m. This model's maximum context length is exceeded. Your messages resulted in 9001 tokens. Please reduce the length of the messages.","code":"context_length_exceeded"}}`,
		},
		{
			"nothing is known",
			upstream.Refusal{Kind: upstream.SharedPool},
			`{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}`,
			`{"error":{"code":"context_length_exceeded","message":"Context size has been exceeded. This model's maximum context length is exceeded. Please reduce the length of the messages.","type":"server_error"}}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := upstream.Translate([]byte(tt.body), tt.refusal)
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			checkTranslation(t, []byte(tt.body), tt.refusal)
		})
	}
}

func TestTranslate_LeavesAlone(t *testing.T) {
	overflow := upstream.Refusal{Kind: upstream.TooLong, PromptTokens: 9001, Window: 8192}
	for _, tt := range []struct {
		name    string
		refusal upstream.Refusal
		body    string
	}{
		{"what is no overflow", upstream.Refusal{}, `{"error":{"message":"m","code":1}}`},
		{"rates", upstream.Refusal{Kind: upstream.RateLimited}, `{"error":{"message":"m","code":1}}`},
		{"more than a minute allows", upstream.Refusal{Kind: upstream.OverRate}, `{"error":{"message":"m","code":1}}`},
		{"text", overflow, `prompt is too long`},
		{"nothing", overflow, ``},
		{"a string", overflow, `"prompt is too long"`},
		{"an array", overflow, `[{"error":{"message":"m","code":1}}]`},
		{"an error that is an array", overflow, `{"error":["m"]}`},
		{"an object without either", overflow, `{"detail":"m","code":1}`},
		{"a message that is no string", overflow, `{"message":{"text":"m"},"code":1}`},
		{"an event", overflow, `{"type":"response.failed","response":{"error":{"code":"x","message":"m"}}}`},
		{"JSON cut short", overflow, `{"error":{"message":"m","code":1}`},
		{"JSON and more", overflow, `{"error":{"message":"m","code":1}}{}`},
		{"JSON and junk", overflow, `{"error":{"message":"m","code":1}} x`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := upstream.Translate([]byte(tt.body), tt.refusal); string(got) != tt.body {
				t.Errorf("became %s", got)
			}
		})
	}
}

// Every overflow in the corpus, in JSON of a shape that Translate knows, is recognised afterwards by
// those who know only OpenAI's words or OpenAI's code.
func TestTranslate_ReadsLikeOpenAI(t *testing.T) {
	for _, row := range jsonLines[wantRefusal](t, testdata(t, "refusals.jsonl")) {
		r := upstream.Classify(row.Status, []byte(row.Body))
		out := upstream.Translate([]byte(row.Body), r)
		checkTranslation(t, []byte(row.Body), r)
		if bytes.Equal(out, []byte(row.Body)) {
			continue
		}
		if strings.Contains(row.Body, "essage") && !strings.Contains(string(out), "maximum context length is") {
			t.Errorf("%s: the words are missing: %s", row.Name, out)
		}
		var shape struct{ Error json.RawMessage }
		if err := json.Unmarshal(out, &shape); err != nil {
			t.Errorf("%s: %v", row.Name, err)
		}
		if !bytes.HasPrefix(shape.Error, []byte(`"`)) && !strings.Contains(string(out), `"context_length_exceeded"`) {
			t.Errorf("%s: the code is missing: %s", row.Name, out)
		}
		again := upstream.Classify(row.Status, out)
		if again.Kind != r.Kind && r.Kind != upstream.SharedPool {
			t.Errorf("%s: was %v, reads as %v: %s", row.Name, r.Kind, again.Kind, out)
		}
	}
}

// checkTranslation checks what is promised of every translation, with a JSON reader of its own.
func checkTranslation(t *testing.T, in []byte, r upstream.Refusal) {
	t.Helper()
	before := bytes.Clone(in)
	out := upstream.Translate(in, r)
	if !bytes.Equal(before, in) {
		t.Errorf("the body was changed: %q", before)
	}
	if bytes.Equal(in, out) {
		return
	}
	if !r.Kind.Overflow() || !json.Valid(in) {
		t.Errorf("was to be left alone: %q became %q", in, out)
		return
	}
	if !json.Valid(out) {
		t.Errorf("not JSON any more: %q became %q", in, out)
		return
	}
	if again := upstream.Translate(out, r); !bytes.Equal(again, out) {
		t.Errorf("not the same twice: %q became %q", out, again)
	}
	was, is := takeApart(t, in), takeApart(t, out)
	if was.code == "" && is.code != "" { // inserted, first in its object
		is.rest = strings.Replace(is.rest, `"code":,`, "", 1)
		if was.empty {
			is.rest = strings.Replace(is.rest, `"code":`, "", 1)
		}
	}
	if was.rest != is.rest {
		t.Errorf("more than message and code differ:\n%q\n%q", was.rest, is.rest)
	}
	if !strings.HasPrefix(is.message, strings.TrimSuffix(was.message, `"`)) {
		t.Errorf("the message was rewritten: %q became %q", was.message, is.message)
	}
	if is.code != was.code && is.code != `"context_length_exceeded"` {
		t.Errorf("the code became %q", is.code)
	}
}

// apart is a body without its message and code, and these two, raw.
type apart struct {
	rest, message, code string
	empty               bool // the object that holds them
}

func takeApart(t *testing.T, body []byte) apart {
	t.Helper()
	type span struct{ start, end int }
	find := func(base int) (found map[string]span, empty bool) {
		found = map[string]span{}
		dec := json.NewDecoder(bytes.NewReader(body[base:]))
		if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
			return nil, false
		}
		empty = true
		for dec.More() {
			name, err := dec.Token()
			var raw json.RawMessage
			if err == nil {
				err = dec.Decode(&raw)
			}
			if err != nil && err != io.EOF {
				t.Fatalf("%q: %v", body, err)
			}
			end := base + int(dec.InputOffset())
			found[name.(string)] = span{end - len(raw), end}
			empty = false
		}
		return found, empty
	}
	members, empty := find(0)
	message, code := members["message"], members["code"]
	switch e := members["error"]; {
	case e.end > 0 && body[e.start] == '{':
		members, empty = find(e.start)
		message, code = members["message"], members["code"]
	case e.end > 0 && body[e.start] == '"':
		message, code = e, span{}
	}
	a := apart{
		message: string(body[message.start:message.end]),
		code:    string(body[code.start:code.end]),
		empty:   empty,
	}
	first, last := message, code
	if code.start < message.start {
		first, last = code, message
	}
	a.rest = string(body[:first.start]) + string(body[first.end:last.start]) + string(body[last.end:])
	return a
}

func FuzzTranslate(f *testing.F) {
	for _, row := range jsonLines[wantRefusal](f, testdata(f, "refusals.jsonl")) {
		f.Add([]byte(row.Body), uint8(upstream.TooLong), 9001, 8192, 100)
	}
	f.Add([]byte(`{"error":1,"error":{"message":"first","code":1,"message":"last","c\u006fde":2}}`), uint8(upstream.SharedPool), 0, 0, 0)
	f.Fuzz(func(t *testing.T, body []byte, kind uint8, prompt, window, output int) {
		checkTranslation(t, body, upstream.Refusal{
			Kind:         upstream.Kind(kind),
			PromptTokens: prompt,
			Window:       window,
			OutputTokens: output,
		})
	})
}
