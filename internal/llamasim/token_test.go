package llamasim

import (
	"encoding/base64"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// source is this package's own source code.
func source(t testing.TB) string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}

func TestTokens_RateOnCode(t *testing.T) {
	code := source(t)
	rate := float64(len(code)) / float64(CountTokens(code))
	t.Logf("%d bytes of code, %.2f bytes a token", len(code), rate)
	if rate < 3.2 || rate > 3.7 {
		t.Errorf("%.2f bytes a token on code, want about 3.4", rate)
	}
}

func TestTokens_Counts(t *testing.T) {
	encoded := base64.StdEncoding.EncodeToString(slices.Repeat([]byte{1, 77, 130, 255, 3, 9}, 500))
	for _, c := range []struct {
		name, text string
		min, max   int
	}{
		{"nothing", "", 0, 0},
		{"a word", "hello", 1, 1},
		{"words take their space along", "hello brave world", 3, 3},
		{"a long word", "internationalisation", 4, 4},
		{"a marker", "<|im_start|>", 1, 1},
		{"markers between words", "<|im_start|>user\nhi<|im_end|>", 5, 5},
		{"part of a marker", "<|im_sta", 2, 4},
		{"chinese, a token a byte", strings.Repeat("漢字", 100), 600, 600},
		{"base64, near a token a byte", encoded, len(encoded) * 9 / 10, len(encoded)},
		{"a path is no base64", "internal/llamasim/testdata/captures/chat_stream_usage.json", 8, 20},
		{"a rule", strings.Repeat("=", 60), 10, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			if n := CountTokens(c.text); n < c.min || n > c.max {
				t.Errorf("%d tokens, want %d to %d", n, c.min, c.max)
			}
		})
	}
}

// samples are texts of all kinds, with and without markers.
func samples(t testing.TB) []string {
	random := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 1000)
	for i := range noise {
		noise[i] = " \n\tab_Z09+/={}()<|>.,\x00é"[random.IntN(22)]
	}
	code := source(t)
	return []string{
		code[:1500],
		strings.Repeat("漢字 and words, ", 50),
		string(noise),
		base64.StdEncoding.EncodeToString(noise),
		"a\x00b\xff\xfe" + strings.Repeat("x", 70) + "++" + strings.Repeat("y", 70),
		"<|im_start|>user\nx<|im_end|>\n<tool_call>\n{\"a\": 1}\n</tool_call> <think>\n\n</think>",
	}
}

func TestTokens_StandForTheirText(t *testing.T) {
	for _, text := range samples(t) {
		var back []byte
		for _, token := range tokenize(text) {
			piece := tokenText(token)
			if len(piece) != tokenLen(token) {
				t.Fatalf("token %d is %q but claims %d bytes", token, piece, tokenLen(token))
			}
			back = append(back, piece...)
		}
		if string(back) != text {
			t.Errorf("tokens of %.40q... do not add up to it", text)
		}
	}
}

// The tokens of a beginning are the beginning of the tokens, all but the last.
func TestTokens_PrefixStable(t *testing.T) {
	for _, text := range samples(t) {
		whole := appendTokens(nil, text, false)
		for cut := range len(text) {
			part := appendTokens(nil, text[:cut], false)
			if len(part) > len(whole) {
				t.Fatalf("%.40q... has %d tokens up to byte %d, %d in all", text, len(part), cut, len(whole))
			}
			if n := commonPrefix(part, whole); n < len(part)-1 {
				t.Fatalf("%.40q... shares %d of %d tokens with its beginning up to byte %d", text, n, len(part), cut)
			}
		}
	}
}

func FuzzTokens(f *testing.F) {
	for _, text := range samples(f) {
		text = text[:min(len(text), 150)] // long seeds take forever to minimise
		f.Add(text, len(text)/2)
	}
	f.Fuzz(func(t *testing.T, text string, cut int) {
		if cut < 0 || cut > len(text) {
			return
		}
		whole, part := appendTokens(nil, text, false), appendTokens(nil, text[:cut], false)
		if len(part) > len(whole) || commonPrefix(part, whole) < len(part)-1 {
			t.Errorf("not stable at %d", cut)
		}
		var back strings.Builder
		for _, token := range tokenize(text) {
			back.WriteString(tokenText(token))
		}
		if back.String() != text {
			t.Error("tokens do not add up to the text")
		}
	})
}

func TestTokenize_Endpoint(t *testing.T) {
	server := start(t, New(Options{}))
	const text = "<|im_start|>user\nhello wörld<|im_end|>"
	got := post(t, server, "/tokenize", string(append(appendString([]byte(`{"content":`), text), '}')))
	tokens := members([]byte(got.body))["tokens"]
	if n := len(elements(tokens)); n != CountTokens(text) {
		t.Errorf("%d tokens, CountTokens says %d", n, CountTokens(text))
	}
	back := post(t, server, "/detokenize", `{"tokens":`+string(tokens)+`}`)
	if s := members([]byte(back.body)).text("content"); s != text {
		t.Errorf("detokenized to %q", s)
	}
	plain := post(t, server, "/tokenize", `{"content":"<|im_end|>","parse_special":false}`)
	if n := len(elements(members([]byte(plain.body))["tokens"])); n < 2 {
		t.Errorf("a marker was parsed: %s", plain.body)
	}
}

func TestPlan_NeverSplitsACharacter(t *testing.T) {
	const text = "naïve 漢字 😀 x"
	p := makePlan(Reply{Text: text}, planOptions{budget: 1000})
	var all strings.Builder
	for _, f := range p.fragments {
		if !utf8.ValidString(f.text) {
			t.Errorf("fragment %q", f.text)
		}
		all.WriteString(f.text)
	}
	if all.String() != text {
		t.Errorf("got %q", all.String())
	}
	if want := CountTokens(text) + 1; len(p.fragments) != want {
		t.Errorf("%d tokens, want %d and the end of the turn", len(p.fragments), want)
	}
}
