package agents

import "strings"

// harnessTags name the blocks that agents put into user messages on their own
// account: dates, plans, modes, lists of files. They are not the user's words.
// qwen-code, opencode and claude: system-reminder; goose: turn-context, info-msg;
// codex: environment_context, user_instructions; cline: environment_details,
// SYSTEM_NOTICE is a heading inside one.
var harnessTags = []string{"system-reminder", "turn-context", "info-msg", "environment_context", "environment_details", "user_instructions", "SYSTEM_NOTICE"}

// HarnessLabel stands before what a program wrote into a user message.
const HarnessLabel = "[harness]"

// Harness parts a user message's text into what the user wrote and what the
// agent's program injected, in order. Both are trimmed.
func Harness(text string) (own string, injected []string) {
	var b strings.Builder
	for {
		start, end := nextBlock(text)
		if start < 0 {
			b.WriteString(text)
			return strings.TrimSpace(b.String()), injected
		}
		b.WriteString(text[:start])
		if block := strings.TrimSpace(text[start:end]); block != "" {
			injected = append(injected, block)
		}
		text = text[end:]
	}
}

// BreakHarness makes every harness tag in a text of unknown origin a text: nobody
// but the agent's program speaks in its voice.
func BreakHarness(text string) string {
	for _, tag := range harnessTags {
		text = strings.ReplaceAll(text, "<"+tag+">", "< "+tag+">")
		text = strings.ReplaceAll(text, "</"+tag+">", "</ "+tag+">")
	}
	return text
}

// nextBlock finds the first whole block, -1 if there is none.
func nextBlock(text string) (start, end int) {
	start = -1
	for _, tag := range harnessTags {
		at := strings.Index(text, "<"+tag+">")
		if at < 0 || start >= 0 && at >= start {
			continue
		}
		closing := "</" + tag + ">"
		n := strings.Index(text[at:], closing)
		if n < 0 {
			continue
		}
		start, end = at, at+n+len(closing)
	}
	return start, end
}

// Labelled is a user message's text with every injected block marked as such.
func Labelled(text string) string {
	own, injected := Harness(text)
	parts := make([]string, 0, 1+len(injected))
	if own != "" {
		parts = append(parts, own)
	}
	for _, block := range injected {
		parts = append(parts, HarnessLabel+" "+block)
	}
	return strings.Join(parts, "\n")
}
