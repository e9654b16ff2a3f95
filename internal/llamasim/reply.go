package llamasim

import (
	"context"
	"fmt"
	"net/http"
)

// Request is what the Reply hook is told about a generation.
type Request struct {
	// Number counts generations from 1, in the order their prompts were
	// admitted.
	Number int
	// Path is the endpoint; Header and Body are as received and must not be
	// changed.
	Path   string
	Header http.Header
	Body   []byte

	Model    string
	Messages []Message
	Tools    []Tool
	// ToolChoice is "auto", "none", "required", or the name of the one tool
	// asked for.
	ToolChoice string
	Stream     bool
	// MaxTokens is the request's limit, -1 where it set none.
	MaxTokens int

	// Prompt is the rendered prompt; PromptTokens its size; CachedTokens how
	// much of it the cache had when the request arrived.
	Prompt       string
	PromptTokens int
	CachedTokens int
}

// Reply is what the model says, or what goes wrong instead.
type Reply struct {
	// Reasoning comes first, then Text, then ToolCalls. All may be empty: that
	// is a model that ends its turn at once. Calls become plain text in the
	// content, as on the real server, when the request declares no tools or
	// says tool_choice none.
	Reasoning string
	Text      string
	ToolCalls []ToolCall
	// FinishReason overrides the one worked out ("stop", "tool_calls", or
	// "length" where max_tokens or the window ends the answer).
	FinishReason string
	// Endless repeats Text until a limit ends it, as ignore_eos does.
	Endless bool

	// BeforeFirstByte and BetweenEvents, if set, replace the hooks of the
	// same name in Options for this answer.
	BeforeFirstByte func(context.Context)
	BetweenEvents   func(context.Context)
	// Pings sends so many comment lines (":\n\n") ahead of a stream's first
	// event, as the server does during a long prefill.
	Pings int

	// Answer, if set, is sent instead of anything generated. The request
	// leaves no trace in the prompt cache.
	Answer *Answer
	// Fault, if its Kind is set, breaks the answer part of the way through.
	Fault Fault
}

// Answer is a complete scripted HTTP response.
type Answer struct {
	Status int // default 200
	Header http.Header
	Body   string
}

// JSONAnswer is an Answer with the content type that llama-server gives JSON.
func JSONAnswer(status int, body string) *Answer {
	return &Answer{Status: status, Body: body, Header: http.Header{"Content-Type": {typeJSON}}}
}

// HTMLAnswer is an Answer as a gateway in front of the server would give it.
func HTMLAnswer(status int, body string) *Answer {
	return &Answer{Status: status, Body: body, Header: http.Header{"Content-Type": {"text/html"}}}
}

// Fault is a failure part of the way through an answer.
type Fault struct {
	Kind FaultKind
	// After is how many events of a stream go out before the fault strikes;
	// the chunk that announces the role is the first. -1 strikes in place of
	// the closing [DONE]. Meaningless for plain answers.
	After int
	// Error is the JSON body of FaultError and FaultErrorEvent. Default: the
	// failure of an exhausted unified pool.
	Error string
	// Status is the status of a plain answer with FaultError or
	// FaultErrorEvent. Default 500.
	Status int
	// Release ends a FaultSilence, after which the answer goes on. Nil means
	// it lasts until the client leaves.
	Release <-chan struct{}
}

// FaultKind says how an answer breaks.
type FaultKind int

const (
	// NoFault is an answer that runs to its end.
	NoFault FaultKind = iota
	// FaultCut tears the connection: between two events of a stream, in the
	// middle of a plain answer's body.
	FaultCut
	// FaultCutLine sends the first half of an event's line, then tears the
	// connection. A plain answer breaks as with FaultCut.
	FaultCutLine
	// FaultEnd ends a stream cleanly but without [DONE]. A plain answer ends
	// cleanly half-way through its JSON.
	FaultEnd
	// FaultError puts an error object into the stream and ends it without
	// [DONE]. A plain answer becomes that error.
	FaultError
	// FaultErrorEvent is FaultError in a named event: "event: error".
	FaultErrorEvent
	// FaultSilence stops sending until released.
	FaultSilence
)

func (f Fault) body() []byte {
	if f.Error == "" {
		return errPoolExhausted.body()
	}
	return []byte(f.Error)
}

func (f Fault) status() int {
	if f.Status == 0 {
		return http.StatusInternalServerError
	}
	return f.Status
}

func defaultReply(r Request) Reply {
	return Reply{Text: fmt.Sprintf("This is the simulated answer to a prompt of %d messages.", len(r.Messages))}
}
