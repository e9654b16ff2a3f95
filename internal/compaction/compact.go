package compaction

import (
	"errors"
	"fmt"
)

// Trigger is what a compaction before the request leaves works towards.
type Trigger struct {
	// Threshold in tokens that the prompt has crossed.
	Threshold int
	// Speed is the server's prefill over its decode rate, 0 if not known yet.
	Speed float64
	// Forward says that the model cannot return to a shorter prompt (sliding window,
	// recurrent): whatever is changed, only what stands before the first turn stays
	// cached.
	Forward bool
}

// Compact makes a list shorter that has crossed the threshold, before the server
// refuses it and without a model: the passes on everything but the protected
// turns, and where those do not leave room enough [Settings.Shorten].
func (s Settings) Compact(req Request, tr Trigger) (Outcome, error) {
	out, enough, err := s.Passes(req, tr)
	if enough || errors.Is(err, ErrOverhead) {
		return out, err
	}
	reasons := out.Reasons
	out, err = s.Shorten(req, tr)
	out.Reasons = append(reasons, out.Reasons...)
	return out, err
}

// Passes runs the cheap passes on everything but the protected turns, and tells
// whether they leave room enough. A rewrite makes the server process everything
// behind its first changed byte again, so one that buys little room is the
// dearest of all.
func (s Settings) Passes(req Request, tr Trigger) (out Outcome, enough bool, err error) {
	if sc := req.Scale; sc.Window > 0 && sc.OverheadTokens() >= sc.Window {
		return Outcome{}, false, ErrOverhead
	}
	w := s.begin(req)
	w.passes(w.tail)
	enough, reason := s.enough(w, tr)
	w.out.Reasons = append(w.out.Reasons, reason)
	out, err = w.outcome()
	out.Reasons = w.out.Reasons
	return out, enough && err == nil, err
}

// Shorten runs the passes and the steps that need no model on everything but the
// protected turns, down to half of the threshold where that can be reached.
func (s Settings) Shorten(req Request, tr Trigger) (Outcome, error) {
	sc := req.Scale
	w := s.begin(req)
	w.passes(w.tail)
	overhead := sc.OverheadTokens() // where that is large, half of the threshold is out of reach
	target := sc.weightFor(max(tr.Threshold/2, overhead+(tr.Threshold-overhead)/3))
	w.shortenOld(target)
	if w.size > target {
		w.drop(target, w.tail)
	}
	w.out.Reasons = append(w.out.Reasons, fmt.Sprintf("shortened by rule to about %d tokens; half of the threshold was aimed at", sc.Tokens(w.size)))
	return w.outcome()
}

// shortenOld clips what stands before the protected turns, the newest
// instruction of the user aside.
func (w *reduction) shortenOld(target int) {
	old := func() []Entry { return w.entries[:w.tail] }
	if w.size > target {
		w.step(PassCalls, func() { w.s.clipCalls(w.entries, w.tail) })
	}
	if w.size > target {
		rest := weightOf(w.entries[w.tail:])
		w.step(PassClip, func() { w.s.clipTo(old(), target-rest, clipFloor, newestInstruction(w.entries)) })
	}
}

// enough tells whether the passes alone leave room enough: by a fixed share of
// the threshold, or by price against a summary.
func (s Settings) enough(w *reduction, tr Trigger) (bool, string) {
	sc := w.req.Scale
	left := sc.Tokens(w.size)
	if share := s.Settle; share >= 0 {
		return float64(left) <= share*float64(tr.Threshold),
			fmt.Sprintf("the passes leave about %d tokens of a threshold of %d; %.2g of it is enough", left, tr.Threshold, share)
	}
	p := s.price(w, tr)
	verdict := "a summary would be cheaper for each token of room"
	alone := p.PassesAlone()
	if alone {
		verdict = "which is cheaper for each token of room than a summary"
	}
	return alone, fmt.Sprintf("the passes leave about %d tokens of a threshold of %d, %s", left, tr.Threshold, verdict)
}

// price estimates what the passes and a summary would come to.
func (s Settings) price(w *reduction, tr Trigger) Price {
	sc := w.req.Scale
	tokens := func(weight int) int { return int(sc.Rate() * float64(weight)) }
	first, head := w.stays()
	if tr.Forward {
		first = head
	}
	length := SummaryLength(sc.windowOrPrompt())
	const instruction = 300 // tokens of the request for a summary
	return Price{
		Threshold: tr.Threshold, Speed: tr.Speed, Head: head, Length: length,
		Passes:      sc.Tokens(w.size),
		Summary:     head + length + tokens(weightOf(w.req.Entries[w.tail:])),
		FirstChange: first,
		Uncached:    instruction,
	}
}
