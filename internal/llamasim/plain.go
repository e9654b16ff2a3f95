package llamasim

import (
	"net/http"
	"strconv"
)

// plain generates everything, then answers.
func (s *Server) plain(a *answer, g *generation) error {
	if err := s.prefill(g, nil); err != nil {
		return err
	}
	for range g.plan.fragments {
		if err := s.decode(a, g); err != nil {
			return err
		}
	}
	s.complete(g)
	return s.sendPlain(a, g)
}

// sendPlain answers with one JSON object, or breaks as scripted.
func (s *Server) sendPlain(a *answer, g *generation) error {
	body := g.envelope.whole(&g.plan, g.timings, min(g.params.choices, s.options.Slots))
	fault := g.reply.Fault
	switch fault.Kind {
	case FaultCut, FaultCutLine:
		a.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		a.begin(http.StatusOK, typeJSON)
		a.write(body[:len(body)/2])
		a.tear()
	case FaultEnd:
		body = body[:len(body)/2]
	case FaultError, FaultErrorEvent:
		a.send(fault.status(), typeJSON, fault.body())
		return nil
	case FaultSilence:
		if err := g.silence(); err != nil {
			return err
		}
	}
	a.json(body)
	return nil
}
