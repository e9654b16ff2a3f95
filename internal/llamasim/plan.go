package llamasim

import (
	"strings"
	"unicode/utf8"
)

// fragment is one generated token and what of it the client gets to see.
type fragment struct {
	kind fragmentKind
	call int    // which call, for calls
	text string // may be empty: the token's text came with, or comes with, another
}

type fragmentKind int

const (
	fragmentHidden    fragmentKind = iota // markup, the end of the turn
	fragmentReasoning                     // of reasoning_content
	fragmentContent                       // of content
	fragmentCall                          // of the arguments of a call
)

// plan is everything the model will say.
type plan struct {
	fragments []fragment
	calls     []ToolCall // for their names and ids
	finish    string
	// raw is the text generated, markup and all.
	raw string
}

// planner makes a plan of a Reply.
type planner struct {
	plan
	said strings.Builder
}

// planOptions are the request's part in a plan.
type planOptions struct {
	budget    int // tokens that may be generated, at least 1
	thinking  bool
	parse     bool // calls are parsed, not text
	ignoreEOS bool
	stop      []string
	newID     func() string
}

func makePlan(reply Reply, o planOptions) plan {
	var p planner
	if reply.Reasoning != "" {
		if !o.thinking {
			p.add(fragmentHidden, 0, "<think>\n")
		}
		p.add(fragmentReasoning, 0, reply.Reasoning)
		p.add(fragmentHidden, 0, "\n</think>\n\n")
	}
	content := reply.Text
	if !o.parse {
		content += rawCalls(reply.ToolCalls, content != "")
	}
	endless := reply.Endless || o.ignoreEOS
	if kept, through, found := cutAtStop(content, o.stop); found {
		p.add(fragmentContent, 0, kept)
		p.hide(CountTokens(through) - CountTokens(kept))
		p.finish = "stop"
	} else {
		p.add(fragmentContent, 0, content)
		if o.parse && !endless {
			p.addCalls(reply.ToolCalls, content != "", o.newID)
		}
		if endless {
			p.repeat(content, o.budget)
		} else {
			p.add(fragmentHidden, 0, markEnd)
		}
		p.finish = "stop"
		if len(p.calls) > 0 {
			p.finish = "tool_calls"
		}
	}
	if len(p.fragments) == 0 {
		p.hide(1)
	}
	// A model that has just ended its turn when the limit is reached has
	// ended its turn.
	if len(p.fragments) > o.budget || endless && len(p.fragments) == o.budget {
		p.fragments = p.fragments[:o.budget]
		p.finish = "length"
	}
	if reply.FinishReason != "" {
		p.finish = reply.FinishReason
	}
	p.raw = p.said.String()
	return p.plan
}

// add generates text. A token's bytes show once they are whole characters.
func (p *planner) add(kind fragmentKind, call int, text string) {
	p.said.WriteString(text)
	shown, end := 0, 0
	for _, token := range tokenize(text) {
		end += tokenLen(token)
		f := fragment{kind: kind, call: call}
		if kind != fragmentHidden && wholeRunes(text[shown:end]) {
			f.text = text[shown:end]
			shown = end
		}
		p.fragments = append(p.fragments, f)
	}
}

// wholeRunes reports whether s does not end inside a character.
func wholeRunes(s string) bool {
	for i := 1; i <= min(utf8.UTFMax, len(s)); i++ {
		if b := s[len(s)-i]; utf8.RuneStart(b) {
			return utf8.FullRuneInString(s[len(s)-i:])
		}
	}
	return true
}

// hide generates n tokens that do not show.
func (p *planner) hide(n int) {
	for range n {
		p.fragments = append(p.fragments, fragment{})
	}
}

func (p *planner) addCalls(calls []ToolCall, afterText bool, newID func() string) {
	for i, call := range calls {
		if i > 0 || afterText {
			p.add(fragmentHidden, 0, "\n")
		}
		if call.ID == "" {
			call.ID = newID()
		}
		if call.Arguments == "" {
			call.Arguments = "{}"
		}
		p.calls = append(p.calls, call)
		p.add(fragmentHidden, 0, callHead(call.Name))
		p.add(fragmentCall, i, call.Arguments)
		p.add(fragmentHidden, 0, callTail)
	}
}

// repeat goes on with the content until the budget is spent.
func (p *planner) repeat(content string, budget int) {
	if content == "" {
		content = "\n"
	}
	for len(p.fragments) < budget {
		p.add(fragmentContent, 0, content)
	}
}

// rawCalls is what an unparsed answer shows of calls.
func rawCalls(calls []ToolCall, afterText bool) string {
	var b strings.Builder
	for i, call := range calls {
		if i > 0 || afterText {
			b.WriteByte('\n')
		}
		b.WriteString(callHead(call.Name) + call.Arguments + callTail)
	}
	return b.String()
}

// cutAtStop ends text before the first stop string in it. through is the text
// the model generated for that, the stop string included.
func cutAtStop(text string, stop []string) (kept, through string, found bool) {
	first := len(text)
	for _, s := range stop {
		if i := strings.Index(text, s); i >= 0 && i < first {
			first, found = i, true
			through = text[:i+len(s)]
		}
	}
	return text[:first], through, found
}
