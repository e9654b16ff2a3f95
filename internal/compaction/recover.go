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
	KindPasses Kind = "passes" // the cheap passes sufficed
	KindClip   Kind = "clip"   // texts were clipped or turns dropped
)

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
)

// Passes lists every step, for counters that exist from the start.
var Passes = []Pass{PassEvict, PassCollapse, PassThin, PassCap, PassCalls, PassClip, PassDrop}

// Request is what a recovery works on.
type Request struct {
	// Entries is the legal list that was refused.
	Entries []Entry
	// Originals are the client's messages behind the leading system messages.
	Originals []transcript.Message
	// Replayed is how many entries came from a checkpoint.
	Replayed int
	// Open is the number of entries before a batch whose calls are still open
	// and whose results the client may yet send; len(Entries) if all is closed.
	Open int
	// Scale is what the server counted.
	Scale Scale
}

// Outcome is a list that fits, and the checkpoint that gives the same list
// again on the client's next request.
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
	// Before and After are prompt sizes in tokens at the measured rate.
	Before, After int
}

// The reasons why a list cannot be made to fit.
var (
	// ErrOverhead: system messages and tools alone fill the window.
	ErrOverhead = errors.New("recover: system messages and tools alone exceed the window")
	// ErrNothing: every step left the list as it was.
	ErrNothing = errors.New("recover: nothing can be shortened")
	// ErrIllegal: the rewritten list broke the pairing rules and was dropped.
	ErrIllegal = errors.New("recover: the rewritten list is not legally paired")
)

// Recover makes a list that was refused as too long fit, without a model: the
// passes with nothing protected but the cap on what the agent holds in its
// hands; then, only while the target is not reached, long arguments and old
// reasoning, the largest texts, and the oldest turns.
func (s Settings) Recover(req Request) (Outcome, error) {
	sc := req.Scale
	targetTokens, ok := sc.Target()
	if !ok {
		return Outcome{}, ErrOverhead
	}
	target := sc.weightFor(targetTokens)
	entries := append([]Entry(nil), req.Entries...)
	before := weightOf(entries)
	out := Outcome{Kind: KindPasses, Removed: map[Pass]int{}, Before: sc.Tokens(before)}

	tail := s.tailStart(entries, sc)
	size := before
	// Behind Open nothing can be kept for the next request, so that an edit there
	// would come undone: hold that part back as long as the rest suffices.
	hold := min(req.Open, len(entries))
	step := func(pass Pass, do func()) {
		do()
		if hold < len(entries) {
			copy(entries[hold:], req.Entries[hold:])
		}
		now := weightOf(entries)
		out.Removed[pass] += size - now
		size = now
	}
	shorten := func() {
		step(PassEvict, func() { s.evict(entries) })
		step(PassCollapse, func() { s.collapse(entries) })
		step(PassThin, func() { s.thin(entries, tail) })
		step(PassCap, func() { s.capResults(entries, tail, resultCap(sc)) })
		if size > target {
			out.Kind = KindClip
			step(PassCalls, func() { s.clipCalls(entries, newestAssistant(entries)) })
		}
		if size > target {
			step(PassClip, func() { s.clipLargest(entries, target, clipFloor) })
		}
	}
	shorten()
	if size > target && hold < len(entries) {
		hold = len(entries)
		shorten()
	}
	hold = math.MaxInt // from here on entries are no longer those of the request
	covered := req.Replayed
	if size > target {
		dropped := len(entries)
		step(PassDrop, func() { entries = s.drop(entries, req.Originals, sc, target) })
		if dropped -= len(entries); dropped > 0 {
			covered = max(covered-dropped, 1)
			req.Open = max(req.Open-dropped, 0)
		}
	}
	for floor := clipFloor / 2; size > target && floor > s.ThinChars/4; floor /= 2 {
		step(PassClip, func() { s.clipLargest(entries, target, floor) }) // many small texts in one turn
	}
	if size >= before {
		return Outcome{}, ErrNothing
	}
	if pairing.Check(Messages(entries)) != nil {
		return Outcome{}, ErrIllegal
	}
	out.Entries, out.After = entries, sc.Tokens(size)
	out.Covered, out.N = checkpointEnd(entries, covered, req)
	out.Open = req.Open
	return out, nil
}

// checkpointEnd finds how far the checkpoint reaches: to the end of the closed
// turn that holds the last edit, never less than what it replayed, never into
// a batch that is still open or that was repaired as a whole.
func checkpointEnd(entries []Entry, replayed int, req Request) (covered, n int) {
	last := replayed
	known := map[*byte]bool{}
	for i := range req.Entries {
		known[&req.Entries[i].Raw()[0]] = true
	}
	for i := range entries {
		if !known[&entries[i].Raw()[0]] {
			last = max(last, i+1)
		}
	}
	for last < len(entries) && (entries[last].Role == transcript.Tool || entries[last-1].End < 0) {
		last++
	}
	last = min(last, req.Open)
	for last > 0 && entries[last-1].End < 0 {
		last--
	}
	if last == 0 {
		return 0, 0
	}
	return last, entries[last-1].End
}
