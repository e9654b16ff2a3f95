package compaction

import (
	"fmt"

	"github.com/compactproxy/compactproxy/internal/agents"
)

// evict replaces results that a newer one supersedes: two versions of one file
// in a prompt cost more than their tokens, since the older one is related to
// the work and wrong about it. Failures neither supersede nor are evicted:
// they say nothing about the target's state, and "what failed" keeps a model
// from trying it again. Entries from before on are left as they are, though they
// speak for older ones.
func (s Settings) evict(entries []Entry, before int) {
	newest := map[string][]result{} // by target, those that may supersede
	all := s.results(entries)
	for i := len(all) - 1; i >= 0; i-- {
		r := all[i]
		if r.outcome == agents.Failed || r.outcome == agents.Refused {
			continue
		}
		for _, newer := range newest[r.target.Key] {
			if r.at < before && agents.Supersedes(newer.target, r.target) {
				r.replace(entries, evictedText(r.call.Name, newer.call.Name), Evicted)
				break
			}
		}
		if len(newest[r.target.Key]) < 4 { // a full write or read, and some ranges
			newest[r.target.Key] = append(newest[r.target.Key], r)
		}
	}
}

func evictedText(tool, by string) string {
	return fmt.Sprintf("[Out of date: a later %s call covers the same target, and its result is the one that counts. "+
		"This older result was removed; call %s again if you need it.]", by, tool)
}
