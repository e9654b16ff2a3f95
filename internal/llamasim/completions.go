package llamasim

import (
	"fmt"
	"strings"
)

// completions answers POST /v1/completions.
func (s *Server) completions(a *answer) error {
	body := a.rec.Body
	if err := checkJSON(body); err != nil {
		return invalidRequest("%v", err)
	}
	o := members(body)
	switch {
	case !o.has("prompt"):
		return invalidRequest("'prompt' is required")
	case o["prompt"].Kind() != '"':
		return typeError("string", o["prompt"])
	}
	params, err := parseParams(o)
	if err != nil {
		return err
	}
	return s.generate(a, &generation{
		params:   params,
		prompt:   o.text("prompt"),
		envelope: &textEnvelope{identity: s.newIdentity()},
	})
}

// textEnvelope is the format of /v1/completions.
type textEnvelope struct{ identity }

func (e *textEnvelope) append(b []byte, text string, finish string) []byte {
	b = append(b, `{"choices":[`...)
	b = appendTextChoice(b, text, 0, finish)
	return e.appendIdentity(b)
}

func appendTextChoice(b []byte, text string, index int, finish string) []byte {
	b = append(b, `{"text":`...)
	b = appendString(b, text)
	b = fmt.Appendf(b, `,"index":%d,"logprobs":null,"finish_reason":`, index)
	if finish == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, finish)
	}
	return append(b, '}')
}

// appendIdentity ends the choices; the object stays open for usage and id.
func (e *textEnvelope) appendIdentity(b []byte) []byte {
	b = fmt.Appendf(b, `],"created":%d,"model":`, e.created)
	b = appendString(b, e.model)
	return append(b, `,"system_fingerprint":"`+buildInfo+`","object":"text_completion"`...)
}

func (e *textEnvelope) appendID(b []byte) []byte {
	return append(b, `,"id":"`+e.id+`"}`...)
}

func (e *textEnvelope) opening() []byte { return nil }

func (e *textEnvelope) progress(total, cached, processed int, millis float64) []byte {
	return with(e.appendID(e.append(nil, "", "")), "prompt_progress", progressObject(total, cached, processed, millis))
}

func (e *textEnvelope) token(f fragment, _ *plan, t *timings) []byte {
	b := e.appendID(e.append(nil, f.text, ""))
	if t != nil {
		b = with(b, "timings", t.append(nil))
	}
	return b
}

// closing is one event, with usage whether asked for or not.
func (e *textEnvelope) closing(finish string, t timings, _ generationParams) [][]byte {
	return [][]byte{e.finish(e.append(nil, "", finish), t)}
}

func (e *textEnvelope) finish(b []byte, t timings) []byte {
	b = append(b, `,"usage":`...)
	b = t.appendUsage(b)
	return with(e.appendID(b), "timings", t.append(nil))
}

func (e *textEnvelope) whole(p *plan, t timings, choices int) []byte {
	var text strings.Builder
	for _, f := range p.fragments {
		text.WriteString(f.text)
	}
	b := []byte(`{"choices":[`)
	for i := range choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendTextChoice(b, text.String(), i, p.finish)
	}
	return e.finish(e.appendIdentity(b), t)
}
