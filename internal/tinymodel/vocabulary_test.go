package tinymodel

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWords(t *testing.T) {
	for _, c := range []struct {
		name string
		text string
		want []string
	}{
		{"a space belongs to the word behind it", "one two", []string{"one", " two"}},
		{"so does one other character", "a.b _c", []string{"a", ".b", " _", "c"}},
		{"contractions in either case", "it's WE'RE 'ok", []string{"it", "'s", " WE", "'RE", " '", "ok"}},
		{"digits stand alone", "x=42", []string{"x", "=", "4", "2"}},
		{"symbols take the line breaks behind them", "f() {\n\n}", []string{"f", "()", " {\n\n", "}"}},
		{"line breaks end a run of blanks", "a \n\t\tb", []string{"a", " \n", "\t", "\tb"}},
		{"a run leaves its last blank to the word", "a    b", []string{"a", "   ", " b"}},
		{"a run leaves its last blank to symbols too", "a   == b", []string{"a", "  ", " ==", " b"}},
		{"a digit takes no blank", "a  1", []string{"a", " ", " ", "1"}},
		{"blanks at the end stay together", "a   ", []string{"a", "   "}},
		{"letters of any script", "für пять", []string{"für", " пять"}},
		{"bytes that are no text", "a\xffb\xc3", []string{"a", "\xffb", "\xc3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, slices.Collect(words(c.text))); diff != "" {
				t.Errorf("words of %q (-want +got):\n%s", c.text, diff)
			}
		})
	}
}

func FuzzWords(f *testing.F) {
	f.Add("it's a test:\r\n\tx  := 1 \n")
	f.Add("\u00a0\u2028'\x80 é")
	f.Fuzz(func(t *testing.T, text string) {
		var b strings.Builder
		for w := range words(text) {
			if w == "" {
				t.Fatalf("empty word in %q", text)
			}
			b.WriteString(w)
		}
		if b.String() != text {
			t.Errorf("words of %q join to %q", text, b.String())
		}
	})
}

// slowly trains as the definition of byte-pair encoding says: count everything,
// merge, count everything again.
func slowly(text string, size int) (tokens []string, merges [][2]int) {
	for b := range 256 {
		tokens = append(tokens, string([]byte{byte(b)}))
	}
	var pieces [][]int
	for piece := range words(text) {
		var ids []int
		for i := range len(piece) {
			ids = append(ids, int(piece[i]))
		}
		pieces = append(pieces, ids)
	}
	for len(tokens) < size {
		counts := make(map[[2]int]int)
		for _, ids := range pieces {
			for i := range len(ids) - 1 {
				counts[[2]int{ids[i], ids[i+1]}]++
			}
		}
		var best [2]int
		for p, n := range counts {
			if n > counts[best] || n == counts[best] && slices.Compare(p[:], best[:]) < 0 {
				best = p
			}
		}
		joined := tokens[best[0]] + tokens[best[1]]
		id := slices.Index(tokens, joined)
		if id < 0 {
			id = len(tokens)
			tokens = append(tokens, joined)
		}
		merges = append(merges, best)
		for k, ids := range pieces {
			var out []int
			for i := 0; i < len(ids); i++ {
				if i+1 < len(ids) && [2]int{ids[i], ids[i+1]} == best {
					out = append(out, id)
					i++
				} else {
					out = append(out, ids[i])
				}
			}
			pieces[k] = out
		}
	}
	return tokens, merges
}

func TestLearn_AgreesWithTheDefinition(t *testing.T) {
	corpus, err := Corpus()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"code":        corpus[len(corpus)/2:][:20_000],
		"prose":       corpus[:20_000],
		"repetitions": strings.Repeat("aaaa aaaaaaa abababab baba ", 50) + strings.Repeat("abc bcd abcd ", 30),
	} {
		size := 256 + 150
		if name == "repetitions" {
			size = 256 + 15
		}
		v, err := learn(text, size)
		if err != nil {
			t.Fatal(err)
		}
		tokens, merges := slowly(text, size)
		if diff := cmp.Diff(tokens, v.tokens); diff != "" {
			t.Errorf("%s: tokens (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(merges, v.merges); diff != "" {
			t.Errorf("%s: merges (-want +got):\n%s", name, diff)
		}
	}
}

func TestLearn_CompressesCode(t *testing.T) {
	corpus, err := Corpus()
	if err != nil {
		t.Fatal(err)
	}
	v, err := learn(corpus, firstSpecial)
	if err != nil {
		t.Fatal(err)
	}
	total, length := 0, 0
	for id, n := range v.counts {
		total += n
		length += n * len(v.tokens[id])
	}
	if length != len(corpus) {
		t.Errorf("the tokens cover %d of %d bytes", length, len(corpus))
	}
	ratio := float64(len(corpus)) / float64(total)
	t.Logf("%d bytes, %d tokens, %.2f bytes a token", len(corpus), total, ratio)
	if ratio < 2.5 || ratio > 4 {
		t.Errorf("%.2f bytes a token, want about 3", ratio)
	}
}

func TestPrintable(t *testing.T) {
	seen := make(map[string]bool)
	for b := range 256 {
		p := printable(string([]byte{byte(b)}))
		if strings.ContainsAny(p, " \n\t\x00") || seen[p] {
			t.Errorf("byte %#x is %q", b, p)
		}
		seen[p] = true
	}
	if got, want := printable(" if\n\té"), "ĠifĊĉÃ©"; got != want {
		t.Errorf("printable gives %q, want %q", got, want)
	}
}
