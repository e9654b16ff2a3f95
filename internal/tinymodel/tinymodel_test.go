package tinymodel

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// file is a GGUF file as a reader sees it.
type file struct {
	meta    map[string]any
	tensors map[string]tensor
}

// reader takes values off the front of a file. Running off its end panics,
// which in a test is as good as an error.
type reader struct{ rest []byte }

func (r *reader) take(n int) []byte {
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *reader) u32() uint32 { return le.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return le.Uint64(r.take(8)) }
func (r *reader) str() string { return string(r.take(int(r.u64()))) }

func (r *reader) value(t *testing.T, kind uint32) any {
	t.Helper()
	switch kind {
	case typeUint32:
		return r.u32()
	case typeInt32:
		return int32(r.u32())
	case typeFloat32:
		return math.Float32frombits(r.u32())
	case typeBool:
		return r.take(1)[0] == 1
	case typeString:
		return r.str()
	case typeArray:
		of := r.u32()
		list := make([]any, r.u64())
		for i := range list {
			list[i] = r.value(t, of)
		}
		return list
	}
	t.Fatalf("unexpected type %d", kind)
	return nil
}

// parse reads a file back the way a loader does.
func parse(t *testing.T, raw []byte) file {
	t.Helper()
	r := &reader{raw}
	if magic, version := string(r.take(4)), r.u32(); magic != "GGUF" || version != 3 {
		t.Fatalf("file begins with %q version %d", magic, version)
	}
	tensors, pairs := r.u64(), r.u64()
	f := file{meta: map[string]any{}, tensors: map[string]tensor{}}
	for range pairs {
		key := r.str()
		if _, twice := f.meta[key]; twice {
			t.Errorf("key %s twice", key)
		}
		f.meta[key] = r.value(t, r.u32())
	}
	type entry struct {
		tensor
		offset int
	}
	var entries []entry
	for range tensors {
		e := entry{tensor: tensor{name: r.str()}}
		n := 1
		for range r.u32() {
			dim := int(r.u64())
			e.shape = append(e.shape, dim)
			n *= dim
		}
		if kind := r.u32(); kind != tensorFloat32 {
			t.Errorf("tensor %s has type %d", e.name, kind)
		}
		e.data = make([]float32, n)
		e.offset = int(r.u64())
		entries = append(entries, e)
	}
	r.take(aligned(len(raw)-len(r.rest)) - (len(raw) - len(r.rest)))
	data := r.rest
	end := 0
	for _, e := range entries {
		if e.offset%ggufAlignment != 0 || e.offset < end {
			t.Errorf("tensor %s at offset %d, the one before ends at %d", e.name, e.offset, end)
		}
		for i := range e.data {
			e.data[i] = math.Float32frombits(le.Uint32(data[e.offset+4*i:]))
		}
		end = e.offset + e.size()
		f.tensors[e.name] = e.tensor
	}
	if rest := len(data) - end; rest < 0 || rest >= ggufAlignment {
		t.Errorf("%d bytes behind the last tensor", rest)
	}
	return f
}

// sample is a part of the default corpus that is enough for a vocabulary and
// saves the race detector most of the training.
var sample = sync.OnceValues(func() (string, error) {
	text, err := Corpus()
	return text[:min(len(text), 300_000)], err
})

func write(t *testing.T, o Options) []byte {
	t.Helper()
	var err error
	if o.Corpus, err = sample(); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Write(&b, o); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestWrite_ParsesBack(t *testing.T) {
	for _, arch := range []Arch{Qwen2, Gemma3, LFM2} {
		t.Run(string(arch), func(t *testing.T) {
			f := parse(t, write(t, Options{Arch: arch, Template: "a template"}))
			prefix := string(arch)
			for key, want := range map[string]any{
				"general.architecture":          prefix,
				prefix + ".context_length":      uint32(131072),
				prefix + ".embedding_length":    uint32(width),
				"tokenizer.ggml.model":          "gpt2",
				"tokenizer.ggml.pre":            "qwen2",
				"tokenizer.ggml.eos_token_id":   uint32(2034),
				"tokenizer.ggml.add_bos_token":  false,
				"tokenizer.chat_template":       "a template",
				prefix + ".feed_forward_length": uint32(innerWidth),
			} {
				if diff := cmp.Diff(want, f.meta[key]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", key, diff)
				}
			}
			for name, want := range map[string][]int{
				"token_embd.weight":        {width, VocabularySize},
				"output.weight":            {width, VocabularySize},
				"blk.1.attn_output.weight": {heads * headWidth, width},
				"blk.0.ffn_down.weight":    {innerWidth, width},
			} {
				if diff := cmp.Diff(want, f.tensors[name].shape); diff != "" {
					t.Errorf("shape of %s (-want +got):\n%s", name, diff)
				}
			}
		})
	}
}

func TestWrite_Vocabulary(t *testing.T) {
	f := parse(t, write(t, Options{}))
	tokens := f.meta["tokenizer.ggml.tokens"].([]any)
	kinds := f.meta["tokenizer.ggml.token_type"].([]any)
	if len(tokens) != VocabularySize || len(kinds) != VocabularySize {
		t.Fatalf("%d tokens, %d types, want %d of both", len(tokens), len(kinds), VocabularySize)
	}
	ids := make(map[string]int)
	for id, token := range tokens {
		if other, twice := ids[token.(string)]; twice {
			t.Errorf("token %q is %d and %d", token, other, id)
		}
		ids[token.(string)] = id
	}
	// Tests elsewhere put these numbers into requests.
	for token, id := range map[string]int{
		"A": 'A', "Ċ": '\n', "Ġ": ' ', // bytes are their own ids
		"<|endoftext|>": 2032, "<|im_start|>": 2033, "<|im_end|>": 2034,
		"<tool_call>": 2035, "</tool_call>": 2036,
		"<tool_response>": 2037, "</tool_response>": 2038,
		"<think>": 2039, "</think>": 2040,
	} {
		if got, ok := ids[token]; !ok || got != id {
			t.Errorf("token %q is %d (known: %v), want %d", token, got, ok, id)
		}
	}
	for _, m := range f.meta["tokenizer.ggml.merges"].([]any) {
		left, right, ok := strings.Cut(m.(string), " ")
		if _, known := ids[left+right]; !ok || !known {
			t.Errorf("merge %q makes no token", m)
		}
	}
}

func TestWrite_IsDeterministic(t *testing.T) {
	sum := func(o Options) [32]byte { return sha256.Sum256(write(t, o)) }
	if once, again := sum(Options{}), sum(Options{}); once != again {
		t.Error("two files from the same options differ")
	}
	if sum(Options{}) == sum(Options{Seed: 1}) {
		t.Error("another seed gives the same file")
	}
}

// A test that needs a model waits for this once per machine. The budget is half
// a second; recounting all pairs for every merge would take minutes.
func BenchmarkWrite(b *testing.B) {
	for b.Loop() {
		if err := Write(io.Discard, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestWrite_Refuses(t *testing.T) {
	cases := map[string]Options{
		`tinymodel: unknown architecture "gpt5"`: {Arch: "gpt5"},
		"tinymodel: probabilities of ending and of calling a tool sum to 1.5, which leaves nothing for text": {EOSProbability: 0.75, ToolProbability: 0.75},
		"tinymodel: 3 bytes of training text give 256 tokens, need 2032":                                     {Corpus: "abc"},
	}
	for want, o := range cases {
		if err := Write(io.Discard, o); err == nil || err.Error() != want {
			t.Errorf("Write says %v, want %s", err, want)
		}
	}
	text, err := sample()
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("disk full")
	if err := Write(failingWriter{broken}, Options{Corpus: text}); !errors.Is(err, broken) {
		t.Errorf("Write to a failing writer says %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// The reserved dimensions carry the bias and the markers unharmed only if no
// layer touches them.
func TestWeights_LayersLeaveReservedDimensionsAlone(t *testing.T) {
	for _, arch := range []Arch{Qwen2, Gemma3, LFM2} {
		f := parse(t, write(t, Options{Arch: arch}))
		for name, w := range f.tensors {
			switch {
			case strings.HasSuffix(name, "attn_output.weight"),
				strings.HasSuffix(name, "ffn_down.weight"),
				strings.HasSuffix(name, "out_proj.weight"):
				for i, x := range w.data[:reserved*w.shape[0]] {
					if x != 0 {
						t.Errorf("%s %s writes to dimension %d", arch, name, i/w.shape[0])
						break
					}
				}
			case strings.HasSuffix(name, "attn_norm.weight"), strings.HasSuffix(name, "ffn_norm.weight"):
				if diff := cmp.Diff(make([]float32, reserved), w.data[:reserved]); diff != "" {
					t.Errorf("%s %s lets reserved dimensions through:\n%s", arch, name, diff)
				}
			}
		}
	}
}

func TestBiases_OfSpecialTokens(t *testing.T) {
	bias := func(o Options, id int) float64 {
		o, err := o.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		v := &vocabulary{tokens: []string{"a", "\x00", `"`}, counts: []int{5, 5, 5}}
		return biases(o, v)[id]
	}
	for _, c := range []struct {
		name string
		o    Options
		id   int
		want float64
	}{
		{"end by default", Options{}, TokenTurnEnd, math.Log(0.01 / truncation)},
		{"end as asked", Options{EOSProbability: 0.2}, TokenTurnEnd, math.Log(0.2 / truncation)},
		{"no end", Options{EOSProbability: -1}, TokenTurnEnd, silence},
		{"no call", Options{}, TokenToolCall, silence},
		{"call as asked", Options{ToolProbability: 0.1}, TokenToolCall, math.Log(0.1 / truncation)},
		{"no unprintable text", Options{}, 1, silence},
		{"no other control token", Options{}, TokenTurnStart, silence},
	} {
		if got := bias(c.o, c.id); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: bias %v, want %v", c.name, got, c.want)
		}
	}
}

func TestKey(t *testing.T) {
	key := func(o Options) string {
		t.Helper()
		k, err := o.Key()
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	if a, b := key(Options{}), key(Options{Arch: Qwen2, EOSProbability: 0.01, Template: Template}); a != b {
		t.Errorf("spelling out the defaults changes the key: %s, %s", a, b)
	}
	seen := make(map[string]int)
	for i, o := range []Options{
		{}, {Arch: LFM2}, {Template: TemplateStrict}, {EOSProbability: 0.5},
		{ToolProbability: 0.5}, {Seed: 1}, {Corpus: "text"},
	} {
		k := key(o)
		if j, twice := seen[k]; twice {
			t.Errorf("options %d and %d have the same key", i, j)
		}
		seen[k] = i
	}
	if _, err := (Options{Arch: "gpt5"}).Key(); err == nil {
		t.Error("impossible options have a key")
	}
}
