package compaction

import "fmt"

// Reserve is the room in tokens that the answer needs within the window. A large
// max_tokens that a client always sends must not eat the window: requested is
// believed up to an eighth of it, or 4,096 tokens where those are at most a
// quarter. 0 stands for a request without a cap.
func Reserve(window, requested int) int {
	reserve := max(window/8, min(4096, window/4))
	if requested > 0 {
		return min(requested, reserve)
	}
	return reserve
}

// Shares of the window at which compaction fires by itself. The larger one needs
// the server's own count; the smaller one is for a forecast alone.
const (
	exactShare    = 0.85
	forecastShare = 0.66
)

// Limits are what a threshold is made of.
type Limits struct {
	Window    int     // tokens, 0 if unknown
	Requested int     // the request's cap on its answer in tokens, 0 if none
	Overhead  int     // tokens of system messages and tools
	Exact     bool    // the server counts tokens for us
	AtTokens  int     // the user's own number of tokens, 0 for none
	Fraction  float64 // the user's own fraction of the window, 0 for auto
}

// Threshold is the size in tokens at which a prompt is compacted, 0 for never: no
// window and no number of the user's. warning says what is odd about the user's
// own number, "" if nothing is.
func (l Limits) Threshold() (tokens int, warning string) {
	room := l.Window - Reserve(l.Window, l.Requested)
	switch {
	case l.AtTokens > 0:
		tokens = l.AtTokens
		if l.Window > 0 && tokens > room {
			tokens = room
			warning = fmt.Sprintf("at_tokens %d leaves no room for an answer in a window of %d and was lowered to %d", l.AtTokens, l.Window, room)
		}
	case l.Window <= 0:
		return 0, ""
	case l.Fraction > 0:
		tokens = int(l.Fraction * float64(l.Window))
	default:
		tokens = int(forecastShare * float64(l.Window))
		if l.Exact {
			tokens = min(int(exactShare*float64(l.Window)), room)
		}
		// A large overhead must not make it fire on every turn.
		return max(tokens, l.Overhead+(l.Window-l.Overhead)/2), ""
	}
	if warning == "" && l.Overhead >= tokens {
		warning = fmt.Sprintf("system messages and tools alone take about %d tokens, over the threshold of %d: every turn would be compacted", l.Overhead, tokens)
	}
	return tokens, warning
}
