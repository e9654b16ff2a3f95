package compaction

import (
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/compactproxy/compactproxy/internal/transcript"
)

// drop removes the oldest turns, as few as bring the list to the target weight,
// and puts facts about them behind the task. originals are the client's
// messages behind the leading system messages. The kept part begins at an
// assistant message, is at least the newest turn, and holds everything from
// entry tail on. Where nothing can go, the entries come back as they are.
func (s Settings) drop(entries []Entry, originals []transcript.Message, sc Scale, target, tail int) []Entry {
	var cuts []int // where the kept part may begin
	for _, t := range turns(entries) {
		if t.Start > 0 && t.Start <= tail && t.Role == transcript.Assistant && entries[t.Start-1].End >= 0 {
			cuts = append(cuts, t.Start)
		}
	}
	// Behind the last assistant turn only the newest instruction stays.
	if n := len(entries); n > 1 && n <= tail && entries[n-1].Role == transcript.User && entries[n-1].End >= 0 {
		cuts = append(cuts, n)
	}
	if len(cuts) == 0 {
		return entries
	}
	// The weight falls from cut to cut, but for facts, which are bounded.
	first := sort.Search(len(cuts), func(i int) bool {
		return weightOf(s.rebuild(entries, cuts[i], originals, sc, "")) <= target
	})
	out := s.rebuild(entries, cuts[min(first, len(cuts)-1)], originals, sc, "")
	if weightOf(out) >= weightOf(entries) {
		return entries
	}
	return out
}

// rebuild keeps the entries from at on, and before them the task with what is
// known of the rest behind it: the summary, the facts that code can state, the
// newest instruction where it is not among the kept ones, and the agent's plan,
// last. Without a new summary an earlier one stays.
func (s Settings) rebuild(entries []Entry, at int, originals []transcript.Message, sc Scale, summary string) []Entry {
	end := entries[at-1].End
	dropped := originals[:end]

	head := Entry{Message: transcript.NewUser("")}
	if i := firstUser(entries[:at]); i >= 0 {
		head = entries[i]
	}
	task := head.Message
	if head.Task != nil {
		task = *head.Task
	}

	if task.ContentBytes() == 0 && task.Images() == 0 {
		// The list began with an assistant and the head is our own: the user may
		// have spoken since.
		for i := range dropped {
			if dropped[i].Role == transcript.User {
				task = dropped[i]
				break
			}
		}
	}

	limit := int(float64(sc.windowOrPrompt()) / 16 / sc.Rate())
	var blocks []string
	if summary == "" {
		summary = head.Summary
	}
	if summary != "" {
		blocks = append(blocks, summaryHeader+"\n"+summary)
	}
	kept := newestInstruction(entries)
	pinned := ""
	if kept < at { // the newest instruction goes: say it once, verbatim
		if texts := s.said(dropped); len(texts) > 0 {
			pinned = texts[0]
		}
	}
	if facts := s.facts(dropped, pinned, limit); facts != "" {
		blocks = append(blocks, facts)
	}
	if pinned != "" {
		blocks = append(blocks, instructionHeader+"\n"+cutToBytes(pinned, 4*limit)) // a quarter of the window
	}
	if state := s.state(entries[at:], dropped, limit); state != "" {
		blocks = append(blocks, stateHeader+"\n"+state)
	}
	if len(blocks) == 0 {
		blocks = append(blocks, factsHeader) // say at least that something went
	}
	message := task.WithAppended(strings.Join(blocks, "\n\n"))
	out := make([]Entry, 0, len(entries)-at+1)
	out = append(out, Entry{Message: message, End: end, Edit: Rebuilt, Task: &task, Summary: summary})
	return append(out, entries[at:]...)
}

// firstUser is the entry of the task, the first in which the user says something;
// -1 if there is no user message.
func firstUser(entries []Entry) int {
	if i := slices.IndexFunc(entries, func(e Entry) bool { return instructs(&e.Message) }); i >= 0 {
		return i
	}
	return slices.IndexFunc(entries, func(e Entry) bool { return e.Role == transcript.User })
}

// state is the agent's plan where its newest call is dropped: it is looked for in
// the originals, so that it survives one drop after another.
func (s Settings) state(kept []Entry, dropped []transcript.Message, limit int) string {
	if !s.CarriedState || s.newestStateCall(Messages(kept)).message >= 0 {
		return ""
	}
	ref := s.newestStateCall(dropped)
	if ref.message < 0 {
		return ""
	}
	call := dropped[ref.message].Calls[ref.call]
	text, ok := s.Tools.State(call.Name, call.Arguments)
	if !ok {
		return ""
	}
	if utf8.RuneCountInString(text) > limit {
		text = headTail(text, limit/2, limit/2)
	}
	return "## " + call.Name + "\n" + text
}
