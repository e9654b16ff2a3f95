package compaction

import (
	"github.com/compactproxy/compactproxy/internal/agents"
	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// result is a tool result as the passes see it.
type result struct {
	at      int // index of its entry
	edit    Edit
	call    transcript.Call
	target  agents.Target
	text    string
	outcome agents.Outcome // a refusal by a person, a hook or a policy is never touched
}

// results lists the answered results that still say something, oldest first:
// not those that a marker has replaced.
func (s Settings) results(entries []Entry) []result {
	answered := pairing.Answered(Messages(entries))
	var all []result
	for i := range entries {
		ref, ok := answered[i]
		if !ok || entries[i].Edit == Evicted || entries[i].Edit == Collapsed {
			continue
		}
		call := entries[ref.Message].Calls[ref.Call]
		text := entries[i].Text()
		outcome := entries[i].Outcome
		if entries[i].Edit == Untouched {
			outcome = s.Tools.Outcome(call.Name, text)
		}
		all = append(all, result{
			at: i, edit: entries[i].Edit, call: call, text: text, outcome: outcome,
			target: s.Tools.Target(call.Name, call.Arguments),
		})
	}
	return all
}

// replace puts a shorter text in the result's place, and does nothing where it
// would not be shorter.
func (r result) replace(entries []Entry, text string, edit Edit) {
	m := entries[r.at].WithText(text)
	if m.TextBytes() >= entries[r.at].TextBytes() {
		return
	}
	entries[r.at] = entries[r.at].with(m, edit)
	entries[r.at].Outcome = r.outcome
}
