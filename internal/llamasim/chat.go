package llamasim

import "fmt"

// render reads a chat body and makes its prompt.
func (s *Server) render(body []byte) (*chatRequest, string, error) {
	r, err := parseChat(body, s.options.ImageTokens)
	if err != nil {
		return nil, "", err
	}
	prompt, err := s.options.Template.render(r)
	return r, prompt, err
}

// chat answers POST /v1/chat/completions.
func (s *Server) chat(a *answer) error {
	r, prompt, err := s.render(a.rec.Body)
	if err != nil {
		return err
	}
	e := &chatEnvelope{identity: s.newIdentity()}
	if r.prefills() {
		e.prefill = r.messages[len(r.messages)-1].Content
	}
	return s.generate(a, &generation{
		params:     r.generationParams,
		prompt:     prompt,
		messages:   r.messages,
		tools:      r.tools,
		toolChoice: r.toolChoice,
		tag:        s.options.Template.generationPrompt(),
		envelope:   e,
	})
}

// inputTokens answers POST /v1/chat/completions/input_tokens.
func (s *Server) inputTokens(a *answer) error {
	_, prompt, err := s.render(a.rec.Body)
	if err != nil {
		return err
	}
	n := CountTokens(prompt)
	s.records.update(func() { a.rec.Prompt, a.rec.PromptTokens = prompt, n })
	a.json(fmt.Appendf(nil, `{"input_tokens":%d,"object":"response.input_tokens"}`, n))
	return nil
}

// applyTemplate answers POST /apply-template.
func (s *Server) applyTemplate(a *answer) error {
	_, prompt, err := s.render(a.rec.Body)
	if err != nil {
		return err
	}
	a.json(append(appendString([]byte(`{"prompt":`), prompt), '}'))
	return nil
}
