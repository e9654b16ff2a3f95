package upstream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	openai "github.com/sashabaranov/go-openai"
)

// Generated is a text that the server generated for a request of our own.
type Generated struct {
	Text      string
	Reasoning string
	Finish    string // the finish reason, "" if the stream ended without one
	Calls     bool   // a tool was called
	// Prompt, Cached and Completion are the server's counts in tokens.
	Prompt, Cached, Completion int
}

// ErrTooDear says that the server had less of the prompt cached than was asked for. The request was
// closed before the rest was processed.
var ErrTooDear = errors.New("generate: too little of the prompt is cached")

// errStream says that a stream broke, or carried an error. Its text may quote the conversation.
var errStream = errors.New("generate: the stream broke or carried an error")

// A Generator sends chat requests of our own. They are always streamed: llama-server notices a client
// that has gone only then.
type Generator struct {
	Server *Counter // says where the server is and how to ask it
}

const chatPath = "/v1/chat/completions"

// maxGenerated bounds what is kept of a text, in bytes: far more than any summary.
const maxGenerated = 1 << 20

// Generate sends the body of a streamed chat request, with the credentials of h. Where the server reports
// how much of the prompt it has cached before it processes the rest, and that is a smaller share than
// minCached, the request is given up with ErrTooDear.
func (g Generator) Generate(ctx context.Context, body []byte, h http.Header, minCached float64) (Generated, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answer, failed := g.Server.post(ctx, chatPath, h, body)
	if failed != nil {
		if ctx.Err() != nil {
			return Generated{}, ctx.Err()
		}
		return Generated{}, failed
	}
	defer answer.Close()
	var out generating
	lines := bufio.NewReaderSize(answer, 64<<10)
	for {
		line, err := readLine(lines)
		if payload, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			payload = bytes.TrimSpace(payload)
			if string(payload) == "[DONE]" {
				return out.whole(), nil
			}
			if err := out.take(payload, minCached); err != nil {
				return out.whole(), err
			}
		}
		switch {
		case ctx.Err() != nil:
			return out.whole(), ctx.Err()
		case errors.Is(err, io.EOF) && out.Finish != "": // some servers send no [DONE]
			return out.whole(), nil
		case err != nil:
			return out.whole(), errStream
		}
	}
}

// generating is a text that is on its way.
type generating struct {
	Generated
	text, reasoning strings.Builder
}

func (g *generating) whole() Generated {
	g.Text, g.Reasoning = g.text.String(), g.reasoning.String()
	return g.Generated
}

// take reads one event.
func (g *generating) take(payload []byte, minCached float64) error {
	var c struct {
		Choices []struct {
			FinishReason *string `json:"finish_reason"`
			Delta        struct {
				Content   *string         `json:"content"`
				Reasoning *string         `json:"reasoning_content"`
				ToolCalls json.RawMessage `json:"tool_calls"`
			} `json:"delta"`
		} `json:"choices"`
		Progress *struct {
			Total int `json:"total"`
			Cache int `json:"cache"`
		} `json:"prompt_progress"`
		Usage *struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
			Details    struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
		Error json.RawMessage `json:"error"`
	}
	var odd *json.UnmarshalTypeError
	if err := json.Unmarshal(payload, &c); err != nil && !errors.As(err, &odd) {
		return errStream
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return errStream
	}
	if p := c.Progress; p != nil && p.Total > 0 && g.text.Len() == 0 && float64(p.Cache) < minCached*float64(p.Total) {
		g.Prompt, g.Cached = p.Total, p.Cache
		return ErrTooDear
	}
	if u := c.Usage; u != nil && u.Prompt > 0 {
		g.Prompt, g.Completion = u.Prompt, max(u.Completion, 0)
		g.Cached = min(max(u.Details.Cached, 0), u.Prompt)
	}
	for _, choice := range c.Choices {
		d := choice.Delta
		if d.Content != nil && g.text.Len() < maxGenerated {
			g.text.WriteString(*d.Content)
		}
		if d.Reasoning != nil && g.reasoning.Len() < maxGenerated {
			g.reasoning.WriteString(*d.Reasoning)
		}
		if len(d.ToolCalls) > 0 && string(d.ToolCalls) != "null" && string(d.ToolCalls) != "[]" {
			g.Calls = true
		}
		if choice.FinishReason != nil && *choice.FinishReason != "" {
			g.Finish = *choice.FinishReason
		}
	}
	return nil
}

// readLine reads one line of a bounded length; a longer one is skipped.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = r.ReadSlice('\n')
	}
	return nil, err
}

// ProseBody is the body of a request that asks with a text alone. progress asks llama-server to report
// how it gets on.
func ProseBody(model, system, user string, maxTokens int, progress bool) []byte {
	body, err := json.Marshal(struct {
		openai.ChatCompletionRequest
		Progress bool `json:"return_progress,omitempty"`
	}{openai.ChatCompletionRequest{
		Model: model,
		Messages: []openai.ChatCompletionMessage{
			{Role: openai.ChatMessageRoleSystem, Content: system},
			{Role: openai.ChatMessageRoleUser, Content: user},
		},
		//lint:ignore SA1019 every server knows this one, and few the newer spelling
		MaxTokens: maxTokens, Stream: true, StreamOptions: &openai.StreamOptions{IncludeUsage: true},
	}, progress})
	if err != nil {
		panic("BUG: a request of strings is not JSON: " + err.Error())
	}
	return body
}

// Keeps tells whether the prompt that the server makes of body is how the prompt of next begins, what
// asks for an answer at its end aside. It is false where the server does not render prompts.
func (g Generator) Keeps(ctx context.Context, body, next []byte, h http.Header) bool {
	prompt, failed := g.Server.applyTemplate(ctx, body, h)
	if failed != nil {
		return false
	}
	first := string(prompt)
	second, failed := g.Server.applyTemplate(ctx, next, h)
	if failed != nil {
		return false
	}
	return commonPrefix(first, string(second)) >= len(first)-generationPrompt
}

// generationPrompt bounds what a template puts at the end of a prompt to have an answer begun, in bytes of
// JSON: a role, and the opening of a thought.
const generationPrompt = 128

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
