package compaction

import (
	"github.com/compactproxy/compactproxy/internal/agents"
	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// Edit says what a compaction did to a message. It is kept with the
// checkpoint, so that a later compaction never has to recognise our own
// markers in text that a model or a tool may have written.
type Edit uint8

// The edits, one per message: the last one that changed it.
const (
	Untouched Edit = iota
	Evicted        // a result that a newer one supersedes
	Collapsed      // a failure that happened again later
	Thinned        // an old result, cut to its beginning and last line
	Capped         // a protected result, cut to a cap
	Clipped        // a text or arguments, cut by the last resort
	Rebuilt        // the task, with what is known of the turns that went behind it
)

var editNames = [...]string{"", "evicted", "collapsed", "thinned", "capped", "clipped", "rebuilt"}

func (e Edit) String() string { return editNames[e] }

// Entry is one message of the effective list.
type Entry struct {
	transcript.Message
	// End is the number of original messages (leading system messages aside)
	// that this entry and all before it stand for; -1 inside a group that was
	// repaired as a whole, where the list cannot be cut.
	End int
	// Edit is what was done to the message.
	Edit Edit
	// Outcome is what became of the call that an edited result answers, read off
	// the result while it was whole.
	Outcome agents.Outcome
	// Task is the message before facts were appended to it; only on a Rebuilt
	// entry.
	Task *transcript.Message
	// Summary is what a model wrote of the turns that a Rebuilt entry stands for, ""
	// for none. The next summary folds it in.
	Summary string
}

// Entries wraps original messages that nothing was done to; first is the
// number of originals before them.
func Entries(list []transcript.Message, first int) []Entry {
	out := make([]Entry, len(list))
	for i := range list {
		out[i] = Entry{Message: list[i], End: first + i + 1}
	}
	return out
}

// Messages is the list that is forwarded.
func Messages(entries []Entry) []transcript.Message {
	out := make([]transcript.Message, len(entries))
	for i := range entries {
		out[i] = entries[i].Message
	}
	return out
}

// Repair makes the list legal. See [pairing.Repair]; the violations are what was
// wrong. open is where a batch begins that the client may yet answer, since a
// result was invented for it and nothing follows but what is not an assistant's:
// no checkpoint may cover that. It is the list's length where there is none.
func Repair(entries []Entry) (legal []Entry, open int, violations []pairing.Violation) {
	r := pairing.Repair(Messages(entries))
	if r.Violations == nil {
		return entries, len(entries), nil
	}
	legal = make([]Entry, len(r.Messages))
	for i, m := range r.Messages {
		legal[i].Message, legal[i].End = m, -1
		if from := r.From[i]; from >= 0 {
			legal[i].Edit, legal[i].Outcome = entries[from].Edit, entries[from].Outcome
			legal[i].Task, legal[i].Summary = entries[from].Task, entries[from].Summary
		}
		if end := r.End[i]; end > 0 {
			legal[i].End = entries[end-1].End
		}
	}
	open = len(legal)
	newest := newestAssistant(entries)
	for _, v := range r.Violations {
		if v.Kind == pairing.UnansweredCall && v.Message == newest {
			open = newestAssistant(legal)
		}
	}
	return legal, open, r.Violations
}

// newestAssistant is the entry where the newest assistant turn begins, or the
// list's length if there is none.
func newestAssistant(entries []Entry) int {
	for i := len(entries) - 1; i >= 0; i-- {
		if entries[i].Role == transcript.Assistant {
			return i
		}
	}
	return len(entries)
}

// with returns the entry with its message replaced by an edited one.
func (e Entry) with(m transcript.Message, edit Edit) Entry {
	e.Message, e.Edit = m, edit
	return e
}

func turns(entries []Entry) []transcript.Turn { return transcript.Turns(Messages(entries)) }
