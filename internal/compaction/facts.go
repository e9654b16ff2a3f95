package compaction

import (
	"fmt"
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
// what the user said since the task (newest first, verbatim), files written and
// read, failures that still stand, and system messages from the stretch. It is
// made from the originals, which the client sends again on each request, so it
// cannot drift from one compaction to the next. limit is in characters; "" is
// returned for a stretch without facts.
func (s Settings) facts(dropped []transcript.Message, limit int) string {
	b := bounded{room: limit - utf8.RuneCountInString(factsHeader)}
	b.section("Said by the user, newest first:", s.said(dropped))
	written, read, failed := s.worked(dropped)
	b.section("Files written:", written)
	b.section("Files read:", read)
	b.section("Calls that failed and have not succeeded since:", failed)
	var system []string
	for i := range dropped {
		if dropped[i].Role.Instructs() {
			system = append(system, dropped[i].Text())
		}
	}
	b.section("System messages:", system)
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

func (b *bounded) section(title string, items []string) {
	for i, item := range items {
		line := "\n- " + strings.ReplaceAll(strings.TrimSpace(item), "\n", "\n  ")
		if i == 0 {
			line = "\n\n" + title + line
		}
		n := utf8.RuneCountInString(line)
		if n > b.room {
			if b.room > 80 {
				b.text.WriteString(ellipsis(line, b.room-1))
			}
			b.room = 0
			return
		}
		b.text.WriteString(line)
		b.room -= n
	}
}

// said lists the user's texts except the first, which is the task.
func (s Settings) said(dropped []transcript.Message) []string {
	var texts []string
	for i := range dropped {
		if dropped[i].Role == transcript.User {
			if t := strings.TrimSpace(dropped[i].Text()); t != "" {
				texts = append(texts, t)
			}
		}
	}
	if len(texts) < 2 {
		return nil
	}
	texts = texts[1:]
	reverse(texts)
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

func reverse(list []string) {
	for i, j := 0, len(list)-1; i < j; i, j = i+1, j-1 {
		list[i], list[j] = list[j], list[i]
	}
}
