package llamasim

import (
	"net/http"
	"strconv"
)

const (
	typeJSON   = "application/json; charset=utf-8"
	typeStream = "text/event-stream"
)

// answer writes the response to one request, with the headers of the real
// server.
type answer struct {
	w       http.ResponseWriter
	r       *http.Request
	records *records
	rec     *Recorded
}

// begin sends the status. Headers that every answer has were set before.
func (a *answer) begin(status int, contentType string) {
	h := a.w.Header()
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	if status < http.StatusBadRequest {
		h.Set("Keep-Alive", "timeout=5, max=100")
	} else {
		h.Set("Connection", "close")
	}
	a.records.update(func() { a.rec.Status = status })
	a.w.WriteHeader(status)
}

// send sends a complete answer.
func (a *answer) send(status int, contentType string, body []byte) {
	a.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	a.begin(status, contentType)
	a.write(body)
}

func (a *answer) json(body []byte) { a.send(http.StatusOK, typeJSON, body) }

// refuse sends an error.
func (a *answer) refuse(e *refusal) { a.send(e.status, typeJSON, e.body()) }

// write sends a part of the body. That the client has left shows in the
// request's context.
func (a *answer) write(b []byte) {
	_, _ = a.w.Write(b)
}

// flush sends what was written so far.
func (a *answer) flush() {
	_ = http.NewResponseController(a.w).Flush()
}

// tear breaks the connection; it does not return.
func (a *answer) tear() {
	a.flush()
	panic(http.ErrAbortHandler)
}

// script sends a scripted answer in place of a generated one.
func (a *answer) script(s *Answer) {
	h := a.w.Header()
	for name, values := range s.Header {
		h[name] = values
	}
	status := s.Status
	if status == 0 {
		status = http.StatusOK
	}
	a.send(status, "", []byte(s.Body))
}
