package llamasim

import (
	"context"
	"errors"
	"net/http"
)

// events writes the events of a stream and lets the scripted fault strike.
type events struct {
	*answer
	g       *generation
	between func(context.Context)
	sent    int
}

// errFault ends a stream that broke as it was told to.
var errFault = errors.New("scripted fault")

// stream answers with server-sent events. Headers go out before the prompt is
// processed, so that whatever fails then fails inside the stream. Its error is
// that of a client which left.
func (s *Server) stream(a *answer, g *generation) error {
	a.w.Header().Set("X-Accel-Buffering", "no")
	a.begin(http.StatusOK, typeStream)
	a.flush()
	e := &events{answer: a, g: g, between: or(g.reply.BetweenEvents, s.options.BetweenEvents)}
	err := s.streamEvents(e)
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		a.write(dataLine(refused.body()))
		return nil
	case errors.Is(err, errFault):
		return nil
	}
	return err
}

func (s *Server) streamEvents(e *events) error {
	g := e.g
	for range g.reply.Pings {
		e.write([]byte(":\n\n"))
		e.flush()
	}
	var report func(int, float64) error
	if g.params.returnProgress {
		report = func(processed int, millis float64) error {
			return e.event(g.envelope.progress(len(g.tokens), g.cached, processed, millis))
		}
	}
	if err := s.prefill(g, report); err != nil {
		return err
	}
	if opening := g.envelope.opening(); opening != nil {
		if err := e.event(opening); err != nil {
			return err
		}
	}
	for _, f := range g.plan.fragments {
		if err := s.decode(e.answer, g); err != nil {
			return err
		}
		if f.text == "" {
			continue
		}
		var t *timings
		if g.params.timingsPerToken {
			t = &g.timings
		}
		if err := e.event(g.envelope.token(f, &g.plan, t)); err != nil {
			return err
		}
	}
	s.complete(g)
	for _, data := range g.envelope.closing(g.plan.finish, g.timings, g.params) {
		if err := e.event(data); err != nil {
			return err
		}
	}
	return e.done()
}

// event sends one event, or is where the stream ends.
func (e *events) event(data []byte) error {
	if e.sent > 0 {
		if err := e.g.pause(e.between); err != nil {
			return err
		}
	}
	if e.g.reply.Fault.After == e.sent {
		if err := e.strike(data); err != nil {
			return err
		}
	}
	e.write(dataLine(data))
	e.flush()
	e.sent++
	return context.Cause(e.g.ctx)
}

// done ends a stream that went well.
func (e *events) done() error {
	if err := e.g.pause(e.between); err != nil {
		return err
	}
	if f := e.g.reply.Fault; f.After == e.sent || f.After < 0 {
		if err := e.strike([]byte("[DONE]")); err != nil {
			return err
		}
	}
	e.write(dataLine([]byte("[DONE]")))
	return nil
}

// strike lets the fault, if there is one, happen in place of an event.
func (e *events) strike(data []byte) error {
	fault := e.g.reply.Fault
	switch fault.Kind {
	case NoFault:
		return nil
	case FaultCut:
		e.tear()
	case FaultCutLine:
		line := dataLine(data)
		e.write(line[:len(line)/2])
		e.tear()
	case FaultError:
		e.write(dataLine(fault.body()))
	case FaultErrorEvent:
		e.write(append([]byte("event: error\n"), dataLine(fault.body())...))
	case FaultSilence:
		return e.g.silence()
	}
	return errFault
}

// silence waits for its release.
func (g *generation) silence() error {
	select {
	case <-g.reply.Fault.Release:
		return nil
	case <-g.ctx.Done():
		return context.Cause(g.ctx)
	}
}

// dataLine is a server-sent event.
func dataLine(data []byte) []byte {
	line := make([]byte, 0, len(data)+8)
	line = append(line, "data: "...)
	line = append(line, data...)
	return append(line, "\n\n"...)
}
