package conversation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// kept is a store in memory that can be told to fail.
type kept struct {
	states  map[string]State
	refs    []Ref
	entries map[int64][]byte
	pins    map[string][]Pin
	turns   []Turn
	commits []Commit
	removed []string // what Prune removes next
	live    []string // what it was told to keep
	err     error
}

func newKept() *kept {
	return &kept{states: map[string]State{}, entries: map[int64][]byte{}, pins: map[string][]Pin{}}
}

func (k *kept) Load(int) (Kept, error) {
	out := Kept{Checkpoints: slices.Clone(k.refs)}
	for _, s := range k.states {
		out.Conversations = append(out.Conversations, s)
	}
	return out, k.err
}

func (k *kept) Entries(id int64) ([]byte, error) {
	if k.err != nil {
		return nil, k.err
	}
	b, ok := k.entries[id]
	if !ok {
		return nil, ErrGone
	}
	return bytes.Clone(b), nil
}

func (k *kept) Pins(id string) ([]Pin, error) { return k.pins[id], k.err }

func (k *kept) Commit(c Commit) (int64, error) {
	if k.err != nil {
		return 0, k.err
	}
	k.commits = append(k.commits, c)
	id := int64(0)
	if c.Checkpoint != nil {
		id = int64(len(k.entries) + 1)
		ref := c.Checkpoint.Ref
		ref.ID = id
		k.refs, k.entries[id], c.State.Checkpoint = append(k.refs, ref), c.Checkpoint.Entries, id
	}
	k.states[c.State.ID] = c.State
	k.pins[c.State.ID] = append(k.pins[c.State.ID], c.Pins...)
	return id, nil
}

func (k *kept) Note(n Notes) error {
	if k.err != nil {
		return k.err
	}
	for _, s := range n.States {
		k.states[s.ID] = s
	}
	k.turns = append(k.turns, n.Turns...)
	return nil
}

func (k *kept) Forget(id string) error {
	delete(k.states, id)
	return k.err
}

func (k *kept) Prune(live []string) ([]string, error) {
	k.live = live
	return k.removed, k.err
}

func (k *kept) Size() int64 { return int64(len(k.entries)) }

func over(t *testing.T, s Store, change ...func(*Options)) *Index {
	t.Helper()
	o := Options{Store: s, Conversations: 10, Bytes: 1 << 20}
	for _, c := range change {
		c(&o)
	}
	x, err := NewIndex(o)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func raws(cp *Checkpoint) string {
	if cp == nil {
		return ""
	}
	var b bytes.Buffer
	for i := range cp.Entries {
		b.Write(cp.Entries[i].Raw())
	}
	return b.String()
}

// After a restart a conversation has its name, its reports and its checkpoint,
// byte for byte.
func TestRestart(t *testing.T) {
	store := newKept()
	x := over(t, store)
	r := agent.request("a", "b", "c", "d", "e")
	c, _ := resolve(x, r)
	c.Observe(compaction.Report{Tokens: 100, Bytes: 300})
	c.SetMark(Mark{N: 5, Chain: r.Chain[5], Tokens: 100})
	file(x, c, r, 3, "short é &")
	x.Flush()
	_, before := resolve(x, agent.request("a", "b", "c", "d", "e", "f", "g"))

	x = over(t, store)
	again, after := resolve(x, agent.request("a", "b", "c", "d", "e", "f", "g"))
	if again.ID != c.ID || raws(after) != raws(before) || after == nil || after.N != 3 {
		t.Errorf("%s with %q after %s with %q", again.ID, raws(after), c.ID, raws(before))
	}
	if again.Anchor().Last.Tokens != 100 || again.Mark().N != 5 {
		t.Errorf("anchor %+v, mark %+v", again.Anchor(), again.Mark())
	}
	if s := store.states[c.ID]; s.Checkpoint != after.ID || s.Last != r.end() {
		t.Errorf("stored %+v", s)
	}
}

// A conversation that went on without being noted (a kill within a second) is
// found by its older list.
func TestRestartWithOldNotes(t *testing.T) {
	store := newKept()
	x := over(t, store)
	c, _ := resolve(x, agent.request("a", "b", "c"))
	x.Flush()
	resolve(x, agent.request("a", "b", "c", "d", "e"))
	again, _ := resolve(over(t, store), agent.request("a", "b", "c", "d", "e", "f", "g"))
	if again.ID != c.ID {
		t.Errorf("%s after %s", again.ID, c.ID)
	}
}

// What was pushed out of memory is read from the store again.
func TestEntriesAreReadAgain(t *testing.T) {
	store := newKept()
	x := over(t, store, func(o *Options) { o.Bytes = 1 })
	var all []*Conversation
	for i := range 5 {
		r := agent.request(fmt.Sprint("task ", i), "b", "c")
		c, _ := resolve(x, r)
		file(x, c, r, 2, fmt.Sprint("short ", i))
		all = append(all, c)
	}
	if got := x.Stats(); got.Checkpoints != 5 || x.entries.Len() != 1 {
		t.Fatalf("%+v, %d in memory", got, x.entries.Len())
	}
	for i, c := range all {
		got, cp := resolve(x, agent.request(fmt.Sprint("task ", i), "b", "c", "d", "e"))
		if got != c || cp == nil || cp.Entries[0].Text() != fmt.Sprint("short ", i) {
			t.Errorf("%d: %v", i, raws(cp))
		}
	}
}

// Where a checkpoint is gone or damaged, an older one that fits serves; where the
// store cannot be read for now, nothing is thrown away.
func TestEntriesThatCannotBeRead(t *testing.T) {
	store := newKept()
	x := over(t, store)
	r := agent.request("a", "b", "c", "d", "e")
	c, _ := resolve(x, r)
	file(x, c, r, 2, "old")
	newer := file(x, c, r, 4, "new")
	next := agent.request("a", "b", "c", "d", "e", "f", "g")

	whole := store.entries[newer.ID]
	for name, damage := range map[string]func(){
		"gone":      func() { delete(store.entries, newer.ID) },
		"cut short": func() { store.entries[newer.ID] = whole[:len(whole)-1] },
		"of another length": func() {
			store.entries[newer.ID] = encodeEntries(compaction.Entries(list("x", "y"), 0))
		},
	} {
		store.entries[newer.ID] = whole
		x := over(t, store)
		damage()
		if _, cp := resolve(x, next); cp == nil || cp.Entries[0].Text() != "old" {
			t.Errorf("%s: %q", name, raws(cp))
		}
	}

	store.entries[newer.ID] = whole
	x = over(t, store)
	store.err = errors.New("disk on fire")
	if _, cp := resolve(x, next); cp != nil {
		t.Errorf("read %q", raws(cp))
	}
	store.err = nil
	if _, cp := resolve(x, next); cp == nil || cp.N != 4 {
		t.Errorf("then %q", raws(cp))
	}
}

// A store that fails costs nothing while the process lives, is reported once, and
// gets everything when it is well again.
func TestStoreFails(t *testing.T) {
	store := newKept()
	var health []error
	x := over(t, store, func(o *Options) { o.OnHealth = func(err error) { health = append(health, err) } })
	r := agent.request("a", "b", "c", "d", "e")
	c, _ := resolve(x, r)
	full := errors.New("disk full")
	store.err = full
	file(x, c, r, 2, "one")
	file(x, c, r, 4, "two")
	x.Pin(c, []Pin{{N: 5, Chain: r.Chain[5], Raw: []byte(`{"role":"user","content":"e"}`)}})
	x.Flush()
	next := agent.request("a", "b", "c", "d", "e", "f", "g")
	_, cp := resolve(x, next)
	if cp == nil || cp.N != 4 || len(x.Pins(c)) != 1 {
		t.Fatalf("from memory: %q, %d pins", raws(cp), len(x.Pins(c)))
	}
	if !slices.Equal(health, []error{full}) || x.Health() != full {
		t.Errorf("health %v, then %v", health, x.Health())
	}

	store.err = nil
	x.Flush()
	if len(health) != 2 || health[1] != nil || x.Health() != nil {
		t.Errorf("health %v, then %v", health, x.Health())
	}
	if _, again := resolve(x, next); raws(again) != raws(cp) || again.ID <= 0 {
		t.Errorf("then %d: %q", again.ID, raws(again))
	}
	x.Flush()
	reopened := over(t, store)
	got, again := resolve(reopened, next)
	if got.ID != c.ID || raws(again) != raws(cp) || len(reopened.Pins(got)) != 1 {
		t.Errorf("after a restart: %s with %q and %d pins", got.ID, raws(again), len(reopened.Pins(got)))
	}
}

// Without any store that could be read at the start, the index works in memory.
func TestStoreFailsAtStart(t *testing.T) {
	store := newKept()
	store.err = errors.New("no")
	x, err := NewIndex(Options{Store: store, Conversations: 10, Bytes: 1 << 20})
	if err == nil || x == nil {
		t.Fatal("no error, or no index")
	}
	r := agent.request("a", "b", "c")
	c, _ := resolve(x, r)
	file(x, c, r, 2, "short")
	if _, cp := resolve(x, agent.request("a", "b", "c", "d")); cp == nil {
		t.Error("nothing replayed")
	}
}

// A rewind, a fork and an edit go on from what still fits, and say so.
func TestResolveRelated(t *testing.T) {
	tests := []struct {
		name    string
		next    Request
		same    bool // the same conversation
		parent  bool // or one that names it
		message int
		covers  int // messages of the checkpoint that is replayed
	}{
		{"goes on", agent.request("a", "b", "c", "d", "e", "f", "g", "h", "i"), true, false, -1, 6},
		{"again", agent.request("a", "b", "c", "d", "e", "f", "g"), true, false, -1, 6},
		{"rewound below the newest checkpoint", agent.request("a", "b", "c", "d", "e"), false, true, 5, 4},
		{"rewound below both", agent.request("a", "b", "c"), false, true, 3, 0},
		{"rewound to the task", agent.request("a"), false, false, -1, 0},
		{"a fork", agent.request("a", "b", "c", "d", "e", "F", "G"), false, true, 5, 4},
		{"an old message edited", agent.request("a", "b", "c", "D", "e", "f", "g", "h"), true, false, 3, 0},
		{"an edit between the checkpoints", agent.request("a", "b", "c", "d", "E", "f", "g", "h"), true, false, 4, 4},
		{"the task edited", agent.request("A", "b", "c", "d", "e", "f", "g", "h"), false, false, -1, 0},
		{"another agent that quotes it", talk{"alice", "name it", ""}.request("a", "b", "c", "d", "e", "f", "g"), false, false, -1, 6},
		{"another user", talk{"bob", agent.system, agent.tools}.request("a", "b", "c", "d", "e", "f", "g"), false, false, -1, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			x := over(t, newKept())
			r := agent.request("a", "b", "c", "d", "e", "f", "g")
			c, _ := resolve(x, r)
			file(x, c, r, 4, "first")
			file(x, c, r, 6, "second")
			got := x.Resolve(tt.next)
			if (got.Conversation == c) != tt.same || (got.Conversation.snapshot().Parent == c.ID) != tt.parent {
				t.Errorf("conversation %s with parent %q, the first was %s", got.Conversation.ID, got.Conversation.snapshot().Parent, c.ID)
			}
			covers := 0
			if got.Checkpoint != nil {
				covers = got.Checkpoint.N
			}
			if got.Change.Message != tt.message || covers != tt.covers {
				t.Errorf("message %d changed, %d covered; want %d, %d", got.Change.Message, covers, tt.message, tt.covers)
			}
		})
	}
}

func TestResolveChange(t *testing.T) {
	x := over(t, newKept())
	first := x.Resolve(agent.request("a", "b"))
	again := x.Resolve(agent.request("a", "b", "c", "d"))
	other := x.Resolve(talk{"alice", "it is Tuesday", agent.tools}.request("a", "b", "c", "d", "e"))
	tools := x.Resolve(talk{"alice", "it is Tuesday", "read"}.request("a", "b", "c", "d", "e", "f"))
	for i, tt := range []struct{ got, want Change }{
		{first.Change, Change{First: true, Message: -1}},
		{again.Change, Change{Message: -1, Since: 2}},
		{other.Change, Change{System: true, Message: -1, Since: 4}},
		{tools.Change, Change{Tools: true, Message: -1, Since: 5}},
	} {
		if tt.got != tt.want {
			t.Errorf("%d: %+v, want %+v", i, tt.got, tt.want)
		}
	}
}

// An agent's own request replays what fits, and leaves everything as it was.
func TestResolveSide(t *testing.T) {
	store := newKept()
	x := over(t, store)
	r := agent.request("a", "b", "c")
	c, _ := resolve(x, r)
	file(x, c, r, 2, "short")
	side := agent.request("a", "b", "c", "d", "summarise")
	side.Side = true
	got := x.Resolve(side)
	if got.Conversation == c || got.Conversation.ID != c.ID || got.Checkpoint == nil || x.Stats().Conversations != 1 {
		t.Errorf("%s with %q, %d conversations", got.Conversation.ID, raws(got.Checkpoint), x.Stats().Conversations)
	}
	title := talk{"alice", "name it", ""}.request("what is this")
	title.Side = true
	if got := x.Resolve(title); got.Checkpoint != nil || x.Stats().Conversations != 1 {
		t.Error("a title is a conversation")
	}
	if next := x.Resolve(agent.request("a", "b", "c", "d", "e")); next.Conversation != c || next.Change.Since != 3 {
		t.Errorf("then %s, %+v", next.Conversation.ID, next.Change)
	}
}

func TestPins(t *testing.T) {
	store := newKept()
	x := over(t, store)
	r := agent.request("a", "b", "c", "d", "e")
	c, _ := resolve(x, r)
	pin := func(n int, raw string) Pin { return Pin{N: n, Chain: r.Chain[n], Raw: []byte(raw)} }
	x.Pin(c, []Pin{pin(1, "one"), pin(3, "three")})
	x.Pin(c, []Pin{pin(3, "changed"), pin(5, "five")})
	texts := func(x *Index, c *Conversation) string {
		var out []string
		for _, p := range x.Pins(c) {
			out = append(out, string(p.Raw))
		}
		slices.Sort(out)
		return fmt.Sprint(out)
	}
	if got := texts(x, c); got != "[five one three]" {
		t.Errorf("got %s", got)
	}
	x.Flush()
	reopened := over(t, store)
	again, _ := resolve(reopened, r)
	if got := texts(reopened, again); got != "[five one three]" {
		t.Errorf("after a restart %s", got)
	}
	// A fork has those of what it shares.
	fork, _ := resolve(x, agent.request("a", "b", "c", "D", "E"))
	if got := texts(x, fork); got != "[one three]" {
		t.Errorf("the fork has %s", got)
	}
	// They are the fork's own once it pins something.
	x.Pin(fork, nil)
	x.Flush()
	if got := len(store.pins[fork.ID]); got != 2 {
		t.Errorf("%d pins of the fork are stored", got)
	}
	// A checkpoint stands for what it covers.
	file(x, c, r, 3, "short")
	if got := texts(x, c); got != "[five]" || x.Stats().Bytes < len("five") {
		t.Errorf("then %s", got)
	}
}

// Pins in memory are bounded, and read from the store again.
func TestPinsAreBounded(t *testing.T) {
	store := newKept()
	x := over(t, store)
	var all []*Conversation
	for i := range 5 {
		r := agent.request(fmt.Sprint("task ", i))
		c, _ := resolve(x, r)
		x.Pin(c, []Pin{{N: 1, Chain: r.Chain[1], Raw: make([]byte, maxPinBytes/2)}})
		all = append(all, c)
	}
	if x.pinBytes > maxPinBytes {
		t.Errorf("%d bytes of pins", x.pinBytes)
	}
	for i, c := range all {
		if len(x.Pins(c)) != 1 {
			t.Errorf("%d: lost", i)
		}
	}
}

func TestForgetAndPrune(t *testing.T) {
	store := newKept()
	x := over(t, store)
	r := agent.request("a", "b", "c", "d")
	c, _ := resolve(x, r)
	file(x, c, r, 2, "short")
	fork, _ := resolve(x, agent.request("a", "b", "c", "D", "E")) // replays it as well
	if err := x.Forget(c.ID); err != nil {
		t.Fatal(err)
	}
	if _, ok := store.states[c.ID]; ok {
		t.Error("still stored")
	}
	if got, cp := resolve(x, agent.request("a", "b", "c", "D", "E", "f")); got != fork || cp == nil {
		t.Error("the fork lost its checkpoint")
	}
	if got, _ := resolve(x, r); got == c {
		t.Error("still live")
	}

	// What a live one replays stays, whoever filed it.
	store.removed = []string{c.ID}
	x.Prune()
	if got := x.Stats().Checkpoints; got != 1 {
		t.Errorf("%d checkpoints", got)
	}
	// One that was not used for long is not live to the store.
	x.retention, x.now = time.Hour, func() time.Time { return time.Now().Add(2 * time.Hour) }
	store.removed = []string{fork.ID}
	x.Prune()
	if len(store.live) != 0 || x.Stats().Conversations != 1 { // the one that was opened after Forget
		t.Errorf("live %v, %d conversations", store.live, x.Stats().Conversations)
	}
}

func TestRecordAndRun(t *testing.T) {
	store := newKept()
	x := over(t, store)
	c, _ := resolve(x, agent.request("a"))
	x.Record(c, Turn{Prompt: 100, Cached: 60, Completion: 7, Miss: "template"}, nil, true, 2)
	x.Record(c, Turn{Prompt: 120, Cached: -1, Completion: 3}, nil, false, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	x.Run(ctx) // stores once more at the end
	want := Totals{Requests: 2, Compactions: 1, Prompt: 220, Cached: 60, Completion: 10, Misses: 1, Rereads: 2}
	if got := store.states[c.ID]; got.Totals != want || got.Prompt != 120 {
		t.Errorf("stored %+v", got)
	}
	if len(store.turns) != 2 || store.turns[1].Conversation != c.ID {
		t.Errorf("turns %+v", store.turns)
	}
}

// Whatever stands in the store, decoding gives an error or a list that encodes to
// the same bytes.
func FuzzDecodeEntries(f *testing.F) {
	entries := compaction.Entries(list("a", "b", "c"), 4)
	task := list("task")[0]
	entries[0].Edit, entries[0].Task, entries[1].End = compaction.Rebuilt, &task, -1
	f.Add(encodeEntries(entries))
	f.Add([]byte{})
	f.Add([]byte{codecVersion, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := DecodeEntries(b)
		if err != nil {
			return
		}
		again, err := DecodeEntries(encodeEntries(got))
		if err != nil || len(again) != len(got) {
			t.Fatalf("%d entries, then %d: %v", len(got), len(again), err)
		}
		for i := range got {
			if !bytes.Equal(got[i].Raw(), again[i].Raw()) || got[i].End != again[i].End || got[i].Edit != again[i].Edit {
				t.Fatalf("entry %d: %+v, then %+v", i, got[i], again[i])
			}
		}
	})
}

// A lookup costs the same however many checkpoints and conversations there are.
func BenchmarkResolve(b *testing.B) {
	for _, size := range []struct{ checkpoints, conversations int }{{10, 10}, {100_000, 10_000}} {
		b.Run(fmt.Sprintf("%d checkpoints", size.checkpoints), func(b *testing.B) {
			store := newKept()
			for i := range size.checkpoints {
				var chain transcript.Hash
				copy(chain[:], fmt.Sprintf("%016d", i))
				store.refs = append(store.refs, Ref{ID: int64(i + 1000), Chain: chain, N: 3})
			}
			for i := range size.conversations {
				id := fmt.Sprint("c", i)
				store.states[id] = State{ID: id, Last: hash(fmt.Sprintf("%016d", i)), First: hash(fmt.Sprintf("f%015d", i)), Used: time.Unix(int64(i), 0)}
			}
			x, err := NewIndex(Options{Store: store, Conversations: size.conversations, Bytes: 1 << 20})
			if err != nil {
				b.Fatal(err)
			}
			var texts []string
			for i := range 200 {
				texts = append(texts, fmt.Sprint("message ", i))
			}
			r := agent.request(texts...)
			c, _ := resolve(x, r)
			x.File(c, NewCheckpoint(100, r.Chain[100], compaction.Entries(list("short"), 99)), nil, Summary{})
			b.ResetTimer()
			for b.Loop() {
				if x.Resolve(r).Checkpoint == nil {
					b.Fatal("nothing replayed")
				}
			}
		})
	}
}

// Checkpoints of the first version, without summaries, are read; a summary
// survives the store.
func TestCodecVersions(t *testing.T) {
	entries := compaction.Entries(list("task and facts"), 3)
	task := list("task")[0]
	entries[0].Edit, entries[0].Task, entries[0].Summary = compaction.Rebuilt, &task, "what was done"
	b := encodeEntries(entries)
	got, err := DecodeEntries(b)
	if err != nil || got[0].Summary != "what was done" || got[0].Task.Text() != "task" {
		t.Errorf("got %+v, %v", got, err)
	}
	old := append([]byte{1}, b[1:len(b)-1-len("what was done")]...)
	got, err = DecodeEntries(old)
	if err != nil || got[0].Summary != "" || got[0].Task.Text() != "task" || got[0].End != 4 {
		t.Errorf("version 1: %+v, %v", got, err)
	}
	if _, err := DecodeEntries(append([]byte{3}, b[1:]...)); err == nil {
		t.Error("a newer version is read")
	}
}

// A live conversation that was never compacted does not take the checkpoint that a
// fork of it has filed inside what they share: its cached bytes would change.
func TestLiveConversationKeepsItsOwnList(t *testing.T) {
	x := over(t, newKept())
	p, _ := resolve(x, agent.request("a", "b", "c", "d", "e", "f", "g"))
	r := agent.request("a", "b", "c", "d", "e", "F", "G")
	q, _ := resolve(x, r)
	if p == q {
		t.Fatal("no fork")
	}
	file(x, q, r, 4, "of the fork")
	if got, cp := resolve(x, agent.request("a", "b", "c", "d", "e", "f", "g", "h", "i")); got != p || cp != nil {
		t.Errorf("replays %q", raws(cp))
	}
}

// A checkpoint that is filed while states are being stored is not overwritten by an
// older state.
func TestFileWhileFlushing(t *testing.T) {
	store := &slowNotes{kept: newKept(), entered: make(chan struct{}), leave: make(chan struct{})}
	x := over(t, store)
	r := agent.request("a", "b", "c", "d", "e")
	c, _ := resolve(x, r)
	file(x, c, r, 2, "old")
	flushed := make(chan struct{})
	go func() {
		x.Flush()
		close(flushed)
	}()
	<-store.entered
	filed := make(chan struct{})
	go func() {
		file(x, c, r, 4, "new")
		close(filed)
	}()
	close(store.leave)
	<-flushed
	<-filed
	if _, cp := resolve(over(t, store), agent.request("a", "b", "c", "d", "e", "f", "g")); cp == nil || cp.N != 4 {
		t.Errorf("after a restart %q", raws(cp))
	}
}

type slowNotes struct {
	*kept
	entered, leave chan struct{}
	once           bool
}

func (s *slowNotes) Note(n Notes) error {
	if !s.once {
		s.once = true
		close(s.entered)
		<-s.leave
	}
	return s.kept.Note(n)
}

// A store that cannot be read for a moment costs no pins, and an agent's own
// requests take up no memory.
func TestPinsAreNotLost(t *testing.T) {
	store := newKept()
	x := over(t, store)
	r := agent.request("a", "b", "c")
	c, _ := resolve(x, r)
	x.Pin(c, []Pin{{N: 1, Chain: r.Chain[1], Raw: make([]byte, 1000)}})
	x.Flush()
	for range 100 {
		side := agent.request("a", "b", "c", "name it")
		side.Side = true
		x.Pins(x.Resolve(side).Conversation)
	}
	if x.pinBytes != 1000 {
		t.Errorf("%d bytes of pins", x.pinBytes)
	}
	x = over(t, store)
	c, _ = resolve(x, r)
	store.err = errors.New("busy")
	if len(x.Pins(c)) != 0 {
		t.Error("pins out of nowhere")
	}
	store.err = nil
	if len(x.Pins(c)) != 1 {
		t.Error("the pins are lost")
	}
}
