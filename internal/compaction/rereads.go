package compaction

import (
	"github.com/compactproxy/compactproxy/internal/agents"
	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// Rereads counts the files that the newest calls read again although they had
// been read before, in the first covered originals, and what was read is not
// there any more: the price of a compaction that took too much. entries is the
// effective list; originals from since on are new.
func (s Settings) Rereads(entries []Entry, originals []transcript.Message, covered, since int) int {
	again := map[string]bool{}
	for _, m := range originals[min(max(since, covered), len(originals)):] {
		for _, path := range s.reads(&m) {
			again[path] = true
		}
	}
	if len(again) == 0 {
		return 0
	}
	before := map[string]bool{}
	for i := range originals[:min(covered, len(originals))] {
		for _, path := range s.reads(&originals[i]) {
			before[path] = true
		}
	}
	for i, ref := range pairing.Answered(Messages(entries)) {
		if entries[i].Edit != Untouched || entries[ref.Message].End > since {
			continue
		}
		call := entries[ref.Message].Calls[ref.Call]
		for _, f := range s.Tools.Files(call.Name, call.Arguments) {
			delete(again, f.Path) // still to be seen
		}
	}
	n := 0
	for path := range again {
		if before[path] {
			n++
		}
	}
	return n
}

func (s Settings) reads(m *transcript.Message) []string {
	var paths []string
	for _, c := range m.Calls {
		for _, f := range s.Tools.Files(c.Name, c.Arguments) {
			if f.Kind == agents.FullRead || f.Kind == agents.RangeRead {
				paths = append(paths, f.Path)
			}
		}
	}
	return paths
}
