package compaction

import "github.com/compactproxy/compactproxy/internal/agents"

// collapse replaces all but the newest of failures with the same target and
// the same error text. It frees little; it is there because a model that reads
// its own errors again and again repeats them. Another error on the same target
// is another fact, and stays. Entries from before on are left as they are.
func (s Settings) collapse(entries []Entry, before int) {
	type failure struct{ target, text string }
	seen := map[failure]bool{}
	all := s.results(entries)
	for i := len(all) - 1; i >= 0; i-- {
		r := all[i]
		if r.outcome != agents.Failed || r.target.Key == "" {
			continue
		}
		key := failure{r.target.Key, agents.MaskVolatile(r.text)}
		if seen[key] && r.at < before {
			r.replace(entries, collapsedText, Collapsed)
		}
		seen[key] = true
	}
}

const collapsedText = "[This call failed again later in the same way; the newest failure stands further down. Repeating it unchanged has not worked.]"
