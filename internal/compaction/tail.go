package compaction

import "github.com/compactproxy/compactproxy/internal/transcript"

// tailStart returns the entry at which the protected turns begin: the newest
// keep_recent turns, more while they stay under tail_min of the window, fewer
// while they exceed tail_max, never less than the newest one. The tail begins
// at an assistant message, so that its calls come with their results, or, where
// the agent has not spoken, at the newest message.
func (s Settings) tailStart(entries []Entry, sc Scale) int {
	window := float64(sc.windowOrPrompt())
	start, kept, size := len(entries), 0, 0
	all := turns(entries)
	for i := len(all) - 1; i >= 0; i-- {
		t := all[i]
		if t.Role != transcript.Assistant {
			size += weightOf(entries[t.Start:t.End])
			continue // rides along with the assistant turn before it
		}
		size += weightOf(entries[t.Start:t.End])
		tokens := sc.Rate() * float64(size)
		if kept > 0 && (tokens > s.TailMax*window || kept >= s.KeepRecent && tokens > s.TailMin*window) {
			break
		}
		start = t.Start
		kept++
	}
	if kept == 0 && len(all) > 0 {
		return all[len(all)-1].Start // the agent has not spoken: the newest message is all there is
	}
	return start
}
