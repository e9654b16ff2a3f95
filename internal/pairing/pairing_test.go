package pairing

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/compactproxy/compactproxy/internal/corpus"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// list builds messages from a short notation: "U", "S", "A" (no calls),
// "A[a,b]" (calls with these ids), "T(a)" (a result), "A![a]" (arguments cut
// off). A "-" as id stands for a missing one.
func list(t testing.TB, notation string) []transcript.Message {
	t.Helper()
	var out []transcript.Message
	for i, word := range strings.Fields(notation) {
		var raw string
		switch {
		case strings.HasPrefix(word, "T("):
			id := strings.TrimSuffix(word[2:], ")")
			raw = fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":"result %d of %s"}`, strings.ReplaceAll(id, "-", ""), i, id)
		case strings.HasPrefix(word, "A[") || strings.HasPrefix(word, "A!["):
			arguments := `{\"x\": 1}`
			if strings.HasPrefix(word, "A!") {
				arguments = `{\"x\": \"unfini`
			}
			ids := strings.Split(strings.TrimSuffix(word[strings.Index(word, "[")+1:], "]"), ",")
			var calls []string
			for _, id := range ids {
				calls = append(calls, fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":"f","arguments":"%s"}}`, strings.ReplaceAll(id, "-", ""), arguments))
			}
			raw = `{"role":"assistant","content":null,"tool_calls":[` + strings.Join(calls, ",") + `]}`
		default:
			raw = fmt.Sprintf(`{"role":%q,"content":"text %d"}`, map[string]string{"U": "user", "S": "system", "A": "assistant"}[word], i)
		}
		m, err := transcript.ParseMessage([]byte(raw))
		if err != nil {
			t.Fatalf("%s: %v", word, err)
		}
		out = append(out, m)
	}
	return out
}

// notation is the inverse of list; texts of our own show as words.
func notation(messages []transcript.Message) string {
	var words []string
	for i := range messages {
		m := &messages[i]
		word := map[transcript.Role]string{transcript.User: "U", transcript.System: "S", transcript.Assistant: "A", transcript.Tool: "T"}[m.Role]
		var ids []string
		for _, c := range m.Calls {
			ids = append(ids, strings.ReplaceAll("x"+c.ID, "x", ""))
		}
		if len(ids) > 0 {
			word += "[" + strings.Join(ids, ",") + "]"
		}
		if m.Role == transcript.Tool {
			word += "(" + m.Answers + ")"
		}
		if strings.Contains(m.Text(), noResultText) {
			word += "none"
		}
		if strings.Contains(m.Text(), orphanLabel) {
			word += "orphan"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func TestRepair(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     string // after repair; "" means: legal as it is
		kinds    []Kind
	}{
		{"plain round", "S U A[a] T(a) A U", "", nil},
		{"parallel batch out of call order", "U A[a,b] T(b) T(a) A", "", nil},
		{"the same id again in a later turn", "U A[a] T(a) A[a] T(a) U", "", nil},
		{"missing ids by position", "U A[-,-] T(-) T(-) A", "", nil},
		{"repeated ids in one batch by position", "U A[a,a] T(a) T(a) A", "", nil},
		{"call without id, result with one", "U A[-] T(a) A", "", nil},
		{"orphan first", "T(a) U A", "Uorphan A", []Kind{OrphanResult}},
		{"orphan after its batch was cut", "S U T(b) A", "S Uorphan A", []Kind{OrphanResult}},
		{"orphan alone", "T(a)", "Uorphan", []Kind{OrphanResult}},
		{"orphan behind a complete batch, then a user", "U A[a] T(a) T(x) U A", "U A[a] T(a) Uorphan A", []Kind{OrphanResult}},
		{"orphan behind a complete batch, then an assistant", "U A[a] T(a) T(x) A", "U A[a] T(a) Uorphan A", []Kind{OrphanResult}},
		{"call without result, user goes on", "U A[a] U", "U A[a] T(a)none U", []Kind{UnansweredCall}},
		{"call without result at the end", "U A[a]", "U A[a] T(a)none", []Kind{UnansweredCall}},
		{"half a parallel batch", "U A[a,b] T(a) A", "U A[a,b] T(a) T(b)none A", []Kind{UnansweredCall}},
		{"text between results", "U A[a,b] T(a) U T(b) A", "U A[a,b] T(a) T(b) U A", []Kind{Interleaved}},
		{"text before the result", "U A[a] U T(a) A", "U A[a] T(a) U A", []Kind{Interleaved}},
		{"result twice", "U A[a] T(a) T(a) A", "U A[a] T(a) A", []Kind{DuplicateResult}},
		{"result in the next batch", "U A[a] A[b] T(b) T(a)", "U A[a] T(a)none A[b] T(b) Uorphan", []Kind{UnansweredCall, OrphanResult}},
		{"arguments cut by max_tokens", "U A![a] T(a) A", "U A[a] T(a) A", []Kind{BadArguments}},
		{"empty", "", "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := list(t, tc.in)
			var kinds []Kind
			for _, v := range Check(in) {
				kinds = append(kinds, v.Kind)
			}
			if diff := cmp.Diff(tc.kinds, kinds); diff != "" {
				t.Errorf("kinds (-want +got):\n%s", diff)
			}
			r := Repair(in)
			want := tc.want
			if want == "" {
				want = notation(in)
				if r.Violations != nil || len(in) > 0 && &r.Messages[0] != &in[0] {
					t.Errorf("a legal list was rebuilt")
				}
			}
			if got := notation(r.Messages); got != want {
				t.Errorf("repaired\n got %s\nwant %s", got, want)
			}
			if again := Check(r.Messages); again != nil {
				t.Errorf("still illegal: %v", again)
			}
		})
	}
}

func TestRepair_BadArgumentsAreKeptAsText(t *testing.T) {
	r := Repair(list(t, "U A![a] T(a)"))
	var got map[string]string
	if err := json.Unmarshal(r.Messages[1].Calls[0].Arguments, &got); err != nil {
		t.Fatal(err)
	}
	if got[argumentsField] != `{"x": "unfini` {
		t.Errorf("arguments = %q", got)
	}
}

// TestRepair_GrowsAtTheEnd: what was forwarded for a list stays a prefix of
// what is forwarded once the client has appended to it, batches being complete.
func TestRepair_GrowsAtTheEnd(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		full := list(t, randomNotation(rng, 14))
		whole := Repair(full)
		for _, end := range whole.End {
			if end < 0 || end == len(full) || full[end].Role != transcript.Assistant {
				continue
			}
			part := Repair(full[:end])
			if !strings.HasPrefix(raws(whole.Messages), raws(part.Messages)) {
				t.Fatalf("%s\ncut at %d\nshort %s\nlong  %s", notation(full), end, raws(part.Messages), raws(whole.Messages))
			}
		}
	}
}

func raws(list []transcript.Message) string {
	var b strings.Builder
	for i := range list {
		b.Write(list[i].Raw())
		b.WriteByte('\n')
	}
	return b.String()
}

func randomNotation(rng *rand.Rand, n int) string {
	var words []string
	for range rng.IntN(n) {
		words = append(words, []string{"U", "S", "A", "A[a]", "A[a,b]", "A![a]", "A[-,-]", "T(a)", "T(b)", "T(-)", "T(a)", "T(x)"}[rng.IntN(12)])
	}
	return strings.Join(words, " ")
}

func FuzzPairing(f *testing.F) {
	for i := range 40 {
		f.Add(randomNotation(rand.New(rand.NewPCG(uint64(i), 7)), 20))
	}
	f.Fuzz(func(t *testing.T, words string) {
		var legal []string
		for _, w := range strings.Fields(words) {
			if strings.Contains(" U S A A[a] A[a,b] A![a] A[-,-] A[-] T(a) T(b) T(-) T(x) ", " "+w+" ") {
				legal = append(legal, w)
			}
		}
		in := list(t, strings.Join(legal, " "))
		r := Repair(in)
		if v := Check(r.Messages); v != nil {
			t.Fatalf("%s repaired to %s: %v", notation(in), notation(r.Messages), v)
		}
		if r.Violations != nil {
			last := 0
			for _, end := range r.End {
				if end >= 0 {
					if end <= last && end != 0 {
						t.Fatalf("ends do not rise: %v", r.End)
					}
					last = end
				}
			}
			if len(in) > 0 && last != len(in) {
				t.Fatalf("the last end is %d of %d", last, len(in))
			}
		}
		if second := Repair(r.Messages); second.Violations != nil {
			t.Fatalf("repairing twice differs")
		}
	})
}

// TestMalformedSessions repairs real broken histories.
func TestMalformedSessions(t *testing.T) {

	files := corpus.Files(t, "malformed")
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			body, err := transcript.Parse(raw)
			if err != nil {
				t.Fatal(err)
			}
			r := Repair(body.Messages)
			if r.Violations == nil {
				t.Error("found nothing to repair")
			}
			if v := Check(r.Messages); v != nil {
				t.Errorf("still illegal: %v", v)
			}
		})
	}
}
