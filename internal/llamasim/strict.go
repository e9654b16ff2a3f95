package llamasim

import "bytes"

// raised is an exception of a template: its text, and what the real server
// shows of the place that raised it.
type raised struct{ text, place string }

var (
	raisedNoUser = raised{
		text: "No user query found in messages.",
		place: "line 6, column 45 in source:\n" +
			"...if not ns.has_user %}{{- raise_exception('No user query found in messages.') }}{...\n" + caret,
	}
	raisedOrder = raised{
		text: "After the optional system message, conversation roles must alternate user/assistant/user/assistant/...",
		place: "line 10, column 49 in source:\n" +
			"...s.expect != 'user' %}{{- raise_exception('After the optional system message, con...\n" + caret,
	}
	raisedResult = raised{
		text: "Unexpected tool message: no preceding tool call",
		place: "line 21, column 103 in source:\n" +
			"...ool', 'assistant'] %}{{- raise_exception('Unexpected tool message: no preceding ...\n" + caret,
	}
)

const caret = "                                           ^\n"

func raise(r raised) error {
	return invalidRequest("Unable to generate parser for this template. Automatic parser generation failed: \n"+
		"------------\nWhile executing CallExpression at %sError: Jinja Exception: %s", r.place, r.text)
}

// renderStrict writes the turns of TemplateStrict, or raises. Like templates
// of that kind it lets an assistant's calls stand between a user message and
// the assistant's answer, but no user message directly after a result.
func renderStrict(w *bytes.Buffer, r *chatRequest) error {
	hasUser := false
	for _, m := range r.messages {
		hasUser = hasUser || m.Role == roleUser
	}
	if !hasUser {
		return raise(raisedNoUser)
	}
	if len(r.tools) > 0 {
		writeTurn(w, roleSystem, toolsNote(r.tools))
	}
	userNext := true
	for i, m := range r.messages {
		switch m.Role {
		case roleSystem:
			writeTurn(w, m.Role, m.Content)
		case roleUser:
			if !userNext {
				return raise(raisedOrder)
			}
			userNext = false
			writeTurn(w, m.Role, m.Content)
		case roleAssistant:
			if len(m.ToolCalls) == 0 {
				userNext = true
			}
			writeAssistant(w, m, false)
		case roleTool:
			if i == 0 || r.messages[i-1].Role != roleTool && r.messages[i-1].Role != roleAssistant {
				return raise(raisedResult)
			}
			w.WriteString("<|im_start|>user")
			writeResult(w, m.Content)
			w.WriteString(markEnd + "\n")
		}
	}
	return nil
}
