package llamasim

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Template is the way messages and tools become a prompt. All of them mark
// turns as ChatML does.
type Template int

const (
	// TemplateQwen has the habits of Qwen's: tools in the system turn, calls
	// as <tool_call> JSON, consecutive results merged into one user turn, a
	// default system turn. Roles it does not know are dropped.
	TemplateQwen Template = iota
	// TemplateThinking is TemplateQwen with Qwen3's reasoning: assistant turns
	// carry a <think> block only after the last user message, so another user
	// message changes every turn of the tool loop before it. The request's
	// chat_template_kwargs {"preserve_thinking":true} keeps the blocks. It
	// raises without any user message.
	TemplateThinking
	// TemplateStrict raises where roles do not alternate, where no user
	// message is there, and where a result follows no call.
	TemplateStrict
	// TemplatePlain is llama.cpp's built-in chatml: role and text of each
	// message and nothing else, neither tools nor calls.
	TemplatePlain
)

const defaultSystem = "You are a helpful assistant."

// render makes the prompt of a request.
func (t Template) render(r *chatRequest) (string, error) {
	messages := r.messages
	for i, m := range messages {
		if m.Role == "developer" {
			messages[i].Role = roleSystem
		}
	}
	var w bytes.Buffer
	w.Grow(promptSize(r))
	if t != TemplatePlain {
		if err := checkArguments(messages); err != nil {
			return "", err
		}
	}
	var err error
	switch t {
	case TemplateStrict:
		err = renderStrict(&w, r)
	case TemplatePlain:
		renderPlain(&w, r)
	default:
		err = t.renderQwen(&w, r)
	}
	if err != nil {
		return "", err
	}
	if r.prefills() {
		// The answer goes on where the last message ends.
		return strings.TrimSuffix(w.String(), markEnd+"\n"), nil
	}
	w.WriteString(t.generationPrompt())
	return w.String(), nil
}

// generationPrompt opens the answer's turn.
func (t Template) generationPrompt() string {
	if t == TemplateThinking {
		return "<|im_start|>assistant\n<think>\n"
	}
	return "<|im_start|>assistant\n"
}

// promptSize is a guess that is seldom too small.
func promptSize(r *chatRequest) int {
	size := 1024
	for _, m := range r.messages {
		size += 64 + len(m.Content) + len(m.Reasoning)
		for _, call := range m.ToolCalls {
			size += 64 + len(call.Arguments)*5/4
		}
	}
	for _, tool := range r.tools {
		size += 128 + len(tool.Parameters)*5/4
	}
	return size
}

// checkArguments refuses calls, such as those cut by max_tokens, that a
// template could not print.
func checkArguments(messages []Message) error {
	for _, m := range messages {
		for _, call := range m.ToolCalls {
			if err := checkJSON([]byte(call.Arguments)); err != nil {
				return serverError("Failed to parse tool call arguments as JSON: %v", err)
			}
		}
	}
	return nil
}

func renderPlain(w *bytes.Buffer, r *chatRequest) {
	for _, m := range r.messages {
		writeTurn(w, m.Role, m.Content)
	}
}

func (t Template) renderQwen(w *bytes.Buffer, r *chatRequest) error {
	messages := r.messages
	lastUser := -1
	for i, m := range messages {
		if m.Role == roleUser {
			lastUser = i
		}
	}
	if t == TemplateThinking && lastUser < 0 {
		return raise(raisedNoUser)
	}
	system := defaultSystem
	if len(messages) > 0 && messages[0].Role == roleSystem {
		system = messages[0].Content
	}
	if len(r.tools) > 0 {
		system += "\n\n" + toolsNote(r.tools)
	}
	writeTurn(w, roleSystem, system)
	for i, m := range messages {
		switch m.Role {
		case roleSystem:
			if i > 0 {
				writeTurn(w, m.Role, m.Content)
			}
		case roleUser:
			writeTurn(w, m.Role, m.Content)
		case roleAssistant:
			thinks := t == TemplateThinking && (i > lastUser || r.preserveThinking)
			writeAssistant(w, m, thinks)
		case roleTool:
			if i == 0 || messages[i-1].Role != roleTool {
				w.WriteString("<|im_start|>user")
			}
			writeResult(w, m.Content)
			if i == len(messages)-1 || messages[i+1].Role != roleTool {
				w.WriteString(markEnd + "\n")
			}
		}
	}
	return nil
}

// toolsNote tells the model of its tools.
func toolsNote(tools []Tool) string {
	var b strings.Builder
	b.WriteString("# Tools\n\nThese functions can be called. Each line between the tags is the signature of one:\n<tools>\n")
	for _, tool := range tools {
		b.WriteString(signature(tool) + "\n")
	}
	b.WriteString("</tools>\n\nTo call a function, write its name and its arguments like this:\n" +
		"<tool_call>\n{\"name\": <name>, \"arguments\": <object>}\n</tool_call>")
	return b.String()
}

// signature is a tool as the template prints it: the known fields in a fixed
// order, whatever order and extras the client sent.
func signature(tool Tool) string {
	b := []byte(`{"type": "function", "function": {"name": `)
	b = appendString(b, tool.Name)
	b = append(b, `, "description": `...)
	b = appendString(b, tool.Description)
	b = append(b, `, "parameters": `...)
	if tool.Parameters == nil {
		b = append(b, "{}"...)
	} else {
		b = append(b, spaced(tool.Parameters)...)
	}
	return string(append(b, "}}"...))
}

func writeTurn(w *bytes.Buffer, role, content string) {
	w.WriteString("<|im_start|>")
	w.WriteString(role)
	w.WriteByte('\n')
	w.WriteString(content)
	w.WriteString(markEnd + "\n")
}

func writeAssistant(w *bytes.Buffer, m Message, thinks bool) {
	w.WriteString("<|im_start|>assistant")
	if thinks {
		w.WriteString("\n<think>\n")
		w.WriteString(m.Reasoning)
		w.WriteString("\n</think>\n")
	}
	if m.Content != "" {
		w.WriteByte('\n')
		w.WriteString(m.Content)
	}
	for _, call := range m.ToolCalls {
		w.WriteString("\n" + callHead(call.Name))
		w.WriteString(spaced(jsontext.Value(call.Arguments)))
		w.WriteString(callTail)
	}
	w.WriteString(markEnd + "\n")
}

// A call as the model writes it: head, arguments, tail.
const callTail = "}\n</tool_call>"

func callHead(name string) string {
	return string(append(appendString([]byte("<tool_call>\n{\"name\": "), name), `, "arguments": `...))
}

func writeResult(w *bytes.Buffer, content string) {
	w.WriteString("\n<tool_response>\n")
	w.WriteString(content)
	w.WriteString("\n</tool_response>")
}

// source is what GET /props shows as the template: a sketch of it, for those
// who look for its markers. Prompts are made by the code above.
func (t Template) source() string {
	const turn = "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
	switch t {
	case TemplatePlain:
		return "{%- for message in messages %}" + turn + "{%- endfor %}"
	case TemplateStrict:
		return "{%- if not has_user %}{{- raise_exception('" + raisedNoUser.text + "') }}{%- endif %}" +
			"{%- for message in messages %}" + turn + "<tool_call></tool_call><tool_response></tool_response>{%- endfor %}"
	case TemplateThinking:
		return "{%- for message in messages %}" + turn +
			"{%- if loop.index0 > last_user or preserve_thinking %}<think></think>{%- endif %}" +
			"<tool_call></tool_call><tool_response></tool_response>{%- endfor %}"
	}
	return "{%- if tools %}<tools></tools>{%- endif %}{%- for message in messages %}" + turn +
		"<tool_call></tool_call><tool_response></tool_response>{%- endfor %}"
}
