package conversation

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// talk is a client with its credentials, system message and tools.
type talk struct {
	key, system, tools string
}

var agent = talk{"alice", "you are an agent", "read,write"}

func list(texts ...string) []transcript.Message {
	var out []transcript.Message
	for i, text := range texts {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		m, err := transcript.ParseMessage([]byte(fmt.Sprintf(`{"role":%q,"content":%q}`, role, text)))
		if err != nil {
			panic(err)
		}
		out = append(out, m)
	}
	return out
}

func newIndex(conversations, bytes int) *Index {
	x, err := NewIndex(Options{Conversations: conversations, Bytes: bytes})
	if err != nil {
		panic(err)
	}
	return x
}

func resolve(x *Index, r Request) (*Conversation, *Checkpoint) {
	got := x.Resolve(r)
	return got.Conversation, got.Checkpoint
}

func hash(s string) (h transcript.Hash) {
	copy(h[:], s)
	return h
}

func (c talk) request(texts ...string) Request {
	messages := list(texts...)
	return Request{Chain: transcript.Chain([]byte(c.key), messages), Prints: transcript.Prints(messages), System: hash(c.system), Tools: hash(c.tools)}
}

// file compacts the first n messages of a request to one text.
func file(x *Index, c *Conversation, r Request, n int, text string) *Checkpoint {
	entries := compaction.Entries(list(text), 0)
	entries[0].End = n
	cp := NewCheckpoint(n, r.Chain[n], entries)
	x.File(c, cp, nil, Summary{})
	return cp
}

func TestResolveGrows(t *testing.T) {
	x := newIndex(10, 1<<20)
	first, cp := resolve(x, agent.request("a"))
	if cp != nil {
		t.Fatal("a checkpoint out of nothing")
	}
	for _, r := range []Request{agent.request("a"), agent.request("a", "b", "c"), agent.request("a", "b", "c", "d", "e")} {
		c, cp := resolve(x, r)
		if c != first || cp != nil {
			t.Errorf("%d messages: conversation %s after %s, checkpoint %v", len(r.Chain)-1, c.ID, first.ID, cp)
		}
	}
	if got := x.Stats(); got != (Stats{Conversations: 1}) {
		t.Errorf("got %+v", got)
	}
}

func TestResolveReplays(t *testing.T) {
	x := newIndex(10, 1<<20)
	r := agent.request("a", "b", "c", "d", "e")
	c, _ := resolve(x, r)
	cp := file(x, c, r, 3, "short")
	for _, texts := range [][]string{{"a", "b", "c", "d", "e"}, {"a", "b", "c", "d", "e", "f", "g"}, {"a", "b", "c", "d", "e", "f", "g", "h", "i"}} {
		if _, got := resolve(x, agent.request(texts...)); got != cp {
			t.Errorf("%v: got %v", texts, got)
		}
	}
}

func TestResolveRewind(t *testing.T) {
	x := newIndex(10, 1<<20)
	r := agent.request("a", "b", "c", "d", "e", "f", "g")
	c, _ := resolve(x, r)
	old := file(x, c, r, 3, "short")
	newer := file(x, c, r, 5, "shorter")
	tests := []struct {
		name  string
		texts []string
		want  *Checkpoint
	}{
		{"behind both", []string{"a", "b", "c", "d", "e", "F", "G"}, newer},
		{"to the newer's end", []string{"a", "b", "c", "d", "e"}, newer},
		{"between them", []string{"a", "b", "c", "d", "E"}, old},
		{"to the older's end", []string{"a", "b", "c"}, old},
		{"before both", []string{"a", "b", "C"}, nil},
		{"to the start", []string{"a"}, nil},
		{"another task", []string{"A", "b", "c", "d", "e"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, cp := resolve(x, agent.request(tt.texts...)); cp != tt.want {
				t.Errorf("conversation %s got %+v", got.ID, cp)
			}
		})
	}
}

// An edited old message breaks the chain there: an older checkpoint matches, or
// none.
func TestResolveEdited(t *testing.T) {
	x := newIndex(10, 1<<20)
	r := agent.request("a", "b", "c", "d", "e")
	c, _ := resolve(x, r)
	file(x, c, r, 3, "short")
	if _, cp := resolve(x, agent.request("a", "B", "c", "d", "e", "f", "g")); cp != nil {
		t.Error("a checkpoint of another history")
	}
	if _, cp := resolve(x, agent.request("a", "b", "c", "D", "e", "f", "g")); cp == nil {
		t.Error("the checkpoint covers nothing that was edited")
	}
}

// A live conversation stays on the checkpoint it last used: taking a longer one
// that a fork filed would change bytes that it has cached.
func TestResolveFork(t *testing.T) {
	x := newIndex(10, 1<<20)
	r := agent.request("a", "b", "c", "d", "e")
	main, _ := resolve(x, r)
	old := file(x, main, r, 1, "short")

	r = agent.request("a", "b", "c", "d", "e", "f", "g")
	if c, cp := resolve(x, r); c != main || cp != old {
		t.Fatal("the first branch is not the conversation")
	}
	forked := agent.request("a", "b", "c", "d", "e", "F", "G")
	fork, cp := resolve(x, forked)
	if fork == main {
		t.Fatal("a fork is the conversation itself")
	}
	if cp != old {
		t.Errorf("the fork does not begin with the checkpoint of what it shares: %v", cp)
	}
	longer := file(x, fork, forked, 5, "shorter")

	if c, cp := resolve(x, agent.request("a", "b", "c", "d", "e", "f", "g", "h", "i")); c != main || cp != old {
		t.Errorf("the first branch changed to the fork's checkpoint: %+v", cp)
	}
	if c, cp := resolve(x, agent.request("a", "b", "c", "d", "e", "F", "G", "H", "I")); c != fork || cp != longer {
		t.Errorf("the fork lost its own: %+v", cp)
	}
	// One that is not live takes the longest.
	if _, cp := resolve(x, agent.request("a", "b", "c", "d", "e", "x", "y")); cp != longer {
		t.Errorf("a third branch got %+v", cp)
	}
}

func TestResolveKeepsUsersApart(t *testing.T) {
	x := newIndex(10, 1<<20)
	r := agent.request("a", "b", "c")
	c, _ := resolve(x, r)
	file(x, c, r, 3, "alice's")
	bob := agent
	bob.key = "bob"
	got, cp := resolve(x, bob.request("a", "b", "c", "d", "e"))
	if got == c || cp != nil {
		t.Error("another key got this one's checkpoint")
	}
}

// Branches that share a beginning may compact it to the same message, each in
// its own way. Neither changes what the other has cached.
func TestForksThatEndAtTheSameMessage(t *testing.T) {
	x := newIndex(10, 1<<20)
	r := agent.request("a", "b", "c", "d", "e")
	main, _ := resolve(x, r)
	mine := file(x, main, r, 3, "short")
	forked := agent.request("a", "b", "c", "D", "E")
	fork, cp := resolve(x, forked)
	if fork == main || cp != mine {
		t.Fatalf("the fork begins with %+v", cp)
	}
	theirs := file(x, fork, forked, 3, "shorter")
	if _, cp := resolve(x, agent.request("a", "b", "c", "d", "e", "f", "g")); cp != mine {
		t.Errorf("the first branch got the fork's checkpoint %q in place of its own", cp.Entries[0].Text())
	}
	if _, cp := resolve(x, agent.request("a", "b", "c", "D", "E", "F", "G")); cp != theirs {
		t.Errorf("the fork got %+v", cp)
	}
}

// A request that differs in system and tools is another agent's that quotes the
// conversation: it is replayed, and does not advance what it resembles.
func TestResolveSideRequest(t *testing.T) {
	title := talk{"alice", "You are a title generator", ""}
	x := newIndex(10, 1<<20)
	r := agent.request("a", "b", "c")
	main, _ := resolve(x, r)
	main.Observe(compaction.Report{Tokens: 10, Bytes: 30})
	cp := file(x, main, r, 1, "short")

	side, got := resolve(x, title.request("a", "b", "c", "d", "title?"))
	if side == main {
		t.Error("a side request is the conversation itself")
	}
	if got != cp {
		t.Error("a side request is not replayed")
	}
	if side.Anchor() != (compaction.Anchor{}) {
		t.Error("a side request has the conversation's reports")
	}
	if c, got := resolve(x, agent.request("a", "b", "c", "d", "e")); c != main || got != cp {
		t.Error("the side request took the conversation's place")
	}

	t.Run("with the very same messages", func(t *testing.T) {
		side, _ := resolve(x, title.request("a", "b", "c", "d", "e"))
		if c, _ := resolve(x, agent.request("a", "b", "c", "d", "e")); c != main || side == main {
			t.Error("mixed up")
		}
		if c, _ := resolve(x, title.request("a", "b", "c", "d", "e")); c != side {
			t.Error("mixed up the other way round")
		}
	})
	t.Run("another system message alone is a date", func(t *testing.T) {
		dated := agent
		dated.system = "you are an agent. Today is Friday"
		if c, _ := resolve(x, dated.request("a", "b", "c", "d", "e")); c != main {
			t.Error("a new date is a new conversation")
		}
		// From then on the conversation has that system message.
		dated.tools = "read"
		if c, _ := resolve(x, dated.request("a", "b", "c", "d", "e", "f", "g")); c != main {
			t.Error("other tools are a new conversation")
		}
	})
}

// Ids of conversations name them in headers and logs: hexadecimal, one for
// each, the same for the same opening after a restart.
func TestConversationIDs(t *testing.T) {
	seen := map[string]bool{}
	x := newIndex(100, 1<<20)
	for _, r := range []Request{
		agent.request("a"), agent.request("b"), agent.request("a", "b", "c"), talk{"bob", agent.system, agent.tools}.request("a"),
		talk{"alice", "other", "tools"}.request("a"), agent.request("c", "d", "e"), agent.request("c", "d", "E"),
	} {
		c, _ := resolve(x, r)
		if len(c.ID) != 12 || strings.Trim(c.ID, "0123456789abcdef") != "" {
			t.Errorf("id %q", c.ID)
		}
		seen[c.ID] = true
	}
	if len(seen) != 6 { // "a" grew to "a b c"
		t.Errorf("%d ids", len(seen))
	}
}

// Workers of a swarm that open with the same bytes part as soon as they differ.
func TestSwarm(t *testing.T) {
	x := newIndex(100, 1<<20)
	ids := map[*Conversation]bool{}
	for i := range 5 {
		x.Resolve(agent.request("task"))
		c, _ := resolve(x, agent.request("task", "answer", fmt.Sprint("worker ", i)))
		ids[c] = true
	}
	if len(ids) != 5 {
		t.Errorf("%d conversations of 5 workers", len(ids))
	}
}

func TestConversationsAreBounded(t *testing.T) {
	x := newIndex(3, 1<<20)
	var all []*Conversation
	for i := range 5 {
		c, _ := resolve(x, agent.request(fmt.Sprint("task ", i)))
		all = append(all, c)
		if c, _ := resolve(x, agent.request("task 0", "b", "c")); c != all[0] {
			t.Errorf("one that is in use was pushed out by task %d", i)
		}
	}
	if got := x.Stats().Conversations; got != 3 {
		t.Errorf("%d conversations are live", got)
	}
	if got := len(x.byLast); got != 3 {
		t.Errorf("%d ends are listed for 3 conversations", got)
	}
	if c, _ := resolve(x, agent.request("task 4", "b", "c")); c != all[4] {
		t.Error("the newest is not live")
	}
	if c, _ := resolve(x, agent.request("task 1", "b", "c")); c == all[1] {
		t.Error("the least recently used is live")
	}
}

func TestCheckpointsAreBounded(t *testing.T) {
	x := newIndex(1, 10_000)
	text := strings.Repeat("x", 2000)
	for i := range 10 {
		r := agent.request(fmt.Sprint("task ", i), "b", "c")
		c, _ := resolve(x, r)
		file(x, c, r, 3, text)
		x.Resolve(agent.request("task 0", "b", "c")) // stays in use
	}
	got := x.Stats()
	if got.Bytes > 10_000 || got.Checkpoints != 4 || got.Bytes < 4*2000 {
		t.Errorf("got %+v", got)
	}
	for task, want := range map[string]bool{"task 0": true, "task 1": false, "task 6": false, "task 7": true, "task 9": true} {
		if _, cp := resolve(x, agent.request(task, "b", "c", "d", "e")); (cp != nil) != want {
			t.Errorf("%s: on file %v, want %v", task, cp != nil, want)
		}
	}
}

// The bound is on bytes of checkpoints, whoever holds them: a thousand live
// conversations may not keep what was evicted for being too much.
func TestLiveConversationsDoNotEscapeTheBound(t *testing.T) {
	const bound = 100_000
	x := newIndex(1000, bound)
	for i := range 200 {
		r := agent.request(fmt.Sprint("task ", i), "b", "c")
		c, _ := resolve(x, r)
		file(x, c, r, 3, strings.Repeat("x", 5000))
	}
	held := 0
	for i := range 200 {
		if _, cp := resolve(x, agent.request(fmt.Sprint("task ", i), "b", "c")); cp != nil {
			held += cp.bytes
		}
	}
	if held > bound {
		t.Errorf("%d bytes of checkpoints are held by live conversations, %d are counted, the bound is %d", held, x.Stats().Bytes, bound)
	}
}

// One that is larger than the bound is kept alone: the conversation could not
// go on without it.
func TestCheckpointOverTheBound(t *testing.T) {
	x := newIndex(10, 1000)
	r := agent.request("a", "b", "c")
	c, _ := resolve(x, r)
	cp := file(x, c, r, 3, strings.Repeat("x", 5000))
	if _, got := resolve(x, r); got != cp || x.Stats().Checkpoints != 1 {
		t.Errorf("got %v, %+v", got, x.Stats())
	}
}

func TestFileAgain(t *testing.T) {
	x := newIndex(10, 1<<20)
	r := agent.request("a", "b", "c")
	c, _ := resolve(x, r)
	file(x, c, r, 3, strings.Repeat("x", 5000))
	cp := file(x, c, r, 3, "short")
	if got := x.Stats(); got.Checkpoints != 1 || got.Bytes != cp.bytes {
		t.Errorf("got %+v, want one of %d bytes", got, cp.bytes)
	}
	if _, got := resolve(x, r); got != cp {
		t.Error("the older one is replayed")
	}
}

// A checkpoint copies: it must not keep a request's whole body alive, nor
// change with it.
func TestNewCheckpointCopies(t *testing.T) {
	body := []byte(`{"messages":[{"role":"user","content":"task"},{"role":"assistant","content":"yes"}]}`)
	b, err := transcript.Parse(body)
	if err != nil {
		t.Fatal(err)
	}
	entries := compaction.Entries(b.Messages, 0)
	task := entries[0].Message
	entries[0].Message, entries[0].Edit, entries[0].Task = task.WithAppended("facts"), compaction.Rebuilt, &task
	cp := NewCheckpoint(2, hash("x"), entries)
	clear(body)
	if got := string(cp.Entries[1].Raw()); got != `{"role":"assistant","content":"yes"}` {
		t.Errorf("got %s", got)
	}
	if got := cp.Entries[0].Task.Text(); got != "task" {
		t.Errorf("task %q", got)
	}
	if cp.Entries[0].Edit != compaction.Rebuilt || cp.Entries[1].End != 2 {
		t.Errorf("got %+v", cp.Entries)
	}
	if want := cp.Entries[0].Footprint() + cp.Entries[1].Footprint() + cp.Entries[0].Task.Footprint(); cp.bytes != want || want < len(cp.Entries[0].Raw())+len(cp.Entries[1].Raw())+len(task.Raw()) {
		t.Errorf("counted %d bytes, want %d", cp.bytes, want)
	}
}

func TestReports(t *testing.T) {
	x := newIndex(10, 1<<20)
	c, _ := resolve(x, agent.request("a"))
	c.Observe(compaction.Report{Tokens: 1000, Bytes: 1000})
	c.Observe(compaction.Report{Tokens: 1450, Bytes: 1900})
	if got := c.Anchor().Forecast(2900); got != 1950 {
		t.Errorf("forecast %d", got)
	}
	c.Rebase(compaction.Report{Tokens: 500, Bytes: 1500})
	if got := c.Anchor().Forecast(1800); got != 600 {
		t.Errorf("forecast %d: a report of the list before the rewrite is believed", got)
	}
	if got := c.TakeFull(); got != 0 {
		t.Errorf("full %d", got)
	}
	c.MarkFull(4096)
	if got := []int{c.TakeFull(), c.TakeFull()}; got[0] != 4096 || got[1] != 0 {
		t.Errorf("full %v", got)
	}
}

// Requests without any message of a conversation (a system message alone, an
// empty list) say nothing about who asks. A client that sends one a second as
// a health check may not push live conversations out.
func TestResolveWithoutMessages(t *testing.T) {
	x := newIndex(5, 1<<20)
	main, _ := resolve(x, agent.request("a"))
	for range 10 {
		x.Resolve(agent.request())
	}
	if c, _ := resolve(x, agent.request("a", "b", "c")); c != main {
		t.Errorf("ten empty lists pushed out a live conversation; %d are live", x.Stats().Conversations)
	}
}

// A thousand runs that open with the same bytes, as an evaluation does: opening
// the next one costs what the first one cost. Measured in allocations, which
// do not depend on the machine.
func TestResolveManyWithOneOpening(t *testing.T) {
	x := newIndex(10_000, 1<<20)
	run := 0
	open := func() {
		run++
		x.Resolve(agent.request("a"))
		x.Resolve(agent.request("a", "b", fmt.Sprint("run ", run)))
	}
	open()
	first := testing.AllocsPerRun(1, open)
	for run < 1000 {
		open()
	}
	if later := testing.AllocsPerRun(1, open); later > 10*first {
		t.Errorf("the first took %.0f allocations, the thousandth %.0f: naming a conversation tries all names before it", first, later)
	}
}

func TestConcurrency(t *testing.T) {
	x := newIndex(20, 50_000)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			texts := []string{fmt.Sprint("task ", w%4)}
			for i := range 60 {
				r := agent.request(texts...)
				c, cp := resolve(x, r)
				if cp != nil && r.Chain[cp.N] != cp.Chain {
					t.Errorf("worker %d got a checkpoint that is none of its prefixes", w)
				}
				c.Observe(compaction.Report{Tokens: i, Bytes: i * 3})
				if i%7 == 0 {
					c.MarkFull(i)
				}
				c.TakeFull()
				if i%10 == 9 {
					file(x, c, r, len(texts)-2, strings.Repeat("x", 500))
					c.Rebase(compaction.Report{})
				}
				x.Stats()
				texts = append(texts, fmt.Sprint("answer ", i), fmt.Sprint("w", w%4, " more ", i))
			}
		})
	}
	wg.Wait()
	got := x.Stats()
	if got.Conversations > 20 || got.Bytes > 50_000 || got.Bytes < 0 {
		t.Errorf("got %+v", got)
	}
}

// A fork that replays the first branch's checkpoint keeps it when that branch
// compacts again at the same message.
func TestForkKeepsTheCheckpointItReplays(t *testing.T) {
	c := talk{key: "k", system: "s", tools: "t"}
	x := newIndex(100, 1<<20)
	a, _ := resolve(x, c.request("1", "2", "3"))
	chain := c.request("1", "2", "3").Chain
	x.File(a, NewCheckpoint(2, chain[2], compaction.Entries(list("first"), 0)), nil, Summary{})
	x.Resolve(c.request("1", "2", "3", "left"))
	if _, cp := resolve(x, c.request("1", "2", "3", "right")); cp == nil {
		t.Fatal("the fork has no checkpoint")
	}
	x.File(a, NewCheckpoint(2, chain[2], compaction.Entries(list("second"), 0)), nil, Summary{})
	_, cp := resolve(x, c.request("1", "2", "3", "right", "more"))
	if cp == nil || cp.Entries[0].Text() != "first" {
		t.Errorf("the fork replays %+v", cp)
	}
}

// Where the newest checkpoint was pushed out, an older one that fits serves.
func TestOlderCheckpointServes(t *testing.T) {
	c := talk{key: "k", system: "s", tools: "t"}
	x := newIndex(100, 1<<20)
	a, _ := resolve(x, c.request("1", "2", "3", "4"))
	chain := c.request("1", "2", "3", "4").Chain
	x.File(a, NewCheckpoint(1, chain[1], compaction.Entries(list("old"), 0)), nil, Summary{})
	x.File(a, NewCheckpoint(3, chain[3], compaction.Entries(list("new"), 0)), nil, Summary{})
	x.entries.Remove(a.state.Checkpoint)
	if _, cp := resolve(x, c.request("1", "2", "3", "4", "5")); cp == nil || cp.N != 1 {
		t.Errorf("got %+v", cp)
	}
}
