package compaction

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// A history that begins with an assistant is compacted before the user has
// spoken; what the user says later is the task, and stays through every drop.
func TestDrop_TheUserSpeaksLater(t *testing.T) {
	var list []transcript.Message
	add := func(m ...transcript.Message) { list = append(list, m...) }
	hello, err := transcript.ParseMessage([]byte(`{"role":"assistant","content":"hello, how can I help"}`))
	if err != nil {
		t.Fatal(err)
	}
	add(hello)
	for i := range 12 {
		add(read(fmt.Sprint("/a", i), lines("a", 30))...)
	}
	add(user("REAL-TASK: refactor"))
	spoken := len(list)
	for i := range 60 {
		add(read(fmt.Sprint("/b", i), lines("b", 30))...)
	}
	var checkpoint []Entry
	n, drops := 0, 0
	for end := 2; end <= len(list); end++ {
		if end < len(list) && list[end].Role != transcript.Assistant {
			continue
		}
		entries := append(slices.Clone(checkpoint), Entries(list[n:end], n)...)
		req := Request{Entries: entries, Originals: list[:end], Replayed: len(checkpoint), Open: len(entries), Scale: scaleOf(entries, 0, 1500)}
		if req.Scale.Prompt < 1500 {
			continue
		}
		out, err := DefaultSettings().Recover(req)
		if err != nil {
			t.Fatalf("at %d: %v", end, err)
		}
		checkpoint, n = slices.Clone(out.Entries[:out.Covered]), out.N
		if out.Removed[PassDrop] > 0 {
			drops++
		}
		if all := strings.Join(texts(out.Entries), "\n"); end > spoken && strings.Count(all, "REAL-TASK") != 1 {
			t.Fatalf("at %d of %d the instruction stands there %d times:\n%.400s", end, len(list), strings.Count(all, "REAL-TASK"), all)
		}
	}
	if drops < 3 {
		t.Fatalf("only %d drops", drops)
	}
}

// Thirty results at once, each small enough to be kept, are too much together.
func TestRecover_ManyParallelResults(t *testing.T) {
	var calls, results []string
	for i := range 30 {
		calls = append(calls, fmt.Sprintf(`{"id":"c%d","type":"function","function":{"name":"read","arguments":"{\"path\":\"/%d\"}"}}`, i, i))
		results = append(results, fmt.Sprintf(`{"role":"tool","tool_call_id":"c%d","content":%s}`, i, quoted(strings.Repeat("a line of it\n", 400))))
	}
	body, err := transcript.Parse([]byte(`{"messages":[{"role":"user","content":"t"},{"role":"assistant","tool_calls":[` + strings.Join(calls, ",") + `]},` + strings.Join(results, ",") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	const window = 8192
	req := refused(body.Messages, window)
	out, err := DefaultSettings().Recover(req)
	if err != nil {
		t.Fatal(err)
	}
	if out.After >= window {
		t.Errorf("%d tokens after it", out.After)
	}
	if v := pairing.Check(Messages(out.Entries)); v != nil {
		t.Error(v)
	}
}

// What lies behind Open cannot be kept for the next request, so it is not
// touched as long as the rest suffices.
func TestRecover_HoldsTheOpenBatchBack(t *testing.T) {
	list := listOf(user("task"))
	for i := range 20 {
		list = append(list, read(fmt.Sprint("/f", i), lines("f", 100))...)
	}
	list = append(list, read("/f3", lines("new", 620))...) // the newest turn, above the cap
	open := len(list) - 2
	req := refused(list, 20_000)
	req.Open = open
	out, err := DefaultSettings().Recover(req)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if got, want := out.Entries[len(out.Entries)-2+i].Raw(), list[open+i].Raw(); string(got) != string(want) {
			t.Errorf("message %d of the open batch changed: %.100s", i, got)
		}
	}
	if out.Covered > open {
		t.Errorf("the checkpoint covers %d entries, %d are closed", out.Covered, open)
	}
}
