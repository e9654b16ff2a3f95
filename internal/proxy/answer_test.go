package proxy

import "testing"

func TestAnswer_OddReports(t *testing.T) {
	for _, tc := range []struct {
		name, payload              string
		prompt, cached, completion int
	}{
		{"cached counted apart", `{"usage":{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":1000}}}`, 1012, 1000, 3},
		{"negative", `{"usage":{"prompt_tokens":12,"completion_tokens":-1,"prompt_tokens_details":{"cached_tokens":-5}}}`, 12, 0, 0},
		{"negative timings", `{"timings":{"cache_n":-3,"prompt_n":1,"predicted_n":-1}}`, 0, 0, 0},
		{"created with a fraction, a numeric id", `{"id":5,"created":1700000000.5,"usage":{"prompt_tokens":12,"completion_tokens":3}}`, 12, 0, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var a answer
			if _, ok := a.read([]byte(tc.payload)); !ok || !a.Known || a.Prompt != tc.prompt || a.Cached != tc.cached || a.Completion != tc.completion {
				t.Errorf("%v %+v", ok, a)
			}
		})
	}
}
