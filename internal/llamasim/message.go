package llamasim

import "github.com/go-json-experiment/json/jsontext"

// Message is one message of a request, its content flattened to text.
type Message struct {
	Role       string
	Content    string // text parts are joined by newlines
	Reasoning  string
	ToolCalls  []ToolCall
	ToolCallID string
	Name       string
}

// ToolCall is a call the model made or, in a Reply, is to make.
type ToolCall struct {
	// ID may be left empty in a Reply; a random one is made up.
	ID   string
	Name string
	// Arguments is JSON text. Empty in a Reply means {}.
	Arguments string
}

// Tool is a declared tool.
type Tool struct {
	Name        string
	Description string
	Parameters  jsontext.Value
}
