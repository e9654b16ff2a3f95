package llamasim

import (
	"fmt"
	"strings"
)

// buildInfo is what the server says of itself.
const buildInfo = "b11669-llamasim"

// envelope writes the JSON of one answer. Its two kinds are the formats of
// /v1/chat/completions and /v1/completions.
type envelope interface {
	// opening is the event ahead of any token, nil if the format has none.
	opening() []byte
	// progress reports how much of the prompt is processed.
	progress(total, cached, processed int, millis float64) []byte
	// token is the event of a fragment that shows.
	token(f fragment, p *plan, t *timings) []byte
	// closing are the last events, [DONE] aside.
	closing(finish string, t timings, o generationParams) [][]byte
	// whole is the plain answer.
	whole(p *plan, t timings, choices int) []byte
}

// identity is what the events of one answer have in common.
type identity struct {
	id      string
	created int64
	model   string
}

// chatEnvelope is the format of /v1/chat/completions.
type chatEnvelope struct {
	identity
	prefill string // the text the answer continues

	started     bool // content was sent
	startedCall int  // calls announced
}

// chunk wraps choices, which is all that differs between most events.
func (e *chatEnvelope) chunk(choices string) []byte {
	b := []byte(`{"choices":[` + choices + `],"created":`)
	b = fmt.Appendf(b, `%d,"id":"%s","model":`, e.created, e.id)
	b = appendString(b, e.model)
	return append(b, `,"system_fingerprint":"`+buildInfo+`","object":"chat.completion.chunk"}`...)
}

func delta(d string) string { return `{"finish_reason":null,"index":0,"delta":` + d + `}` }

// with adds a member to a JSON object.
func with(object []byte, name string, value []byte) []byte {
	object = append(object[:len(object)-1], `,"`+name+`":`...)
	object = append(object, value...)
	return append(object, '}')
}

func (e *chatEnvelope) opening() []byte {
	return e.chunk(delta(`{"role":"assistant","content":null}`))
}

func (e *chatEnvelope) progress(total, cached, processed int, millis float64) []byte {
	return with(e.opening(), "prompt_progress", progressObject(total, cached, processed, millis))
}

func progressObject(total, cached, processed int, millis float64) []byte {
	return fmt.Appendf(nil, `{"total":%d,"cache":%d,"processed":%d,"time_ms":%d}`, total, cached, processed, int(millis))
}

func (e *chatEnvelope) token(f fragment, p *plan, t *timings) []byte {
	b := []byte(`{`)
	switch f.kind {
	case fragmentReasoning:
		b = append(b, `"reasoning_content":`...)
		b = appendString(b, f.text)
	case fragmentCall:
		b = fmt.Appendf(b, `"tool_calls":[{"index":%d,`, f.call)
		if f.call == e.startedCall {
			e.startedCall++
			call := p.calls[f.call]
			b = append(b, `"id":`...)
			b = appendString(b, call.ID)
			b = append(b, `,"type":"function","function":{"name":`...)
			b = appendString(b, call.Name)
			b = append(b, `,"arguments":`...)
		} else {
			b = append(b, `"function":{"arguments":`...)
		}
		b = appendString(b, f.text)
		b = append(b, "}}]"...)
	default:
		text := f.text
		if !e.started {
			text = e.prefill + text
			e.started = true
		}
		b = append(b, `"content":`...)
		b = appendString(b, text)
	}
	chunk := e.chunk(delta(string(append(b, '}'))))
	if t != nil {
		chunk = with(chunk, "timings", t.append(nil))
	}
	return chunk
}

func (e *chatEnvelope) closing(finish string, t timings, o generationParams) [][]byte {
	last := e.chunk(`{"finish_reason":"` + finish + `","index":0,"delta":{}}`)
	if !o.includeUsage {
		return [][]byte{with(last, "timings", t.append(nil))}
	}
	if o.timingsPerToken {
		last = with(last, "timings", t.append(nil))
	}
	usage := with(e.chunk(""), "usage", t.appendUsage(nil))
	return [][]byte{last, with(usage, "timings", t.append(nil))}
}

func (e *chatEnvelope) whole(p *plan, t timings, choices int) []byte {
	message := e.message(p)
	b := []byte(`{"choices":[`)
	for i := range choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"finish_reason":"%s","index":%d,"message":%s}`, p.finish, i, message)
	}
	b = fmt.Appendf(b, `],"created":%d,"model":`, e.created)
	b = appendString(b, e.model)
	b = append(b, `,"system_fingerprint":"`+buildInfo+`","object":"chat.completion","usage":`...)
	b = t.appendUsage(b)
	b = append(b, `,"id":"`+e.id+`","timings":`...)
	return append(t.append(b), '}')
}

// message is the whole message of a plan. A call that was cut off before its
// arguments began is not in it, one cut off later has broken ones.
func (e *chatEnvelope) message(p *plan) []byte {
	var reasoning, content strings.Builder
	content.WriteString(e.prefill)
	arguments := make([]strings.Builder, len(p.calls))
	begun := 0
	for _, f := range p.fragments {
		switch f.kind {
		case fragmentReasoning:
			reasoning.WriteString(f.text)
		case fragmentContent:
			content.WriteString(f.text)
		case fragmentCall:
			arguments[f.call].WriteString(f.text)
			begun = f.call + 1
		}
	}
	b := appendString([]byte(`{"role":"assistant","content":`), content.String())
	if reasoning.Len() > 0 {
		b = append(b, `,"reasoning_content":`...)
		b = appendString(b, reasoning.String())
	}
	for i := range begun {
		if i == 0 {
			b = append(b, `,"tool_calls":[`...)
		} else {
			b = append(b, ',')
		}
		b = appendCall(b, p.calls[i], arguments[i].String())
	}
	if begun > 0 {
		b = append(b, ']')
	}
	return append(b, '}')
}

func appendCall(b []byte, call ToolCall, arguments string) []byte {
	b = append(b, `{"type":"function","function":{"name":`...)
	b = appendString(b, call.Name)
	b = append(b, `,"arguments":`...)
	b = appendString(b, arguments)
	b = append(b, `},"id":`...)
	b = appendString(b, call.ID)
	return append(b, '}')
}
