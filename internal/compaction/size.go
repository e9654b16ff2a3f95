package compaction

import (
	"math"

	"github.com/compactproxy/compactproxy/internal/transcript"
)

// messageWeight stands for what a template writes around a message (role,
// delimiters, call markup), in bytes of text: about five tokens.
const messageWeight = 16

// ForecastBytes is the size of a message as the forecast counts it: the bytes of
// what the model reads, images aside. A byte of a dense run costs three times
// what a byte of text does.
func ForecastBytes(m *transcript.Message) int { return m.ContentBytes() + 2*m.DenseBytes() }

// Weight is the size of a list in bytes of text that the model reads. It is
// proportional to tokens, not equal to them: the rate comes from what the
// server counts.
func Weight(list []transcript.Message) int {
	n := 0
	for i := range list {
		n += weight(&list[i])
	}
	return n
}

func weight(m *transcript.Message) int {
	return ForecastBytes(m) + messageWeight*(1+len(m.Calls))
}

func weightOf(entries []Entry) int {
	n := 0
	for i := range entries {
		n += weight(&entries[i].Message)
	}
	return n
}

// Scale converts weight to tokens at the rate that was measured on the list
// that was refused.
type Scale struct {
	// Prompt is what the server counted for the list (or what is estimated),
	// in tokens.
	Prompt int
	// Window is the slot's window in tokens, 0 if unknown.
	Window int
	// Overhead is the weight of system messages and tools.
	Overhead int
	// List is the weight of the list that Prompt was counted for.
	List int
}

// DefaultRate is tokens per byte where nothing was measured: about 3 bytes a
// token on code and English, the tiny test model's rate and the cautious end
// of real tokenizers.
const DefaultRate = 1.0 / 3

// Rate is tokens per byte of weight.
func (s Scale) Rate() float64 {
	if s.Prompt <= 0 || s.Overhead+s.List <= 0 {
		return DefaultRate
	}
	return float64(s.Prompt) / float64(s.Overhead+s.List)
}

// Tokens converts the weight of a list to the tokens of its whole prompt.
func (s Scale) Tokens(list int) int { return int(math.Round(s.Rate() * float64(s.Overhead+list))) }

// weightFor is the list weight that gives a prompt of that many tokens.
func (s Scale) weightFor(tokens int) int { return int(float64(tokens)/s.Rate()) - s.Overhead }

// OverheadTokens is what no compaction can shrink.
func (s Scale) OverheadTokens() int { return int(s.Rate() * float64(s.Overhead)) }

// windowOrPrompt is the window, or the refused prompt's size where the window
// is unknown: it was larger than the window, and of its order.
func (s Scale) windowOrPrompt() int {
	if s.Window > 0 {
		return s.Window
	}
	return s.Tokens(s.List)
}

// Target is how many tokens the whole prompt should have after a recovery:
// half of the room between overhead and window, or the next turn overflows
// again; a third of the list less than now where there is no window, or where
// our count says that the prompt fits and the server says that it does not. ok
// is false if the overhead alone fills the window, with room for the error of
// its estimate: JSON of tools is not as dense as text.
func (s Scale) Target() (tokens int, ok bool) {
	now, overhead := s.Tokens(s.List), s.OverheadTokens()
	if s.Window <= 0 || now < s.Window {
		return overhead + (now-overhead)*2/3, true
	}
	if overhead >= s.Window+s.Window/4 {
		return 0, false
	}
	return overhead + max(s.Window-overhead, 0)/2, true
}
