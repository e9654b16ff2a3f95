package compaction

// Report is what the server said of one request: its prompt in tokens (images
// aside), and the bytes of text that were sent for it.
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

// sparseRate is the lowest rate that a real tokenizer shows: plain English at
// six bytes a token.
const sparseRate = 1.0 / 6

// Known tells whether there was a report.
func (a Anchor) Known() bool { return a.Last.Tokens > 0 }

// Forecast is the size of the next prompt in tokens: the last report plus what
// was added since, at the rate between the last two reports. A prompt that lost
// bytes is the last one in proportion: the clamped rate would credit too much to
// what was removed. Before the first report it is a third of a token for each
// byte.
func (a Anchor) Forecast(bytes int) int {
	added := bytes - a.Last.Bytes
	switch {
	case !a.Known():
		return int(float64(bytes) * minRate)
	case added < 0:
		return a.shrunk(bytes)
	}
	return a.Last.Tokens + int(a.rate()*float64(added))
}

func (a Anchor) rate() float64 {
	added, grown := a.Last.Bytes-a.Before.Bytes, a.Last.Tokens-a.Before.Tokens
	if a.Before.Tokens > 0 && added >= minRateBytes && grown > 0 {
		return min(max(float64(grown)/float64(added), minRate), maxRate)
	}
	return minRate
}

func (a Anchor) shrunk(bytes int) int {
	return int(float64(a.Last.Tokens) * float64(max(bytes, 0)) / float64(a.Last.Bytes))
}

// Plausible is the range in which the next prompt lies with any tokenizer: where
// a threshold lies within, only the server can tell.
func (a Anchor) Plausible(bytes int) (low, high int) {
	if !a.Known() {
		return int(float64(bytes) * sparseRate), bytes
	}
	added := bytes - a.Last.Bytes
	if added < 0 {
		n := a.shrunk(bytes)
		return n * 3 / 4, min(n*4/3, a.Last.Tokens)
	}
	return a.Last.Tokens + int(float64(added)*sparseRate), a.Last.Tokens + added
}
