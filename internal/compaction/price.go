package compaction

// DefaultSpeed is the ratio of prefill to decode speed that is assumed until the
// server has reported its own twice.
const DefaultSpeed = 20

// Price is what the choice between the passes alone and a summary depends on, in
// tokens.
type Price struct {
	Threshold int
	// Passes and Summary are the sizes of the prompt after either.
	Passes, Summary int
	// FirstChange is the position of the first token that the passes change: what
	// stands before it stays cached. On models that cannot roll back it is Head.
	FirstChange int
	// Head is overhead and task: what stays cached after a summary.
	Head int
	// Length is how long the summary is asked to be.
	Length int
	// Uncached is what the server must process to be asked for the summary.
	Uncached int
	// Speed is prefill rate over decode rate, 0 for DefaultSpeed.
	Speed float64
}

// PassesAlone chooses by price: the tokens that must be processed or decoded for
// each token of room that they buy, with the rates that the server reports and no
// tuned parameter.
func (p Price) PassesAlone() bool {
	switch {
	case p.Passes >= p.Threshold:
		return false
	case p.Summary >= p.Threshold:
		return true
	}
	speed := p.Speed
	if speed <= 0 {
		speed = DefaultSpeed
	}
	const check = 100 // tokens that the check of a summary decodes
	passes := float64(p.Passes-p.FirstChange) / float64(p.Threshold-p.Passes)
	summary := (float64(p.Summary-p.Head+p.Uncached) + speed*float64(p.Length+check)) / float64(p.Threshold-p.Summary)
	return passes <= summary
}

// SummaryLength is how long a summary is asked to be, in tokens: decoding it is
// the largest cost of a compaction on a desktop machine.
func SummaryLength(window int) int { return min(max(window/32, 500), 1000) }

// Speed learns the ratio of prefill to decode speed from what the server reports
// of its answers. The zero value knows nothing.
type Speed struct {
	usable          int
	prefill, decode float64 // tokens a second, of the last usable reports
}

// Batches of fewer tokens than these say more about the clock than about the
// server.
const (
	minPrefillTokens = 256
	minDecodeTokens  = 16
)

// Observe returns the speed with a newer report: tokens processed and decoded,
// and the milliseconds that they took.
func (s Speed) Observe(prefilled int, prefillMS float64, decoded int, decodeMS float64) Speed {
	if prefilled < minPrefillTokens || decoded < minDecodeTokens || prefillMS <= 0 || decodeMS <= 0 {
		return s
	}
	prefill, decode := float64(prefilled)/prefillMS, float64(decoded)/decodeMS
	if s.usable > 0 { // one odd answer does not turn the choice
		prefill, decode = (prefill+s.prefill)/2, (decode+s.decode)/2
	}
	return Speed{s.usable + 1, prefill, decode}
}

// Ratio is prefill speed over decode speed, 0 before two usable reports.
func (s Speed) Ratio() float64 {
	if s.usable < 2 {
		return 0
	}
	return s.prefill / s.decode
}
