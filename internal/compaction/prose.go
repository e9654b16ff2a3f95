package compaction

import (
	"strings"

	"github.com/compactproxy/compactproxy/internal/agents"
	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// Characters that a transcript keeps of each field. Nothing in it is unbounded: a
// reported summary call took in 7.9 million characters of thinking.
const (
	proseResult    = 2_000
	proseText      = 4_000
	proseArguments = 1_000
	proseSummary   = 16_000 // what stands nowhere else
)

// prose renders entries as labelled text, one piece for each message, every field
// bounded.
func prose(entries []Entry) []string {
	list := Messages(entries)
	answered := pairing.Answered(list)
	pieces := make([]string, 0, len(list))
	for i := range list {
		m := &list[i]
		var b strings.Builder
		switch m.Role {
		case transcript.User:
			if e := entries[i]; e.Task != nil { // each part has a bound of its own
				rest := strings.TrimPrefix(m.Text(), e.Task.Text())
				rest = strings.Replace(rest, e.Summary, "", 1)
				labelled(&b, "User", shortened(agents.Labelled(e.Task.Text()), proseText))
				labelled(&b, "Summary of earlier turns", shortened(e.Summary, proseSummary))
				labelled(&b, "Facts about earlier turns", shortened(rest, proseText))
				break
			}
			labelled(&b, "User", shortened(agents.Labelled(m.Text()), proseText))
		case transcript.Tool:
			name := "a call"
			if ref, ok := answered[i]; ok {
				name = list[ref.Message].Calls[ref.Call].Name
			}
			labelled(&b, "Result of "+ellipsis(name, 80), shortened(m.Text(), proseResult))
		case transcript.Assistant:
			labelled(&b, "Agent", shortened(m.Text(), proseText))
			for _, c := range m.Calls {
				labelled(&b, "Agent called "+ellipsis(c.Name, 80), shortened(string(c.Arguments), proseArguments))
			}
		default:
			labelled(&b, "Operator", shortened(m.Text(), proseText))
		}
		if n := m.Images(); n > 0 {
			labelled(&b, "Note", "the message holds an image, which is not shown here")
		}
		if b.Len() > 0 {
			pieces = append(pieces, b.String())
		}
	}
	return pieces
}

func labelled(b *strings.Builder, who, text string) {
	if text = strings.TrimSpace(text); text != "" {
		b.WriteString(who + ":\n" + text + "\n\n")
	}
}

func shortened(text string, limit int) string {
	if len(text) <= limit { // bytes: never more characters
		return text
	}
	return headTail(text, limit*3/4, limit/4)
}

// chunks joins pieces into texts of at most limit bytes each; a piece is never
// parted, and one that is larger stands alone, cut.
func chunks(pieces []string, limit int) []string {
	var out []string
	var b strings.Builder
	for _, p := range pieces {
		p = cutToBytes(p, limit)
		if b.Len() > 0 && b.Len()+len(p) > limit {
			out = append(out, b.String())
			b.Reset()
		}
		b.WriteString(p)
	}
	if b.Len() > 0 {
		out = append(out, b.String())
	}
	return out
}
