package llamasim

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// chatRequest is a chat completion request that passed the server's checks;
// the template may still refuse it.
type chatRequest struct {
	generationParams
	messages   []Message
	tools      []Tool
	toolChoice string
	// preserveThinking is chat_template_kwargs.preserve_thinking.
	preserveThinking bool
}

// prefills reports whether the last message is the beginning of the answer.
func (r *chatRequest) prefills() bool {
	return len(r.messages) > 0 && r.messages[len(r.messages)-1].Role == roleAssistant
}

const (
	roleSystem    = "system"
	roleUser      = "user"
	roleAssistant = "assistant"
	roleTool      = "tool"
)

// parseChat reads a request body, checking it in the order the real server
// does. imageTokens is what an image costs, 0 if there may be none.
func parseChat(body []byte, imageTokens int) (*chatRequest, error) {
	if err := checkJSON(body); err != nil {
		return nil, invalidRequest("%v", err)
	}
	o := members(body)
	if !o.has("messages") {
		return nil, invalidRequest("'messages' is required")
	}
	if o["messages"].Kind() != '[' {
		return nil, invalidRequest("Expected 'messages' to be an array")
	}
	raw := elements(o["messages"])
	list := make([]object, len(raw))
	for i, m := range raw {
		list[i] = members(m)
		if err := checkContent(list[i], imageTokens > 0); err != nil {
			return nil, err
		}
	}
	r := &chatRequest{messages: make([]Message, len(raw))}
	for i, m := range raw {
		var err error
		if r.messages[i], err = parseMessage(m, list[i], imageTokens); err != nil {
			return nil, err
		}
	}
	var err error
	if r.tools, err = parseTools(o["tools"]); err != nil {
		return nil, err
	}
	if r.toolChoice, err = parseToolChoice(o["tool_choice"]); err != nil {
		return nil, err
	}
	if err := checkLast(r.messages); err != nil {
		return nil, err
	}
	r.preserveThinking = members(o["chat_template_kwargs"]).flag("preserve_thinking", false)
	r.generationParams, err = parseParams(o)
	return r, err
}

// checkContent looks at a message's content only, as the server's first pass.
func checkContent(m object, images bool) error {
	switch {
	case m.has("content"):
	case m.text("role") != roleAssistant:
		return invalidRequest("All non-assistant messages must contain 'content'")
	case !m.has("tool_calls"):
		return invalidRequest("Assistant message must contain either 'content' or 'tool_calls'!")
	default:
		return nil
	}
	switch m["content"].Kind() {
	case '"', 'n':
		return nil
	case '[':
	default:
		return invalidRequest("Expected 'content' to be a string or an array")
	}
	for _, part := range elements(m["content"]) {
		switch members(part).text("type") {
		case "text":
		case "image_url":
			if !images {
				return serverError("image input is not supported - hint: if this is unexpected, you may need to provide the mmproj")
			}
		default:
			return invalidRequest("unsupported content[].type")
		}
	}
	return nil
}

func parseMessage(raw jsontext.Value, o object, imageTokens int) (Message, error) {
	if !o.has("role") {
		return Message{}, serverError("Failed to parse messages: Missing 'role' in message: %s", compact(raw))
	}
	m := Message{
		Role:       o.text("role"),
		Content:    contentText(o["content"], imageTokens),
		Reasoning:  o.text("reasoning_content"),
		ToolCallID: o.text("tool_call_id"),
		Name:       o.text("name"),
	}
	for _, raw := range elements(o["tool_calls"]) {
		call := members(raw)
		fault := ""
		function := members(call["function"])
		switch {
		case !call.has("type"):
			fault = "Missing tool call type"
		case call.text("type") != "function":
			fault = "Unsupported tool call type"
		case !call.has("function"):
			fault = "Missing tool call function"
		case !function.has("name"):
			fault = "Missing tool call name"
		}
		if fault != "" {
			return Message{}, serverError("Failed to parse messages: %s: %s", fault, compact(raw))
		}
		if !function.has("arguments") {
			return Message{}, serverError("Failed to parse messages: [json.exception.out_of_range.403] key 'arguments' not found")
		}
		arguments := function.text("arguments")
		if kind := function["arguments"].Kind(); kind != '"' {
			arguments = compact(function["arguments"])
		}
		m.ToolCalls = append(m.ToolCalls, ToolCall{ID: call.text("id"), Name: function.text("name"), Arguments: arguments})
	}
	return m, nil
}

// contentText joins the parts of a content by newlines.
func contentText(content jsontext.Value, imageTokens int) string {
	if content.Kind() != '[' {
		return text(content)
	}
	var b strings.Builder
	for _, raw := range elements(content) {
		part := members(raw)
		if part.text("type") == "image_url" {
			b.WriteString(strings.Repeat(markImage, imageTokens))
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(part.text("text"))
	}
	return b.String()
}

func parseTools(v jsontext.Value) ([]Tool, error) {
	if v == nil || v.Kind() == 'n' {
		return nil, nil
	}
	fail := func(fault string, of jsontext.Value) ([]Tool, error) {
		return nil, serverError("Failed to parse tools: %s%s; tools = %s", fault, compact(of), indented(v))
	}
	if v.Kind() != '[' {
		return fail("Expected 'tools' to be an array, got ", v)
	}
	var tools []Tool
	for _, raw := range elements(v) {
		tool := members(raw)
		function := members(tool["function"])
		switch {
		case !tool.has("type"):
			return fail("Missing tool type: ", raw)
		case tool.text("type") != "function":
			return fail("Unsupported tool type: ", raw)
		case !tool.has("function"):
			return fail("Missing tool function: ", raw)
		}
		tools = append(tools, Tool{
			Name:        function.text("name"),
			Description: function.text("description"),
			Parameters:  function["parameters"],
		})
	}
	return tools, nil
}

func parseToolChoice(v jsontext.Value) (string, error) {
	switch v.Kind() {
	case '"':
		choice := text(v)
		if !slices.Contains([]string{"auto", "none", "required"}, choice) {
			return "", invalidRequest("Invalid tool_choice: %s", choice)
		}
		return choice, nil
	case '{':
		return members(members(v)["function"]).text("name"), nil
	}
	return "auto", nil
}

// checkLast refuses lists whose end cannot be continued.
func checkLast(messages []Message) error {
	n := len(messages)
	if n == 0 || messages[n-1].Role != roleAssistant {
		return nil
	}
	if n > 1 && messages[n-2].Role == roleAssistant {
		return invalidRequest("Cannot have 2 or more assistant messages at the end of the list.")
	}
	if len(messages[n-1].ToolCalls) > 0 {
		return invalidRequest("Cannot continue an assistant message that contains tool calls.")
	}
	return nil
}
