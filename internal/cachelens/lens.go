// Package cachelens says of each answered request whether the server's prompt
// cache paid, and where it did not, why.
//
// # Model
//
// Where a prompt extends the last one of its conversation, all tokens of the last
// one should come from the cache. What the server processed of them nonetheless
// is paid again. Re-paid by more than [Slack] tokens and by more than a quarter of
// the last prompt is a miss, and a miss where neither client nor proxy changed
// anything is worth a warning.
//
// # What it must not know
//
// How a prompt was made, and what to do about a miss: it compares numbers.
package cachelens

// Reason says why tokens were paid again.
type Reason string

// The reasons, as the metric cache_misses_total has them.
const (
	FirstTurn     Reason = "first_turn"     // nothing to compare with
	Compaction    Reason = "compaction"     // the proxy rewrote the history
	ClientChanged Reason = "client_changed" // the client changed an old message
	ToolsChanged  Reason = "tools_changed"
	SystemChanged Reason = "system_changed"
	// Template: a thinking template renders the reasoning of a tool loop anew, or
	// drops it, once the user has written again.
	Template      Reason = "template"
	ServerEvicted Reason = "server_evicted" // nothing changed: the server lost it
)

// Reasons lists them, for counters that exist from the start.
var Reasons = []Reason{FirstTurn, Compaction, ClientChanged, ToolsChanged, SystemChanged, Template, ServerEvicted}

// Slack is how many tokens may be paid again without a word: a batch, or the
// distance of two checkpoints of a server that cannot roll back.
const Slack = 1024

// Turn is an answered request beside the one before it.
type Turn struct {
	Last   int // tokens of the last prompt, 0 if there was none
	Prompt int // tokens of this one
	Cached int // of those from cache; negative if the server does not say

	SystemChanged, ToolsChanged bool
	Compacted                   bool // the proxy rewrote what it forwarded last time
	ClientChanged               bool // an old message is not what it was
	// NewUser: the user has written since; Reasoning: the history holds some.
	NewUser, Reasoning bool
}

// Reading is what the lens sees.
type Reading struct {
	Expected int // tokens that should have come from the cache
	Reused   int // of those, what did
	Miss     Reason
	// Unexplained misses are worth a warning: nothing was changed.
	Unexplained bool
}

// Read compares. A server that never reports a cache figure is never accused.
func Read(t Turn) Reading {
	if t.Cached < 0 {
		return Reading{}
	}
	reason := t.reason()
	var r Reading
	paid := t.Prompt - t.Cached
	if t.Last > 0 {
		paid = t.Last - t.Cached
	}
	if reason == Template || reason == ServerEvicted { // the prompt extends the last one
		// The last token of a prompt is always evaluated.
		r.Expected = min(t.Last, max(t.Prompt-1, 0))
		r.Reused = min(t.Cached, r.Expected)
	}
	whole := t.Last
	if whole == 0 {
		whole = t.Prompt
	}
	if paid > Slack && 4*paid > whole {
		r.Miss = reason
		r.Unexplained = r.Expected > 0
	}
	return r
}

// reason is why tokens were paid again, if they were.
func (t Turn) reason() Reason {
	switch {
	case t.Last == 0:
		return FirstTurn
	case t.SystemChanged:
		return SystemChanged
	case t.ToolsChanged:
		return ToolsChanged
	case t.Compacted:
		return Compaction
	case t.ClientChanged:
		return ClientChanged
	case t.NewUser && t.Reasoning:
		return Template
	}
	return ServerEvicted
}
