package proxy

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"time"

	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// keepaliveEvery is the pace of keep-alive chunks after the first: agents hang
// up after 120 to 300 seconds of silence.
const keepaliveEvery = 15 * time.Second

// relay answers a streaming request. A goroutine, the pump, reads the server,
// so that a client who waits can be kept alive meanwhile; the body of the
// response hands out what the pump read, event by event and unbuffered. Until
// the body is closed the pump alone uses the exchange.
func (ex *exchange) relay(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	pm := &pump{ex: ex, req: req.WithContext(ctx), head: make(chan head), out: make(chan piece), spent: make(chan struct{})}
	body := &relayBody{
		pump: pm, cancel: cancel,
		keepalive: ex.p.keepalive, model: ex.rec.model,
	}
	if ex.mode != config.ModeOn {
		body.keepalive = 0
	}
	pending := http.Header{"Content-Type": {"text/event-stream"}, "Cache-Control": {"no-cache"}, "X-Accel-Buffering": {"no"}}
	ex.decorate(pending)
	first := ex.p.metrics.FirstByte
	if body.keepalive > 0 {
		body.timer = time.NewTimer(body.keepalive)
	}
	go pm.run()

	select {
	case h := <-pm.head:
		if h.err != nil {
			body.Close()
			return nil, h.err
		}
		first.Observe(time.Since(ex.start).Seconds())
		if isEventStream(h.res) {
			h.res.ContentLength = -1 // events may come in between, or change
			h.res.Header.Del("Content-Length")
		} else {
			body.stopTimer()
		}
		h.res.Body, body.res = body, h.res
		return h.res, nil
	case <-body.tick():
		close(pm.spent)
		body.spent = true
		body.keepAlive()
		first.Observe(time.Since(ex.start).Seconds())
		pending.Set(headerAction, addAction(pending.Get(headerAction), "pending"))
		return &http.Response{
			StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: pending, Body: body, ContentLength: -1, Request: req,
		}, nil
	case <-ctx.Done():
		body.Close()
		return nil, context.Cause(ctx)
	}
}

func addAction(list, action string) string {
	if list == "" || list == "none" {
		return action
	}
	return list + ", " + action
}

// head is the answer's status and header, or why there is none.
type head struct {
	res *http.Response
	err error
}

// piece is one or more whole events, or the rest of a stream.
type piece struct {
	data    []byte
	partial bool   // an event goes on in the next piece
	retried bool   // of a second attempt after something was sent
	id      string // the identity of the stream's chunks, once it is known
	created int64
}

// pump reads the server's answer, retries what may be retried, and passes the
// rest on.
type pump struct {
	ex    *exchange
	req   *http.Request
	head  chan head     // given once, unless spent was closed first
	out   chan piece    // closed at the end
	spent chan struct{} // closed when a keep-alive chunk has used up status and header

	begun   bool           // the head was given, or is not wanted any more
	from    *http.Response // the server's response that the head was made of
	inline  bool           // errors must travel in the stream
	sent    bool           // an event was given out
	retried bool
	err     error // how the stream broke; read after out was closed
}

func (pm *pump) run() {
	defer close(pm.out)
	defer pm.ex.contain("relay", func() { // which nobody else would catch in this goroutine
		if pm.err = errFault; !pm.begun {
			pm.fail(errFault)
		}
	})
	for {
		res, err := pm.ex.answered(pm.req)
		if err != nil {
			pm.fail(err)
			return
		}
		body := res.Body // the reverse proxy gets another one
		again := pm.pass(res, body)
		body.Close()
		if !again {
			return
		}
		pm.retried = pm.sent
		pm.ex.answer = answer{}
	}
}

var errFault = errors.New("a fault in the proxy's own relay")

// fail reports that there is no answer.
func (pm *pump) fail(err error) {
	if !pm.begin(head{err: err}) {
		return
	}
	if pm.inline && pm.req.Context().Err() == nil {
		pm.give(dataEvent(pm.ex.p.failureOf(err).body()))
	}
}

// begin gives the head once. Where keep-alive has spent it, the stream is the
// only way left.
func (pm *pump) begin(h head) bool {
	if pm.begun {
		pm.inline = true
		return true
	}
	pm.begun = true
	if h.res != nil {
		pm.ex.decorate(h.res.Header)
		// The trailers come into the server's response as its body is read, here;
		// the reverse proxy looks at its own copy meanwhile.
		res := *h.res
		res.Trailer = maps.Clone(h.res.Trailer)
		pm.from, h.res = h.res, &res
	}
	select {
	case pm.head <- h:
		return true
	case <-pm.spent:
		pm.inline = true
		return true
	case <-pm.req.Context().Done():
		return false
	}
}

// give passes bytes on; false means that nobody wants them.
func (pm *pump) give(data []byte) bool { return pm.giveEvents(data, true) }

func (pm *pump) giveEvents(data []byte, whole bool) bool {
	// The bytes lie in the event reader's buffer: nobody may append to them.
	p := piece{data: data[:len(data):len(data)], partial: !whole, retried: pm.retried, id: pm.ex.answer.id, created: pm.ex.answer.created}
	select {
	case pm.out <- p:
		pm.sent = true
		return true
	case <-pm.req.Context().Done():
		return false
	}
}

// pass gives one answer on, and reports whether the request is to be sent again
// instead.
func (pm *pump) pass(res *http.Response, body io.ReadCloser) (again bool) {
	if !isEventStream(res) {
		pm.passWhole(res, body)
		return false
	}
	events := &eventReader{r: body}
	tap := lineTap{payload: func(p []byte) {
		if matters(p) {
			pm.ex.answer.read(p)
		}
	}}
	for {
		var data []byte
		var err error
		whole := true
		if pm.ex.answer.visible {
			if data, whole, err = events.ready(); err == nil {
				tap.write(data)
			}
		} else if data, whole, err = events.next(); err == nil {
			if data, again = pm.early(data); again {
				return true
			}
		}
		if err != nil {
			return pm.end(res, err)
		}
		if !pm.begin(head{res: res}) || !pm.giveEvents(data, whole) {
			return false
		}
	}
}

// end ends a stream as the server ended it. A connection that broke before
// anything was sent is an error with a status; one that breaks later breaks for
// the client as well: four of six agents retry a cut connection and give up on
// an error in the stream.
func (pm *pump) end(res *http.Response, err error) (again bool) {
	if errors.Is(err, io.EOF) {
		pm.begin(head{res: res}) // an empty stream
		return false
	}
	if !pm.sent {
		pm.fail(err)
		return false
	}
	pm.err = err
	return false
}

// early looks at an event that came before the first visible token: an error in
// it is treated as if it had been a status.
func (pm *pump) early(event []byte) (out []byte, again bool) {
	payload := eventData(event)
	if payload == nil {
		return event, false
	}
	ex := pm.ex
	c, ok := ex.answer.read(payload)
	var refusal upstream.Refusal
	for _, choice := range c.Choices {
		if choice.FinishReason != nil {
			refusal = upstream.ClassifyFinish(*choice.FinishReason)
		}
	}
	if isError := ok && len(c.Error) > 0 && !bytes.Equal(c.Error, []byte("null")); isError || isErrorEvent(event) {
		refusal = upstream.Classify(http.StatusOK, payload)
		ex.failed = !refusal.Kind.Overflow()
	}
	if !refusal.Kind.Overflow() {
		return event, false
	}
	if ex.again(pm.req.Context(), pm.req.Header, refusal) {
		return nil, true
	}
	ex.refused = true
	if ex.mode != config.ModeOn {
		return event, false
	}
	return bytes.Replace(event, payload, upstream.Translate(payload, refusal), 1), false
}

// isErrorEvent tells an event of the name error, and the line "error: {…}" that
// some servers send instead of a data line.
func isErrorEvent(event []byte) bool {
	for line := range bytes.Lines(event) {
		name, value, ok := bytes.Cut(line, []byte(":"))
		if ok && (string(name) == "error" || string(name) == "event" && string(bytes.TrimSpace(value)) == "error") {
			return true
		}
	}
	return false
}

// passWhole gives on an answer that is no event stream: an error, a page.
func (pm *pump) passWhole(res *http.Response, source io.ReadCloser) {
	if !pm.begin(head{res: res}) {
		return
	}
	if pm.inline {
		body, err := io.ReadAll(io.LimitReader(source, refusalSize))
		if err != nil || !json.Valid(body) {
			body = (&failure{
				Type: serverError, Code: "upstream_error",
				Message: fmt.Sprintf("the server answered %d with something that is not JSON", res.StatusCode),
			}).body()
		}
		pm.give(dataEvent(body))
		return
	}
	tapped := &tappedBody{ReadCloser: source, done: pm.ex.readWhole}
	for {
		buf := make([]byte, 32<<10)
		n, err := tapped.Read(buf)
		if n > 0 && !pm.give(buf[:n]) {
			return
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				pm.err = err
			}
			return
		}
	}
}

func dataEvent(payload []byte) []byte {
	var line bytes.Buffer
	line.WriteString("data: ")
	if json.Compact(&line, payload) != nil { // a line break would end the event
		line.Write(bytes.ReplaceAll(payload, []byte("\n"), nil))
	}
	line.WriteString("\n\n")
	return line.Bytes()
}

// isEventStream tells an answer that is read event by event. In mode observe a
// client may have been given a compressed one, in which no event can be seen.
func isEventStream(res *http.Response) bool {
	if coding := res.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return false
	}
	t, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return err == nil && t == "text/event-stream" && res.StatusCode == http.StatusOK
}

// relayBody is what the reverse proxy copies to the client.
type relayBody struct {
	pump      *pump
	cancel    context.CancelFunc
	keepalive time.Duration
	timer     *time.Timer // nil where no keep-alive is wanted
	model     string      // as the client asked for it

	res     *http.Response // the answer that has this body, nil where keep-alive began it
	pending []byte
	partial bool // an event has begun and goes on
	spent   bool
	id      string // the identity that was sent first, "" before
	created int64
	role    bool // a chunk with the role has been sent
	own     bool // the first chunk was ours: all others take its identity
}

func (b *relayBody) tick() <-chan time.Time {
	if b.timer == nil {
		return nil
	}
	return b.timer.C
}

func (b *relayBody) stopTimer() {
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
}

func (b *relayBody) Read(p []byte) (int, error) {
	for len(b.pending) == 0 {
		select {
		case next, ok := <-b.pump.out:
			if !ok {
				if b.pump.err != nil {
					return 0, b.pump.err
				}
				if b.res != nil && len(b.pump.from.Trailer) > 0 {
					b.res.Trailer = b.pump.from.Trailer
				}
				return 0, io.EOF
			}
			b.take(next)
		case <-b.tick():
			b.keepAlive()
		case <-b.pump.req.Context().Done():
			return 0, context.Cause(b.pump.req.Context())
		}
	}
	n := copy(p, b.pending)
	b.pending = b.pending[n:]
	return n, nil
}

// take queues a piece, in the stream's identity.
func (b *relayBody) take(next piece) {
	b.partial = next.partial
	// Comments do not reset the timers of two agents, so only data does here.
	if b.timer != nil && next.data[0] != ':' {
		b.timer.Reset(b.keepalive)
	}
	if !b.own && !next.retried {
		b.pending = next.data
		if b.id == "" {
			b.id, b.created = next.id, next.created
		}
		b.role = b.role || next.id != ""
		return
	}
	for len(next.data) > 0 {
		end := eventEnd(next.data, 0)
		if end == 0 {
			end = len(next.data)
		}
		event := next.data[:end]
		next.data = next.data[end:]
		if b.role && isRoleChunk(event) {
			continue
		}
		if b.id != "" {
			event = reidentify(event, b.id, b.created)
		}
		b.pending = append(b.pending, event...)
	}
}

// isRoleChunk tells a chunk that says nothing but who speaks.
func isRoleChunk(event []byte) bool {
	if !bytes.Contains(event, []byte(`"role"`)) {
		return false
	}
	payload := eventData(event)
	var members map[string]json.RawMessage
	var c chunk
	if json.Unmarshal(payload, &members) != nil || json.Unmarshal(payload, &c) != nil || len(c.Choices) == 0 {
		return false
	}
	for _, name := range []string{"usage", "timings", "prompt_progress", "error"} {
		if v, ok := members[name]; ok && !bytes.Equal(v, []byte("null")) {
			return false // the client asked for it
		}
	}
	for _, choice := range c.Choices {
		if choice.Delta.Role == "" || choice.Delta.visible() || choice.FinishReason != nil {
			return false
		}
	}
	return true
}

// keepAlive queues an ordinary chunk with an empty delta, and schedules the
// next one. Comment lines would not do: they do not reset the timers of two
// agents, and one SDK cannot read a comment that stands alone.
func (b *relayBody) keepAlive() {
	b.timer.Reset(min(keepaliveEvery, b.keepalive))
	if b.partial {
		return // not in the middle of an event
	}
	if b.id == "" {
		b.own = true
		b.id, b.created = "chatcmpl-"+rand.Text(), time.Now().Unix()
	}
	delta := map[string]string{"content": ""}
	if !b.role {
		delta["role"] = "assistant"
		b.role = true
	}
	payload, err := json.Marshal(map[string]any{
		"id": b.id, "object": "chat.completion.chunk", "created": b.created, "model": b.model,
		"choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": nil}},
	})
	if err != nil {
		panic("BUG: a chunk of strings is not JSON: " + err.Error())
	}
	b.pending = append(b.pending, dataEvent(payload)...)
}

// Close ends the pump and waits for it: from then on the exchange belongs to
// the handler again.
func (b *relayBody) Close() error {
	b.cancel()
	b.stopTimer()
	for range b.pump.out { // until the pump has closed it
	}
	if b.spent {
		b.pump.ex.actions = append(b.pump.ex.actions, "pending")
	}
	return nil
}
