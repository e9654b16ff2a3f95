package compaction

import (
	"errors"
	"math"

	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// Kind tells how far a compaction had to go.
type Kind string

// The kinds, as the metric compactions_total has them.
const (
	KindPasses  Kind = "passes"  // the cheap passes sufficed
	KindClip    Kind = "clip"    // texts were clipped or turns dropped
	KindSummary Kind = "summary" // a model summarised what went
)

// Kinds lists them, for counters that exist from the start.
var Kinds = []Kind{KindPasses, KindClip, KindSummary}

// Pass names a step for its counter.
type Pass string

// The steps in their order.
const (
	PassEvict    Pass = "evict"
	PassCollapse Pass = "collapse"
	PassThin     Pass = "thin"
	PassCap      Pass = "cap"
	PassCalls    Pass = "calls"
	PassClip     Pass = "clip"
	PassDrop     Pass = "drop"
	PassSummary  Pass = "summary"
)

// Passes lists every step, for counters that exist from the start.
var Passes = []Pass{PassEvict, PassCollapse, PassThin, PassCap, PassCalls, PassClip, PassDrop, PassSummary}

// Outcome is a shorter list, and the checkpoint that gives the same list again
// on the client's next request.
type Outcome struct {
	Entries []Entry
	// Covered is how many entries the checkpoint holds.
	Covered int
	// N is how many originals they replace.
	N int
	// Open is Request.Open for Entries.
	Open int
	Kind Kind
	// Removed is the weight in bytes that each step freed.
	Removed map[Pass]int
	// Before and After are prompt sizes in tokens at the rate of the scale.
	Before, After int
	// Stays is how many tokens of the prompt stand before its first change, and Head
	// how many of them before the first turn behind the task: what a server keeps
	// cached that can return to a shorter prompt, and one that cannot.
	Stays, Head int
	// Reasons say in words what decided how far it went.
	Reasons []string
}

// The reasons why a list cannot be made smaller.
var (
	// ErrOverhead: system messages and tools alone fill the window.
	ErrOverhead = errors.New("compact: system messages and tools alone exceed the window")
	// ErrNothing: every step left the list as it was.
	ErrNothing = errors.New("compact: nothing can be shortened")
	// ErrIllegal: the rewritten list broke the pairing rules and was dropped.
	ErrIllegal = errors.New("compact: the rewritten list is not legally paired")
)

// reduction is a list on which the steps work one after another.
type reduction struct {
	s       Settings
	req     Request
	entries []Entry
	tail    int // entry where the protected turns begin
	before  int // weight
	size    int // weight now
	covered int // entries that a checkpoint must cover at least
	open    int
	// Behind the open batch nothing can be kept for the next request, so that an
	// edit there would come undone: entries from hold on stay as they came.
	hold int
	out  Outcome
}

func (s Settings) begin(req Request) *reduction {
	w := &reduction{
		s: s, req: req, entries: append([]Entry(nil), req.Entries...),
		covered: req.Replayed, open: req.Open, hold: min(req.Open, len(req.Entries)),
	}
	w.tail = s.tailStart(w.entries, req.Scale)
	w.before = weightOf(w.entries)
	w.size = w.before
	w.out = Outcome{Kind: KindPasses, Removed: map[Pass]int{}, Before: req.Scale.Tokens(w.before)}
	return w
}

// step does one thing and notes what it freed.
func (w *reduction) step(pass Pass, do func()) {
	do()
	if w.hold < len(w.entries) {
		copy(w.entries[w.hold:], w.req.Entries[w.hold:])
	}
	now := weightOf(w.entries)
	w.out.Removed[pass] += w.size - now
	if now < w.size && (pass == PassCalls || pass == PassClip || pass == PassDrop) {
		w.out.Kind = KindClip
	}
	w.size = now
}

// passes runs the three cheap passes on entries before protected; thin spares
// the tail in any case.
func (w *reduction) passes(protected int) {
	w.step(PassEvict, func() { w.s.evict(w.entries, protected) })
	w.step(PassCollapse, func() { w.s.collapse(w.entries, protected) })
	w.step(PassThin, func() { w.s.thin(w.entries, min(w.tail, protected)) })
}

// releaseOpen lets the steps work on the open batch as well, and reports whether
// there is one.
func (w *reduction) releaseOpen() bool {
	if w.hold >= len(w.entries) {
		return false
	}
	w.hold = len(w.entries)
	return true
}

// drop removes the oldest turns until the list weighs no more than target, and
// nothing from entry tail on.
func (w *reduction) drop(target, tail int) {
	w.remove(PassDrop, func() []Entry { return w.s.drop(w.entries, w.req.Originals, w.req.Scale, target, tail) })
}

// remove does a step that leaves fewer entries, the kept ones at the end.
func (w *reduction) remove(pass Pass, do func() []Entry) {
	w.hold = math.MaxInt // from here on entries are no longer those of the request
	gone := len(w.entries)
	w.step(pass, func() { w.entries = do() })
	if gone -= len(w.entries); gone > 0 {
		w.covered = max(w.covered-gone, 1)
		w.open = max(w.open-gone, 0)
		w.tail = max(w.tail-gone, 0)
	}
}

// outcome checks what came of it.
func (w *reduction) outcome() (Outcome, error) {
	if w.size >= w.before {
		return Outcome{}, ErrNothing
	}
	if pairing.Check(Messages(w.entries)) != nil {
		return Outcome{}, ErrIllegal
	}
	out := w.out
	out.Entries, out.Open, out.After = w.entries, w.open, w.req.Scale.Tokens(w.size)
	out.Covered, out.N = w.checkpointEnd()
	out.Stays, out.Head = w.stays()
	return out, nil
}

// stays is explained at [Outcome.Stays].
func (w *reduction) stays() (first, head int) {
	sc := w.req.Scale
	head = sc.OverheadTokens()
	if i := firstUser(w.req.Entries); i >= 0 && i < len(w.req.Entries)-1 {
		head = sc.Tokens(weightOf(w.req.Entries[:i+1]))
	}
	return sc.Tokens(weightOf(w.entries[:w.firstChange()])), head
}

// checkpointEnd finds how far the checkpoint reaches: to the end of the closed
// turn that holds the last edit, never less than what it replayed, never into
// a batch that is still open or that was repaired as a whole.
func (w *reduction) checkpointEnd() (covered, n int) {
	entries, last := w.entries, w.covered
	known := map[*byte]bool{}
	for i := range w.req.Entries {
		known[&w.req.Entries[i].Raw()[0]] = true
	}
	for i := range entries {
		if !known[&entries[i].Raw()[0]] {
			last = max(last, i+1)
		}
	}
	for last < len(entries) && (entries[last].Role == transcript.Tool || entries[last-1].End < 0) {
		last++
	}
	last = min(last, w.open)
	for last > 0 && entries[last-1].End < 0 {
		last--
	}
	if last == 0 {
		return 0, 0
	}
	return last, entries[last-1].End
}

// firstChange is the entry with the first byte that is not as it was, the
// list's length if there is none.
func (w *reduction) firstChange() int {
	for i := range w.entries {
		if i >= len(w.req.Entries) || &w.entries[i].Raw()[0] != &w.req.Entries[i].Raw()[0] {
			return i
		}
	}
	return len(w.entries)
}
