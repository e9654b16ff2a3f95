package tinymodel

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Sizes of every model. A cell of the key-value cache is 256 bytes, so that a
// large -c costs little memory.
const (
	width      = 64 // of the residual stream
	layers     = 2
	heads      = 4
	kvHeads    = 2
	headWidth  = width / heads
	innerWidth = 2 * width
	convWidth  = 3   // taps of a recurrent layer
	window     = 256 // tokens of a sliding window
)

// Random weights alone make a model whose every token is as likely as any
// other: binary rubbish that never ends. Three dimensions of the residual
// stream are therefore not left to chance. The token embeddings set them, no
// layer reads or writes them, and the output layer turns them into logits.
const (
	// onCall is set while the last token is <tool_call>. It demands the line
	// feed that makes the server parse what follows as a call.
	onCall = iota
	// onCallEnd is set while the last token is </tool_call>. It ends the turn;
	// otherwise a request that forces calls would get them without end.
	onCallEnd
	// always is the same for every token and carries the output's bias: how
	// often each token is uttered. Only one of the architectures has a bias of
	// its own there, so this stands in for it in all of them.
	always
	// reserved is the number of these dimensions.
	reserved
)

const (
	// carrier is the value of the dimension always. It is large beside the
	// random part of the stream, whose length would otherwise, by way of the
	// final normalization, change the bias from token to token.
	carrier = 100.0
	// marker is the value of onCall or onCallEnd when set.
	marker = 200.0
	// insist is the logit per unit of a marker. It has to outweigh any bias that
	// a request can reasonably put on another token.
	insist = 20.0
	// noise is the standard deviation of the random part of a logit, which
	// makes the answer depend on the prompt. With more, answers get caught in
	// loops of a few tokens where min-p never lets the end through.
	noise = 1.0
	// silence is the logit of a token that must not be uttered by chance. A
	// request's logit_bias of a little more than this brings it back.
	silence = -60.0
	// truncation is how much likelier a token becomes that survives the server's
	// default sampling (top-k 40, top-p 0.95, min-p 0.05). With this figure the
	// mean answer of the three architectures has 70 to 115 tokens.
	truncation = 2.0
	// touch scales what the layers add to the stream. At full strength the sum
	// of all layers would drown the last token and, with it, the scale of noise.
	touch = 0.5
	// flatness below 1 makes rare tokens more frequent than in the training
	// text. With exact frequencies half the answer would be blanks and commas.
	flatness = 0.7
)

// describe returns the file's key-value pairs: the shape that goes with the
// tensors from weights, the tokenizer, and the chat template.
func describe(o Options, v *vocabulary) *metadata {
	m := new(metadata)
	arch := string(o.Arch)
	m.text("general.architecture", arch)
	m.text("general.name", "compactproxy-tiny-"+arch)
	m.text("general.size_label", "tiny")
	m.number("general.file_type", tensorFloat32)

	m.number(arch+".context_length", ContextLength)
	m.number(arch+".block_count", layers)
	m.number(arch+".embedding_length", width)
	m.number(arch+".feed_forward_length", innerWidth)
	m.number(arch+".attention.head_count", heads)
	m.real(arch+".attention.layer_norm_rms_epsilon", 1e-6)
	m.real(arch+".rope.freq_base", 1e6)
	switch o.Arch {
	case Qwen2:
		m.number(arch+".attention.head_count_kv", kvHeads)
	case Gemma3:
		m.number(arch+".attention.head_count_kv", kvHeads)
		m.number(arch+".attention.key_length", headWidth)
		m.number(arch+".attention.value_length", headWidth)
		m.number(arch+".attention.sliding_window", window)
	case LFM2:
		// A layer without key-value heads is a recurrent one.
		m.numbers(arch+".attention.head_count_kv", []int32{0, kvHeads})
		m.number(arch+".shortconv.l_cache", convWidth)
		m.number(arch+".vocab_size", VocabularySize)
	}

	tokens := make([]string, 0, VocabularySize)
	kinds := make([]int32, 0, VocabularySize)
	for _, token := range v.tokens {
		tokens = append(tokens, printable(token))
		kinds = append(kinds, kindNormal)
	}
	for _, s := range special {
		tokens = append(tokens, s.text)
		kinds = append(kinds, s.kind)
	}
	merges := make([]string, len(v.merges))
	for i, p := range v.merges {
		merges[i] = printable(v.tokens[p[0]]) + " " + printable(v.tokens[p[1]])
	}
	m.text("tokenizer.ggml.model", "gpt2") // byte-level byte-pair encoding
	m.text("tokenizer.ggml.pre", "qwen2")  // see words
	m.texts("tokenizer.ggml.tokens", tokens)
	m.numbers("tokenizer.ggml.token_type", kinds)
	m.texts("tokenizer.ggml.merges", merges)
	m.number("tokenizer.ggml.bos_token_id", TokenEndOfText)
	m.number("tokenizer.ggml.eos_token_id", TokenTurnEnd)
	m.number("tokenizer.ggml.padding_token_id", TokenEndOfText)
	m.flag("tokenizer.ggml.add_bos_token", false)
	m.text("tokenizer.chat_template", o.Template)
	return m
}

// weights returns the tensors of the model.
func weights(o Options, v *vocabulary) []tensor {
	d := dice{rand.New(rand.NewPCG(o.Seed, 0x7469_6e79))}
	finalNorm := "output_norm.weight"
	if o.Arch == LFM2 {
		finalNorm = "token_embd_norm.weight"
	}
	all := []tensor{
		d.embeddings(o.Arch),
		{finalNorm, []int{width}, outputNorm()},
		d.output(o, v),
	}
	for i := range layers {
		block := d.attention
		if o.Arch == LFM2 && i%2 == 0 {
			block = d.convolution
		}
		for _, t := range append(block(o.Arch), d.feedForward(o.Arch)...) {
			t.name = fmt.Sprintf("blk.%d.%s", i, t.name)
			all = append(all, t)
		}
	}
	return all
}

// dice rolls the random weights.
type dice struct{ *rand.Rand }

// embeddings gives each token a random vector and sets the reserved dimensions.
func (d dice) embeddings(arch Arch) tensor {
	scale := 1.0
	if arch == Gemma3 {
		// llama.cpp multiplies this architecture's embeddings by the root of
		// the width.
		scale = 1 / math.Sqrt(width)
	}
	t := tensor{"token_embd.weight", []int{width, VocabularySize}, make([]float32, width*VocabularySize)}
	for id := range VocabularySize {
		row := t.data[id*width:][:width]
		for i := reserved; i < width; i++ {
			row[i] = float32(scale * d.NormFloat64())
		}
		row[always] = float32(scale * carrier)
		switch id {
		case TokenToolCall:
			row[onCall] = float32(scale * marker)
		case TokenToolCallEnd:
			row[onCallEnd] = float32(scale * marker)
		}
	}
	return t
}

// shrink is what normalization does to the stream's random part: the carrier
// alone has nearly all the length, which normalization makes equal to the root
// of the width.
var shrink = math.Sqrt(width) / carrier

// outputNorm scales the normalized stream so that always is 1 and the random
// part is as large as it was before the carrier joined it.
func outputNorm() []float32 {
	w := make([]float32, width)
	for i := range w {
		w[i] = float32(1 / shrink)
	}
	w[always] = float32(1 / math.Sqrt(width))
	w[onCall], w[onCallEnd] = 1, 1
	return w
}

// layerNorm does the same for what a layer reads, and hides the reserved
// dimensions from it.
func layerNorm() []float32 {
	w := make([]float32, width)
	for i := reserved; i < width; i++ {
		w[i] = float32(1 / shrink)
	}
	return w
}

// output turns the stream into logits: a bias for each token, a random part,
// and what the markers insist on.
func (d dice) output(o Options, v *vocabulary) tensor {
	bias := biases(o, v)
	t := tensor{"output.weight", []int{width, VocabularySize}, make([]float32, width*VocabularySize)}
	for id := range VocabularySize {
		row := t.data[id*width:][:width]
		if id < firstSpecial { // the others get exactly the probability asked for
			for i := reserved; i < width; i++ {
				row[i] = float32(d.NormFloat64() * noise / math.Sqrt(width-reserved))
			}
		}
		row[always] = float32(bias[id])
	}
	t.data['\n'*width+onCall] = insist
	t.data[TokenTurnEnd*width+onCallEnd] = insist
	return t
}

// biases returns the logit that each token has on average.
func biases(o Options, v *vocabulary) []float64 {
	total := 0
	for _, n := range v.counts {
		total += n
	}
	bias := make([]float64, VocabularySize)
	for id := range bias {
		bias[id] = silence
	}
	sum := 0.0
	for id, token := range v.tokens {
		if !isPlainText(token) {
			continue
		}
		bias[id] = flatness * math.Log(float64(v.counts[id]+1)/float64(total))
		if o.ToolProbability > 0 && token == `"` {
			bias[id] += 2.5 // lets a string argument end before the context does
		}
		// The noise of a logit raises the mean of its exponential.
		sum += math.Exp(bias[id] + noise*noise/2)
	}
	// Logits are relative. Moved so that all text together has the weight of
	// one token with logit 0, the others' probabilities are plain logarithms.
	end, call := max(o.EOSProbability, 0)/truncation, o.ToolProbability/truncation
	for id, token := range v.tokens {
		if isPlainText(token) {
			bias[id] -= math.Log(sum / (1 - end - call))
		}
	}
	if end > 0 {
		bias[TokenTurnEnd] = math.Log(end)
	}
	if call > 0 {
		bias[TokenToolCall] = math.Log(call)
	}
	return bias
}

// attention returns an attention layer, without the number of its block.
func (d dice) attention(arch Arch) []tensor {
	ts := []tensor{
		{"attn_norm.weight", []int{width}, layerNorm()},
		d.matrix("attn_q.weight", width, heads*headWidth),
		d.matrix("attn_k.weight", width, kvHeads*headWidth),
		d.matrix("attn_v.weight", width, kvHeads*headWidth),
		d.residual("attn_output.weight", heads*headWidth),
	}
	if arch == Qwen2 {
		return append(ts,
			constant("attn_q.bias", heads*headWidth, 0),
			constant("attn_k.bias", kvHeads*headWidth, 0),
			constant("attn_v.bias", kvHeads*headWidth, 0))
	}
	ts = append(ts,
		constant("attn_q_norm.weight", headWidth, 1),
		constant("attn_k_norm.weight", headWidth, 1))
	if arch == Gemma3 {
		ts = append(ts, constant("post_attention_norm.weight", width, touch/2))
	}
	return ts
}

// convolution returns a recurrent layer, whose state is a short window of past
// inputs that cannot be unwound.
func (d dice) convolution(Arch) []tensor {
	return []tensor{
		{"attn_norm.weight", []int{width}, layerNorm()},
		d.matrix("shortconv.in_proj.weight", width, 3*width),
		d.matrix("shortconv.conv.weight", convWidth, width),
		d.residual("shortconv.out_proj.weight", width),
	}
}

// feedForward returns the second half of a block.
func (d dice) feedForward(arch Arch) []tensor {
	ts := []tensor{
		{"ffn_norm.weight", []int{width}, layerNorm()},
		d.matrix("ffn_gate.weight", width, innerWidth),
		d.matrix("ffn_up.weight", width, innerWidth),
		d.residual("ffn_down.weight", innerWidth),
	}
	if arch == Gemma3 {
		ts = append(ts, constant("post_ffw_norm.weight", width, touch/2))
	}
	return ts
}

// matrix returns random weights that keep the size of what passes through them.
func (d dice) matrix(name string, in, out int) tensor {
	t := tensor{name, []int{in, out}, make([]float32, in*out)}
	for i := range t.data {
		t.data[i] = float32(d.NormFloat64() / math.Sqrt(float64(in)))
	}
	return t
}

// residual returns a matrix whose result is added to the residual stream. It
// leaves the reserved dimensions alone.
func (d dice) residual(name string, in int) tensor {
	t := d.matrix(name, in, width)
	for i := range t.data {
		t.data[i] *= touch
	}
	clear(t.data[:reserved*in])
	return t
}

func constant(name string, n int, value float32) tensor {
	t := tensor{name, []int{n}, make([]float32, n)}
	for i := range t.data {
		t.data[i] = value
	}
	return t
}
