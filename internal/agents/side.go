package agents

import "strings"

// SideKind tells apart the requests that agents send on their own account.
// They borrow a conversation's messages or its session id, but they are not its
// next turn: they are replayed where a checkpoint fits and never compacted.
type SideKind int

const (
	// SideNone is an ordinary request, of the agent or of a subagent. A
	// subagent's is a conversation of its own.
	SideNone SideKind = iota
	// SideTitle asks for a name for the session.
	SideTitle
	// SideCompaction is the agent's own summary of its history.
	SideCompaction
	// SideToolPair asks for a summary of one call and its result (goose).
	SideToolPair
	// SideClassifier asks whether a call may run (qwen-code).
	SideClassifier
	// SideMemory lets a subagent note what is worth remembering (qwen-code).
	SideMemory
	// SideSuggestion asks what the user may type next (qwen-code).
	SideSuggestion
)

var sideKindNames = [...]string{"none", "title", "compaction", "tool_pair", "classifier", "memory", "suggestion"}

func (k SideKind) String() string {
	if k < 0 || int(k) >= len(sideKindNames) {
		return "unknown"
	}
	return sideKindNames[k]
}

// SideRequest recognises an agent's own request by how its prompts begin.
//
// systemText is the text of the first system or developer message. lastUserText
// is the text of the last message if that is a user message, and empty
// otherwise: a person may well paste such a prompt, and the tool calls that
// follow it are ordinary work that has to stay compactable. hasTools says
// whether the request offers any; where a kind comes without tools, one that
// has them is not it.
func SideRequest(systemText, lastUserText string, hasTools bool) SideKind {
	systemText = strings.TrimLeft(systemText, " \t\r\n")
	lastUserText = withoutReminders(lastUserText)
	for _, o := range sideOpenings {
		if o.tools == never && hasTools || o.tools == always && !hasTools {
			continue
		}
		text := systemText
		if o.user {
			text = lastUserText
		}
		if strings.HasPrefix(text, o.opening) {
			return o.kind
		}
	}
	return SideNone
}

// withoutReminders drops the blocks that qwen-code and claude put before what
// they have to say.
func withoutReminders(text string) string {
	const open, end = "<system-reminder>", "</system-reminder>"
	for {
		text = strings.TrimLeft(text, " \t\r\n")
		rest, ok := strings.CutPrefix(text, open)
		if !ok {
			return text
		}
		_, after, ok := strings.Cut(rest, end)
		if !ok {
			return text
		}
		text = after
	}
}

type withTools int

const (
	either withTools = iota
	never
	always
)
