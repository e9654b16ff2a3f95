package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
)

// answer is what can be read from an answer as it passes: nothing is asked for
// that the client did not ask for. Token counts are those of the server.
type answer struct {
	Known      bool // the server reported its counts
	Prompt     int  // the whole prompt, in tokens
	Cached     int  // of which from cache
	Completion int
	Finish     string

	CacheKnown bool    // the server said how much came from cache
	Processed  int     // tokens of the prompt that were processed
	PrefillMS  float64 // and how long that took, 0 if the server does not say
	DecodeMS   float64 // of the completion

	id      string
	model   string
	created int64
	visible bool // a token that a person or an agent sees has passed
	events  bool // at least one data event has passed
}

// chunk is the part of an answer that matters here, streamed or not.
type chunk struct {
	ID      string `json:"id"`
	Model   string `json:"model"`
	Created int64  `json:"created"`
	Choices []struct {
		FinishReason *string `json:"finish_reason"`
		Delta        delta   `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Timings *struct {
		Cache       *int    `json:"cache_n"`
		Prompt      int     `json:"prompt_n"`
		Predicted   int     `json:"predicted_n"`
		PromptMS    float64 `json:"prompt_ms"`
		PredictedMS float64 `json:"predicted_ms"`
	} `json:"timings"`
	Error json.RawMessage `json:"error"`
}

type delta struct {
	Role      string          `json:"role"`
	Content   *string         `json:"content"`
	Reasoning *string         `json:"reasoning_content"`
	Thinking  *string         `json:"reasoning"`
	Refusal   *string         `json:"refusal"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

func (d delta) visible() bool {
	for _, s := range []*string{d.Content, d.Reasoning, d.Thinking, d.Refusal} {
		if s != nil && *s != "" {
			return true
		}
	}
	return len(d.ToolCalls) > 0 && !bytes.Equal(d.ToolCalls, []byte("null"))
}

// read takes in one data payload of a stream, or a whole answer. A member of an
// unexpected type does not hide the others.
func (a *answer) read(payload []byte) (c chunk, ok bool) {
	var odd *json.UnmarshalTypeError
	if err := json.Unmarshal(payload, &c); err != nil && !errors.As(err, &odd) {
		return c, false
	}
	a.events = true
	if c.ID != "" && a.id == "" {
		a.id, a.created = c.ID, c.Created
	}
	if c.Model != "" {
		a.model = c.Model
	}
	for _, choice := range c.Choices {
		if choice.FinishReason != nil && *choice.FinishReason != "" {
			a.Finish = *choice.FinishReason
		}
		a.visible = a.visible || choice.Delta.visible()
	}
	if u := c.Usage; u != nil && u.Prompt > 0 {
		cached := 0
		if u.Details != nil && u.Details.Cached != nil {
			cached, a.CacheKnown = *u.Details.Cached, true
		}
		prompt := u.Prompt
		if cached > prompt { // a server that counts the cached ones apart
			prompt += cached
		}
		a.count(prompt, cached, u.Completion)
	}
	if t := c.Timings; t != nil && t.Cache != nil {
		a.CacheKnown = true
		a.count(*t.Cache+t.Prompt, *t.Cache, t.Predicted)
		a.Processed, a.PrefillMS, a.DecodeMS = t.Prompt, t.PromptMS, t.PredictedMS
	}
	return c, true
}

// count takes in what a server reported; nothing of it can be negative, whatever
// it says.
func (a *answer) count(prompt, cached, completion int) {
	a.Known = true
	a.Prompt, a.Completion = max(prompt, 0), max(completion, 0)
	a.Cached = min(max(cached, 0), a.Prompt)
}

// matters tells without parsing whether a data line can hold something that is
// not an ordinary token.
func matters(line []byte) bool {
	if bytes.Contains(line, []byte(`"timings"`)) || bytes.Contains(line, []byte(`"usage"`)) {
		return true
	}
	i := bytes.Index(line, []byte(`"finish_reason"`))
	return i >= 0 && !bytes.HasPrefix(bytes.TrimLeft(line[i+len(`"finish_reason"`):], " :"), []byte("null"))
}

// maxLine bounds what is kept of one line while looking for its end. A longer
// one is passed on unread.
const maxLine = 1 << 20

// lineTap finds whole data lines in bytes that pass in any pieces.
type lineTap struct {
	line    []byte
	skip    bool // the line was too long
	payload func([]byte)
}

func (t *lineTap) write(b []byte) {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		part, rest, whole := b, []byte(nil), false
		if i >= 0 {
			part, rest, whole = b[:i], b[i+1:], true
		}
		switch {
		case t.skip:
		case len(t.line)+len(part) > maxLine:
			t.line, t.skip = t.line[:0], true
		case !whole || len(t.line) > 0:
			t.line = append(t.line, part...)
		default:
			t.emit(part) // whole in one piece: no copy
		}
		if whole {
			if len(t.line) > 0 {
				t.emit(t.line)
			}
			t.line, t.skip = t.line[:0], false
		}
		b = rest
	}
}

func (t *lineTap) emit(line []byte) {
	if p, ok := dataPayload(line); ok {
		t.payload(p)
	}
}

// dataPayload returns what follows "data:" in a line of server-sent events.
func dataPayload(line []byte) ([]byte, bool) {
	p, ok := bytes.CutPrefix(line, []byte("data:"))
	return bytes.TrimSpace(p), ok
}
