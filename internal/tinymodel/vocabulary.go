package tinymodel

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
)

// special are the tokens behind the learned ones. Their order fixes their ids.
var special = []struct {
	text string
	kind int32
}{
	{"<|endoftext|>", kindControl},
	{"<|im_start|>", kindControl},
	{"<|im_end|>", kindControl},
	// Markup that a client may see is user-defined rather than control, because
	// the server leaves control tokens out of the text it returns, and its
	// parser needs to read these.
	{"<tool_call>", kindUser},
	{"</tool_call>", kindUser},
	{"<tool_response>", kindUser},
	{"</tool_response>", kindUser},
	{"<think>", kindUser},
	{"</think>", kindUser},
	// With these /infill works as well.
	{"<|fim_prefix|>", kindControl},
	{"<|fim_suffix|>", kindControl},
	{"<|fim_middle|>", kindControl},
	{"<|fim_pad|>", kindControl},
	// Spare ones keep the vocabulary a round number.
	{"<|spare_0|>", kindControl},
	{"<|spare_1|>", kindControl},
	{"<|spare_2|>", kindControl},
}

const (
	specialCount = 16
	firstSpecial = VocabularySize - specialCount
)

// Token kinds as GGUF numbers them.
const (
	kindNormal  int32 = 1
	kindControl int32 = 3
	kindUser    int32 = 4
)

// vocabulary is a trained byte-pair encoding without the special tokens. The
// first 256 tokens are the bytes.
type vocabulary struct {
	tokens []string // raw bytes of each token
	counts []int    // occurrences in the training text
	merges [][2]int // pairs of tokens to join, in order of priority
	bytes  int      // length of the training text
}

// pair is two neighbouring tokens. Two 32-bit halves in one integer make a
// cheap map key.
type pair uint64

func pairOf(left, right int32) pair { return pair(left)<<32 | pair(right) }

func (p pair) split() (left, right int32) { return int32(p >> 32), int32(p) }

// learn trains a vocabulary of size tokens on text: again and again, the most
// frequent pair of neighbouring tokens becomes a token.
//
// Recounting all pairs for each of some 1,800 merges would take minutes. Only
// the words that contain the merged pair change, so learn keeps for every pair
// the words it was seen in, adjusts the counts of just those, and finds the
// next pair with a heap whose outdated entries are corrected when they surface.
func learn(text string, size int) (*vocabulary, error) {
	v := &vocabulary{bytes: len(text)}
	ids := make(map[string]int32, size)
	for b := range 256 {
		token := string([]byte{byte(b)})
		ids[token] = int32(b)
		v.tokens = append(v.tokens, token)
	}

	t := newTrainer(text)
	for len(v.tokens) < size {
		p, ok := t.next()
		if !ok {
			return nil, fmt.Errorf("tinymodel: %d bytes of training text give %d tokens, need %d", len(text), len(v.tokens), size)
		}
		left, right := p.split()
		joined := v.tokens[left] + v.tokens[right]
		// The same text can arise from two different pairs. It is one token all
		// the same: a file that lists a token twice is refused.
		id, known := ids[joined]
		if !known {
			id = int32(len(v.tokens))
			ids[joined] = id
			v.tokens = append(v.tokens, joined)
		}
		v.merges = append(v.merges, [2]int{int(left), int(right)})
		t.merge(p, id)
	}

	v.counts = make([]int, size)
	for _, w := range t.words {
		for _, id := range w.tokens {
			v.counts[id] += w.count
		}
	}
	return v, nil
}

// trainer is the state of one training run.
type trainer struct {
	words []word
	pairs map[pair]*occurrences
	queue candidates
}

// word is a distinct piece of the training text in its present encoding.
type word struct {
	tokens []int32
	count  int
}

// occurrences says how often a pair stands in the text, and in which words it
// may be found. The list is never pruned: a word in it may have lost the pair.
type occurrences struct {
	count int
	words []int32
}

func newTrainer(text string) *trainer {
	t := &trainer{pairs: make(map[pair]*occurrences)}
	index := make(map[string]int32)
	for piece := range words(text) {
		i, seen := index[piece]
		if !seen {
			i = int32(len(t.words))
			index[piece] = i
			tokens := make([]int32, len(piece))
			for j := range len(piece) {
				tokens[j] = int32(piece[j])
			}
			t.words = append(t.words, word{tokens: tokens})
		}
		t.words[i].count++
	}
	for i, w := range t.words {
		for j := range len(w.tokens) - 1 {
			o := t.at(pairOf(w.tokens[j], w.tokens[j+1]))
			o.count += w.count
			o.note(int32(i))
		}
	}
	for p, o := range t.pairs {
		t.queue = append(t.queue, candidate{p, o.count})
	}
	heap.Init(&t.queue)
	return t
}

func (t *trainer) at(p pair) *occurrences {
	o := t.pairs[p]
	if o == nil {
		o = new(occurrences)
		t.pairs[p] = o
	}
	return o
}

// note adds a word unless it is the one added last, which is how the same pair
// twice in one word arrives.
func (o *occurrences) note(word int32) {
	if n := len(o.words); n == 0 || o.words[n-1] != word {
		o.words = append(o.words, word)
	}
}

// next returns the most frequent pair, of equals the one with the smallest
// token ids, or false when no pair is left that occurs twice.
func (t *trainer) next() (pair, bool) {
	for len(t.queue) > 0 {
		top := t.queue[0]
		now := t.pairs[top.pair].count
		switch {
		case now == top.count && now >= 2:
			heap.Pop(&t.queue)
			return top.pair, true
		case now < 2:
			heap.Pop(&t.queue)
		default:
			t.queue[0].count = now
			heap.Fix(&t.queue, 0)
		}
	}
	return 0, false
}

// merge replaces the pair p by the token id wherever it occurs.
func (t *trainer) merge(p pair, id int32) {
	left, right := p.split()
	grown := make(map[pair]bool)
	for _, i := range t.pairs[p].words {
		w := &t.words[i]
		if !w.contains(left, right) {
			continue
		}
		for j := range len(w.tokens) - 1 {
			t.pairs[pairOf(w.tokens[j], w.tokens[j+1])].count -= w.count
		}
		w.replace(left, right, id)
		for j := range len(w.tokens) - 1 {
			q := pairOf(w.tokens[j], w.tokens[j+1])
			o := t.at(q)
			o.count += w.count
			// Pairs without the new token stood in this word before, so that
			// they know it already and can only have become rarer.
			if w.tokens[j] == id || w.tokens[j+1] == id {
				o.note(i)
				grown[q] = true
			}
		}
	}
	for q := range grown {
		heap.Push(&t.queue, candidate{q, t.pairs[q].count})
	}
}

func (w *word) contains(left, right int32) bool {
	for j := range len(w.tokens) - 1 {
		if w.tokens[j] == left && w.tokens[j+1] == right {
			return true
		}
	}
	return false
}

// replace puts id in the place of each occurrence of the pair, from the left,
// within the word's own storage.
func (w *word) replace(left, right, id int32) {
	out := w.tokens[:0]
	for j := 0; j < len(w.tokens); j++ {
		if j+1 < len(w.tokens) && w.tokens[j] == left && w.tokens[j+1] == right {
			out = append(out, id)
			j++
			continue
		}
		out = append(out, w.tokens[j])
	}
	w.tokens = out
}

// candidate is a pair with the count it had when it was queued.
type candidate struct {
	pair  pair
	count int
}

// candidates is a heap of the most frequent pairs. Its order is total, so that
// neither map iteration nor duplicates can influence which pair comes first.
type candidates []candidate

func (c candidates) Len() int { return len(c) }

func (c candidates) Less(i, j int) bool {
	if by := cmp.Compare(c[j].count, c[i].count); by != 0 {
		return by < 0
	}
	return c[i].pair < c[j].pair
}

func (c candidates) Swap(i, j int) { c[i], c[j] = c[j], c[i] }

func (c *candidates) Push(x any) { *c = append(*c, x.(candidate)) }

func (c *candidates) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

// printable writes a token in the alphabet that GPT-2 introduced, where each
// byte is one visible character: those that are visible in Latin-1 stand for
// themselves, the others for the characters from U+0100 on. GGUF stores tokens
// and merges that way, since JSON and a blank-separated list of merges could
// not hold raw bytes.
func printable(token string) string {
	var out []rune
	for i := range len(token) {
		out = append(out, byteAlphabet[token[i]])
	}
	return string(out)
}

var byteAlphabet = func() (alphabet [256]rune) {
	visible := func(b rune) bool { return b > ' ' && b < 0x7f || b > 0xa0 && b != 0xad }
	next := rune(0x100)
	for b := range rune(256) {
		if visible(b) {
			alphabet[b] = b
			continue
		}
		alphabet[b] = next
		next++
	}
	return alphabet
}()

// isPlainText says whether the model may utter the token: printable ASCII and
// line feeds. Other bytes would make half characters, which the server holds
// back or replaces.
func isPlainText(token string) bool {
	return !slices.ContainsFunc([]byte(token), func(b byte) bool {
		return b != '\n' && (b < ' ' || b > '~')
	})
}
