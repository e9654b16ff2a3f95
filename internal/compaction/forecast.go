package compaction

// Report is what the server said of one request: its prompt in tokens, and the
// bytes of text that were sent for it.
type Report struct{ Tokens, Bytes int }

// Anchor holds the last two reports of a conversation, the newest first. The
// zero value has seen none.
type Anchor struct{ Last, Before Report }

// Observe returns the anchor with a newer report.
func (a Anchor) Observe(r Report) Anchor { return Anchor{Last: r, Before: a.Last} }

// Limits of the measured rate: a real tokenizer stays within one token for
// three bytes and one for one, and a difference of fewer bytes than this is
// mostly template.
const (
	minRate      = 1.0 / 3
	maxRate      = 1.0
	minRateBytes = 512
)

// Forecast is the size of the next prompt in tokens: the last report plus what
// was added since, at the rate between the last two reports. known is false
// before the first report.
func (a Anchor) Forecast(bytes int) (tokens int, known bool) {
	if a.Last.Tokens <= 0 {
		return int(float64(bytes) * minRate), false
	}
	rate := minRate
	added, grown := a.Last.Bytes-a.Before.Bytes, a.Last.Tokens-a.Before.Tokens
	if a.Before.Tokens > 0 && added >= minRateBytes && grown > 0 {
		rate = min(max(float64(grown)/float64(added), minRate), maxRate)
	}
	return max(a.Last.Tokens+int(rate*float64(bytes-a.Last.Bytes)), 0), true
}
