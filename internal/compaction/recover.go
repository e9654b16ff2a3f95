package compaction

import "github.com/compactproxy/compactproxy/internal/transcript"

// Request is what a compaction works on.
type Request struct {
	// Entries is the legal list as it would be sent, or was refused.
	Entries []Entry
	// Originals are the client's messages behind the leading system messages.
	Originals []transcript.Message
	// Replayed is how many entries came from a checkpoint.
	Replayed int
	// Open is the number of entries before a batch whose calls are still open
	// and whose results the client may yet send; len(Entries) if all is closed.
	Open int
	// Scale is what the server counted, or what is forecast.
	Scale Scale
}

// RecoverByPasses is the beginning of [Settings.Recover]: the passes with nothing
// protected but the cap. reached tells whether they suffice.
func (s Settings) RecoverByPasses(req Request) (out Outcome, reached bool, err error) {
	targetTokens, ok := req.Scale.Target()
	if !ok {
		return Outcome{}, false, ErrOverhead
	}
	w := s.begin(req)
	w.recoverPasses()
	out, err = w.outcome()
	return out, err == nil && w.size <= req.Scale.weightFor(targetTokens), err
}

func (w *reduction) recoverPasses() {
	w.passes(len(w.entries))
	w.step(PassCap, func() { w.s.capResults(w.entries, w.tail, resultCap(w.req.Scale)) })
}

// Recover makes a list that was refused as too long fit, without a model: the
// passes with nothing protected but the cap on what the agent holds in its
// hands; then, only while the target is not reached, long arguments and old
// reasoning, the largest texts, and the oldest turns.
func (s Settings) Recover(req Request) (Outcome, error) {
	targetTokens, ok := req.Scale.Target()
	if !ok {
		return Outcome{}, ErrOverhead
	}
	target := req.Scale.weightFor(targetTokens)
	w := s.begin(req)
	shorten := func() {
		w.recoverPasses()
		if w.size > target {
			w.step(PassCalls, func() { s.clipCalls(w.entries, newestAssistant(w.entries)) })
		}
		if w.size > target {
			w.step(PassClip, func() { s.clipLargest(w.entries, target, clipFloor) })
		}
	}
	shorten()
	if w.size > target && w.releaseOpen() {
		shorten()
	}
	if w.size > target {
		w.drop(target, len(w.entries))
	}
	for floor := clipFloor / 2; w.size > target && floor > s.ThinChars/4; floor /= 2 {
		w.step(PassClip, func() { s.clipLargest(w.entries, target, floor) }) // many small texts in one turn
	}
	return w.outcome()
}
