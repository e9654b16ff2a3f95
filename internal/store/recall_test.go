package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// positions of the hits.
func positions(hits []Hit) (out []int) {
	for _, h := range hits {
		out = append(out, h.N)
	}
	return out
}

func TestRecall_Queries(t *testing.T) {
	s := archiveIn(t)
	commit(t, s, "a", epoch, filed("a", 0, 7, "e",
		result(t, "1", "src/store.py: def load_config(path): return Überraschung"),
		result(t, "2", "the py file of the store is another thing; load, config"),
		message(t, `{"role":"user","content":"Please rename frobnicate to tidy_up in the API."}`),
		message(t, `{"role":"assistant","content":"I do.","tool_calls":[{"id":"9","type":"function","function":{"name":"write","arguments":"{\"path\":\"docs/guide.md\",\"content\":\"# Title\\nzanzibar\\nend\"}"}}]}`),
		result(t, "5", "error: connection refused at 127.0.0.1:8080 (os error 111)"),
		message(t, `{"role":"assistant","reasoning_content":"pondering deeply","content":"done"}`),
		result(t, "7", "{\"rows\":[\"alpha\\nbravo\"]}"),
	))
	indexAll(t, s)
	for _, test := range []struct {
		name, query string
		want        []int
	}{
		{"file name is a phrase", "store.py", []int{1}},
		{"path", "src/store.py", []int{1}},
		{"case", "SRC LOAD_CONFIG", []int{1}},
		{"letters beyond ASCII", "überraschung", []int{1}},
		{"underscore belongs to the word", "load", []int{2}},
		{"quoted phrase", `"connection refused"`, []int{5}},
		{"quoted phrase in wrong order", `"refused connection"`, nil},
		{"prefix", "frobni*", []int{3}},
		{"prefix of a phrase", "127.0.0.1:80*", []int{5}},
		{"arguments", "zanzibar", []int{4}},
		{"path in arguments", "guide.md", []int{4}},
		{"reasoning", "pondering", []int{6}},
		{"JSON in a result", "bravo", []int{7}},
		{"all words", "rename API", []int{3}},
		{"any word where none has all", "zanzibar pondering", []int{6, 4}},
		{"open quote", `"connection refused`, []int{5}},
		{"nothing", "", nil},
		{"no words", `" * -- ( ) ^ : {} '`, nil},
		{"operators are words", "NOT", nil},
		{"hostile", `zanzibar" OR 1 NEAR( * --`, []int{4, 5}},
		{"column filter", "text:zanzibar", nil},
		{"null byte", "zan\x00zibar", nil},
		{"not UTF-8", "zanzibar\xff", []int{4}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := positions(recall(t, s, Query{Text: test.query}))
			if diff := cmp.Diff(asSet(test.want), asSet(got)); diff != "" {
				t.Errorf("%q: -want +got\n%s", test.query, diff)
			}
		})
	}
	for _, query := range []string{strings.Repeat("word ", 10_000), strings.Repeat("x", 1<<20), strings.Repeat("é", 1000), strings.Repeat(`"`, 999), "AND", "a AND", "^a", "a*b*c*", "search", "*"} {
		recall(t, s, Query{Text: query})
	}
}

func asSet(list []int) map[int]bool {
	set := map[int]bool{}
	for _, v := range list {
		set[v] = true
	}
	return set
}

func TestRecall_Hit(t *testing.T) {
	s := archiveIn(t)
	text := strings.Repeat("before é ", 100) + "the needle stands here " + strings.Repeat("behind é ", 100)
	commit(t, s, "a", epoch, filed("a", 0, 2, "e", message(t, `{"role":"user","content":"hello"}`), result(t, "2", text)))
	indexAll(t, s)
	hits := recall(t, s, Query{Text: "needle"})
	if len(hits) != 1 {
		t.Fatalf("hits = %+v", hits)
	}
	h := hits[0]
	if !strings.Contains(h.Excerpt, "é the needle stands here behind") || !utf8.ValidString(h.Excerpt) || utf8.RuneCountInString(h.Excerpt) > 300 ||
		!strings.HasPrefix(h.Excerpt, "…") || !strings.HasSuffix(h.Excerpt, "…") {
		t.Errorf("excerpt %q", h.Excerpt)
	}
	h.Excerpt = ""
	sum := sha256.Sum256([]byte(text))
	hash := hex.EncodeToString(sum[:])
	want := Hit{Conversation: "a", Session: "s-a", N: 2, Role: "tool", Tool: "read", Hash: hash, Bytes: len(text), Times: 1, At: epoch}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for _, query := range []string{hash, "sha256:" + hash, " sha256:" + strings.ToUpper(hash) + "\n"} {
		if got := recall(t, s, Query{Text: query}); len(got) != 1 || got[0].Hash != hash || got[0].Excerpt == "" {
			t.Errorf("recall %q = %+v", query, got)
		}
		if got, err := s.Text(query); err != nil || got != text {
			t.Errorf("Text(%q) = %.20q, %v", query, got, err)
		}
	}
}

func TestRecall_SameTextOncePerConversation(t *testing.T) {
	s := archiveIn(t)
	text := "needle é"
	escaped := message(t, `{"role":"tool","tool_call_id":"4","content":"needle \u00e9"}`)
	commit(t, s, "a", epoch, filed("a", 0, 4, "e", result(t, "1", text), result(t, "2", "other"), result(t, "3", text), escaped))
	commit(t, s, "b", epoch.Add(time.Hour), filed("b", 0, 1, "e", result(t, "1", text)))
	indexAll(t, s)
	type brief struct {
		Conversation string
		N, Times     int
	}
	get := func(q Query) (out []brief) {
		for _, h := range recall(t, s, q) {
			out = append(out, brief{h.Conversation, h.N, h.Times})
		}
		return out
	}
	for _, test := range []struct {
		name string
		q    Query
		want []brief
	}{
		{"all", Query{Text: "needle"}, []brief{{"b", 1, 1}, {"a", 4, 3}}},
		{"one conversation", Query{Text: "needle", Conversation: "b"}, []brief{{"b", 1, 1}}},
		{"limit", Query{Text: "needle", Limit: 1}, []brief{{"b", 1, 1}}},
		{"none", Query{Text: "needle", Conversation: "c"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, get(test.q)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// The index may lag; a hash finds a text all the same, and IndexAll catches up.
func TestRecall_Lag(t *testing.T) {
	s := archiveIn(t)
	s.indexing.Lock() // the indexer stands still
	text := "a needle"
	commit(t, s, "a", epoch, filed("a", 0, 1, "e", result(t, "1", text)))
	if hits := recall(t, s, Query{Text: "needle"}); len(hits) != 0 {
		t.Errorf("found before it was indexed: %+v", hits)
	}
	sum := sha256.Sum256([]byte(text))
	if hits := recall(t, s, Query{Text: hex.EncodeToString(sum[:])}); len(hits) != 1 {
		t.Errorf("by hash: %+v", hits)
	}
	s.indexing.Unlock()
	indexAll(t, s)
	if hits := recall(t, s, Query{Text: "needle"}); len(hits) != 1 {
		t.Errorf("hits = %+v", hits)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.IndexAll(ctx); err == nil {
		t.Error("IndexAll went on after its context ended")
	}
}

// A long text is indexed in pieces; every one of them is found, as one hit.
func TestRecall_LongText(t *testing.T) {
	s := archiveIn(t)
	var b strings.Builder
	for i := range 30_000 {
		fmt.Fprintf(&b, "common word%d\n", i)
	}
	commit(t, s, "a", epoch, filed("a", 0, 1, "e", result(t, "1", b.String())))
	indexAll(t, s)
	if n := count(t, s, "SELECT count(*) FROM pieces"); n < 3 {
		t.Fatalf("%d pieces", n)
	}
	for _, query := range []string{"word0", "word15234", "word29999", `"common word29999"`, "common"} {
		hits := recall(t, s, Query{Text: query})
		if len(hits) != 1 || !strings.Contains(hits[0].Excerpt, strings.Trim(query, `"`)) {
			t.Errorf("%s: %+v", query, hits)
		}
	}
	if err := s.Forget("a"); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s, "SELECT count(*) FROM pieces"); n != 0 {
		t.Errorf("%d pieces left", n)
	}
	check(t, s)
}

func TestAppendPieces(t *testing.T) {
	for _, test := range []struct{ name, text string }{
		{"empty", ""}, {"short", "a b"}, {"no spaces", strings.Repeat("é", stepBytes)},
		{"spaces", strings.Repeat("word ", stepBytes)}, {"not UTF-8", strings.Repeat("\x80", 2*stepBytes)},
		{"exact", strings.Repeat("x", stepBytes)},
	} {
		t.Run(test.name, func(t *testing.T) {
			pieces := appendPieces(nil, 1, []byte(test.text))
			size := 0
			for i, p := range pieces {
				if p.last != (i == len(pieces)-1) || !utf8.ValidString(p.content) {
					t.Errorf("piece %d of %d: %v", i, len(pieces), p.last)
				}
				size += len(p.content)
			}
			if utf8.ValidString(test.text) && size != len(test.text) {
				t.Errorf("%d bytes of %d", size, len(test.text))
			}
		})
	}
}

func TestExcerpt(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for _, test := range []struct{ name, text, query, want string }{
		{"whole", "a  short\n\ttext", "short", "a short text"},
		{"no match", "nothing", "else", "nothing"},
		{"phrase", "py store; store.py", "store.py", "py store; store.py"},
		{"empty", "", "x", ""},
		{"cut runes", strings.Repeat("€", 400) + " needle " + strings.Repeat("€", 400), "needle",
			"…" + strings.Repeat("€", 33) + " needle " + strings.Repeat("€", 57) + "…"},
		{"inside of one long word", long, "y", strings.Repeat("x", 180) + "…"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := excerpt([]byte(test.text), parseQuery(test.query)); got != test.want {
				t.Errorf("got %q", got)
			}
		})
	}
}

func FuzzQuery(f *testing.F) {
	for _, q := range []string{"", `store.py "a b" c*`, `" OR 1 NEAR( * --`, "sha256:00", "\x00\xff", "é AND ü", "ⅷ²"} {
		f.Add(q)
	}
	s, err := Open(Options{Dir: memory, Archive: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	commit(f, s, "a", epoch, filed("a", 0, 1, "e", result(f, "1", "some text é AND store.py")))
	indexAll(f, s)
	f.Fuzz(func(t *testing.T, q string) {
		for _, h := range recall(t, s, Query{Text: q}) {
			if !utf8.ValidString(h.Excerpt) {
				t.Errorf("excerpt %q", h.Excerpt)
			}
		}
	})
}
