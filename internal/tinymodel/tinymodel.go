package tinymodel

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"runtime"
)

// Arch names an architecture that llama.cpp implements. The package comment
// says what each stands for in a test.
type Arch string

// The architectures that Write knows.
const (
	Qwen2  Arch = "qwen2"  // full attention
	Gemma3 Arch = "gemma3" // sliding-window attention, window 256
	LFM2   Arch = "lfm2"   // one recurrent layer, one attention layer
)

// ContextLength is the context that every model claims to have been trained
// for. It only has to be larger than any -c a test asks for.
const ContextLength = 131072

// VocabularySize is the number of tokens of every model: 256 bytes, the merged
// tokens, and the special ones below.
const VocabularySize = 2048

// Special tokens by id. A logit_bias needs the id of a control token: given as
// text, the server would split it into ordinary tokens.
const (
	TokenEndOfText       = firstSpecial + iota // <|endoftext|>
	TokenTurnStart                             // <|im_start|>
	TokenTurnEnd                               // <|im_end|>, the end-of-sequence token
	TokenToolCall                              // <tool_call>
	TokenToolCallEnd                           // </tool_call>
	TokenToolResponse                          // <tool_response>
	TokenToolResponseEnd                       // </tool_response>
	TokenThink                                 // <think>
	TokenThinkEnd                              // </think>
)

// ForceToolCall returns the logit_bias of a request whose answer is a call of
// one of its tools and nothing else. With "parallel_tool_calls": false it is a
// single call; otherwise now and then a second one follows.
//
// The first entry outweighs all other tokens, at the beginning. Without the
// second, the model would spell the closing tag in small pieces, not notice its
// end, and open the next call at once.
func ForceToolCall() [][2]int {
	return [][2]int{{TokenToolCall, 100}, {TokenToolCallEnd, 80}}
}

// Options describe one model. The zero value is a good default.
type Options struct {
	// Arch is the architecture; Qwen2 when empty.
	Arch Arch
	// Template is the chat template stored in the file; [Template] when empty.
	Template string
	// EOSProbability is the chance per token that an answer ends, roughly, under
	// the server's default sampling; 0.01 when zero. A negative value makes a
	// model that never ends by itself.
	EOSProbability float64
	// ToolProbability is the chance per token that an answer opens a tool call.
	// The server parses such a call when the request declares tools.
	ToolProbability float64
	// Seed picks the random weights. Every value, zero too, is a seed.
	Seed uint64
	// Corpus is the text that the tokens are learned from; [Corpus] of the Go
	// installation when empty. It must be long enough, some 100 kB, for a full
	// vocabulary.
	Corpus string
}

// withDefaults fills what the zero value leaves open and refuses what no model
// can be.
func (o Options) withDefaults() (Options, error) {
	switch o.Arch {
	case "":
		o.Arch = Qwen2
	case Qwen2, Gemma3, LFM2:
	default:
		return o, fmt.Errorf("tinymodel: unknown architecture %q", o.Arch)
	}
	if o.Template == "" {
		o.Template = Template
	}
	if o.EOSProbability == 0 {
		o.EOSProbability = 0.01
	}
	if o.ToolProbability < 0 {
		o.ToolProbability = 0
	}
	if sum := max(o.EOSProbability, 0) + o.ToolProbability; !(sum < 1) {
		return o, fmt.Errorf("tinymodel: probabilities of ending and of calling a tool sum to %v, which leaves nothing for text", sum)
	}
	return o, nil
}

// Write writes the model that o describes as a GGUF file. It takes a
// fraction of a second, most of it for the training of the vocabulary.
func Write(w io.Writer, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if o.Corpus == "" {
		if o.Corpus, err = Corpus(); err != nil {
			return err
		}
	}
	vocab, err := learn(o.Corpus, firstSpecial)
	if err != nil {
		return err
	}
	return encode(w, describe(o, vocab), weights(o, vocab))
}

// sources is this package itself. Key hashes it so that a cached file cannot
// outlive a change to the code that wrote it; a version number would have to be
// remembered by whoever makes the change.
//
//go:embed *.go *.jinja
var sources embed.FS

// Key identifies the bytes that Write would produce for o, without producing
// them: equal keys mean equal files. It is meant as a file name in a cache.
func (o Options) Key() (string, error) {
	o, err := o.withDefaults()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	// The Go version stands for the default corpus, which comes with it; the
	// processor, for the last bits of its floating-point arithmetic.
	fmt.Fprintf(h, "%s %s %#v\n", runtime.Version(), runtime.GOARCH, o)
	err = fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := sources.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n%s\n", path, len(text), text)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("tinymodel: key: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)[:10]), nil
}
