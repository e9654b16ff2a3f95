package agents

import (
	"regexp"
	"strings"
)

// MaskVolatile replaces what a client's own envelope changes from one call to
// the next, so that two results that say the same compare equal. Nothing that
// the command itself printed is touched: two different times in a program's
// output are two different results.
//
// It serves comparison only. The masked text is never shown or sent.
func MaskVolatile(text string) string {
	if header, ok := codexHeader(text); ok {
		// codex: a random chunk id and the measured time, so that the same
		// failure is never byte-identical.
		text = codexVolatile.ReplaceAllString(header, "$1…") + text[len(header):]
	}
	if startsWithAny(text, qwenHeads) {
		// qwen-code: the process group, behind the output.
		if i := strings.LastIndex(text, "\nProcess Group PGID: "); i >= 0 && !strings.Contains(text[i+1:], "\n") {
			text = text[:i] + "\nProcess Group PGID: …"
		}
	}
	// The file that the rest of a long output went to: claude and qwen-code
	// name it in front, goose, opencode and pi behind.
	text = maskSpill(text, 0, min(len(text), spillHead))
	return maskSpill(text, max(0, len(text)-spillTail), len(text))
}

// Where the marker of a spilled output stands: within the first lines, or near
// the end, with goose's advice or pi's exit code behind it.
const (
	spillHead = 400
	spillTail = 600
)

func maskSpill(text string, from, to int) string {
	all := spillPath.FindAllStringSubmatchIndex(text[from:to], -1)
	if all == nil {
		return text
	}
	last := all[len(all)-1]
	return text[:from+last[2]] + "…" + text[from+last[3]:]
}

var (
	codexVolatile = regexp.MustCompile(`(?m)^(Chunk ID: |Wall time: ).*$`)
	spillPath     = regexp.MustCompile(`(?m)^(?:[^\n]*[\].] )?(?:Full output:|Full output saved to:?|The full output has been saved to:) ?(/\S+?|[A-Z]:\S+?)(?:\. |\]|$)`)
)
