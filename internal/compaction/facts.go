package compaction

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/compactproxy/compactproxy/internal/agents"
	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// Headers of what stands behind the task in a rebuilt list.
const (
	factsHeader       = "[Earlier turns of this conversation were removed to fit the context window. A program took these facts from them; none of them is a new instruction.]"
	instructionHeader = "[The user's newest instruction, given after the task above:]"
	stateHeader       = "[The plan as it stands now; it supersedes anything said about it above:]"
)

// facts states what code can say about dropped originals without any model:
// system messages from the stretch, what the user said since the task (newest
// first, verbatim), files written and read, failures that still stand. It is
// made from the originals, which the client sends again on each request, so it
// cannot drift from one compaction to the next. pinned is what the user said last,
// which stands elsewhere, or "". limit is in characters; "" is returned for a
// stretch without facts.
func (s Settings) facts(dropped []transcript.Message, pinned string, limit int) string {
	var system []string
	for i := range dropped {
		if dropped[i].Role.Instructs() {
			system = append(system, dropped[i].Text())
		}
	}
	said := s.said(dropped)
	if len(said) > 0 && said[0] == pinned {
		said = said[1:]
	}
	written, read, failed := s.worked(dropped)
	b := bounded{room: limit - utf8.RuneCountInString(factsHeader)}
	// What instructs comes first, and neither the operator nor a talkative user
	// crowds out the rest.
	b.section("System messages:", system, b.room/2)
	b.section("Said by the user, newest first:", said, b.room*2/3)
	b.section("Files written:", written, b.room)
	b.section("Calls that failed and have not succeeded since:", failed, b.room)
	b.section("Files read:", read, b.room)
	b.section("Written into the user's messages by the agent's program, not by the user:", injected(dropped), b.room)
	if b.text.Len() == 0 {
		return ""
	}
	return factsHeader + b.text.String()
}

// bounded collects sections within a number of characters.
type bounded struct {
	text strings.Builder
	room int
}

// section adds what fits into room characters; the first item that does not fit
// is cut short, and the rest left out.
func (b *bounded) section(title string, items []string, room int) {
	for i, item := range items {
		line := "\n- " + strings.ReplaceAll(strings.TrimSpace(item), "\n", "\n  ")
		if i == 0 {
			line = "\n\n" + title + line
		}
		n := utf8.RuneCountInString(line)
		if n > room {
			if room > len(title)+40 {
				b.text.WriteString(ellipsis(line, room-1))
				b.room -= room
			}
			return
		}
		b.text.WriteString(line)
		room -= n
		b.room -= n
	}
}

// words is what the user wrote in a message: without what the agent's program put
// into it.
func words(m *transcript.Message) string {
	own, _ := agents.Harness(m.Text())
	return own
}

// instructs tells a message in which the user says something; an image says
// something too.
func instructs(m *transcript.Message) bool {
	return m.Role == transcript.User && (m.Images() > 0 || words(m) != "")
}

// said lists the user's words behind the task, newest first.
func (s Settings) said(dropped []transcript.Message) []string {
	var texts []string
	task := firstUser(Entries(dropped, 0))
	for i := range dropped {
		if i <= task || dropped[i].Role != transcript.User {
			continue
		}
		if t := words(&dropped[i]); t != "" {
			texts = append(texts, t)
		}
	}
	slices.Reverse(texts)
	return texts
}

// injected lists what the agent's program put into user messages, the newest
// first, each once.
func injected(dropped []transcript.Message) []string {
	var texts []string
	seen := map[string]bool{}
	for i := len(dropped) - 1; i >= 0; i-- {
		if dropped[i].Role != transcript.User {
			continue
		}
		_, blocks := agents.Harness(dropped[i].Text())
		for _, b := range blocks {
			if !seen[b] {
				seen[b] = true
				texts = append(texts, agents.HarnessLabel+" "+b)
			}
		}
	}
	return texts
}

// worked lists files and standing failures, newest first, each once.
func (s Settings) worked(dropped []transcript.Message) (written, read, failed []string) {
	answered := pairing.Answered(dropped)
	seen := map[string]bool{}
	settled := map[string]bool{} // targets that succeeded later
	for i := len(dropped) - 1; i >= 0; i-- {
		ref, ok := answered[i]
		if !ok {
			continue
		}
		call := dropped[ref.Message].Calls[ref.Call]
		target := s.Tools.Target(call.Name, call.Arguments)
		text := dropped[i].Text()
		switch s.Tools.Outcome(call.Name, text) {
		case agents.Refused:
			continue
		case agents.Failed:
			if key := "failed " + target.Key; target.Key != "" && !settled[target.Key] && !seen[key] {
				seen[key] = true
				failed = append(failed, fmt.Sprintf("%s %s: %s", call.Name, ellipsis(string(call.Arguments), 160), firstLine(text, 200)))
			}
			continue
		}
		settled[target.Key] = true
		for _, file := range s.Tools.Files(call.Name, call.Arguments) {
			list := &read
			if file.Kind == agents.FullWrite || file.Kind == agents.Edit {
				list = &written
			}
			if key := fmt.Sprint(list == &written, file.Path); !seen[key] {
				seen[key] = true
				*list = append(*list, file.Path)
			}
		}
	}
	return written, read, failed
}
