package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/transcript"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// exchange is one chat request and its answer: the round tripper of its own
// reverse proxy, which leaves header hygiene, flushing and trailers to net/http.
type exchange struct {
	p     *Proxy
	rec   *record
	mode  config.Mode
	start time.Time

	// The request as it came.
	decoded bool             // the client had compressed the body
	body    *transcript.Body // nil if it was not understood

	// Who it is from.
	leading   int // system messages that open the list
	originals []transcript.Message
	chain     []transcript.Hash
	side      bool // an agent's own request: replayed, never compacted
	now       bool // the client wants a compaction
	conv      *conversation.Conversation
	change    conversation.Change
	last      int // tokens of the conversation's last prompt, 0 if unknown
	model     *model
	window    int // tokens, 0 if unknown
	threshold int // tokens, 0 for none
	client    int // estimate of the client's own list in tokens

	sending
	prepared bool // everything that is to be done before it leaves is done

	// What happened.
	pooled    bool // sent again as it was, after the shared pool was exhausted
	capped    bool // sent again with a lower cap on the answer
	recovered bool // sent again with a list made to fit
	refused   bool // the client gets a refusal as too long
	failed    bool // the client gets another error
	release   func()
	answer    answer
}

// sending is what goes out for a request, and how it came to be that.
type sending struct {
	wire       []byte
	checkpoint *conversation.Checkpoint // the one that is replayed, nil if none
	entries    []compaction.Entry       // the effective list behind the system messages
	replayed   int                      // entries that came from the checkpoint
	open       int                      // entries before a batch that is still open
	pins       []conversation.Pin       // to be stored before the request leaves
	maxTokens  int                      // a lowered cap on the answer, 0 if untouched

	forecast  int  // tokens of the prompt
	counted   bool // the forecast is the server's own count
	noSummary bool // one was asked for and failed
	compacted bool // this request made a checkpoint, or took one over
	stays     int  // tokens before the first change of a compaction, and
	head      int  // of those before the first turn; 0 where there was none
	actions   []string
	warning   string
}

// did notes an action; in mode observe it only would have been one.
func (ex *exchange) did(action string) {
	if ex.mode == config.ModeObserve {
		action = "would-" + action
	}
	if !slices.Contains(ex.actions, action) {
		ex.actions = append(ex.actions[:len(ex.actions):len(ex.actions)], action)
	}
}

// action is the value of the response header and of the log field.
func (s *sending) action() string {
	if len(s.actions) == 0 {
		return "none"
	}
	return strings.Join(s.actions, ", ")
}

// compose writes the effective list into the body. In mode observe the body
// stays the client's.
func (ex *exchange) compose() {
	if ex.body != nil && ex.mode == config.ModeOn {
		ex.wire = ex.effective()
	}
}

// effective is the body with the list as it stands.
func (ex *exchange) effective() []byte {
	list := make([]transcript.Message, 0, ex.leading+len(ex.entries))
	list = append(list, ex.body.Messages[:ex.leading]...)
	list = append(list, compaction.Messages(ex.entries)...)
	return ex.body.RewriteCapped(list, ex.maxTokens)
}

// rewrite is the outgoing request's header; the body is set for each attempt.
func (ex *exchange) rewrite(pr *httputil.ProxyRequest) {
	ex.p.rewrite(pr)
	h := pr.Out.Header
	if ex.mode == config.ModeOn {
		h.Del("Accept-Encoding") // the answer is read as it passes
	}
	h.Del("Expect") // the body is here already
	if ex.p.sendID && ex.conv != nil {
		h.Set(headerConversation, ex.conv.ID)
	}
	pr.Out.Trailer = nil
}

// RoundTrip implements [http.RoundTripper] for the exchange's reverse proxy.
func (ex *exchange) RoundTrip(req *http.Request) (*http.Response, error) {
	if ex.body != nil && ex.body.Stream {
		return ex.relay(req)
	}
	res, err := ex.answered(req)
	if err != nil {
		return nil, err
	}
	ex.p.metrics.FirstByte.Observe(time.Since(ex.start).Seconds())
	ex.decorate(res.Header)
	res.Body = &tappedBody{ReadCloser: res.Body, done: ex.readWhole}
	return res, nil
}

// answered sends the request until there is an answer to give: refusals as too
// long are recovered from, each way once.
func (ex *exchange) answered(req *http.Request) (*http.Response, error) {
	if !ex.prepared {
		ex.prepared = true
		ex.prepare(req)
		if err := req.Context().Err(); err != nil {
			return nil, err
		}
	}
	for {
		res, err := ex.send(req)
		if err != nil {
			return nil, err
		}
		refusal, body := ex.refusalOf(res)
		if !refusal.Kind.Overflow() {
			ex.failed = res.StatusCode >= http.StatusBadRequest
			return res, nil
		}
		if ex.again(req.Context(), req.Header, refusal) {
			res.Body.Close()
			continue
		}
		ex.refused = true
		if body != nil && ex.mode == config.ModeOn {
			setBody(res, upstream.Translate(body, refusal))
		}
		return res, nil
	}
}

// send makes one attempt. Its deadline is for the first byte alone.
func (ex *exchange) send(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	out := req.Clone(ctx)
	body := ex.wire
	out.Body = io.NopCloser(bytes.NewReader(body))
	if len(body) == 0 {
		out.Body = http.NoBody // else its length would count as unknown
	}
	out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	out.ContentLength = int64(len(body))
	out.TransferEncoding = nil
	out.Header.Del("Content-Length")
	if ex.decoded && ex.mode == config.ModeOn {
		out.Header.Del("Content-Encoding")
	}
	ex.rec.sentBytes = len(body)
	if ex.p.timeout > 0 {
		timer := time.AfterFunc(ex.p.timeout, func() { cancel(errUpstreamTimeout) })
		defer timer.Stop()
	}
	ex.p.pool.enter(ex)
	res, err := ex.p.transport.RoundTrip(out)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, err
	}
	res.Body = &cancelBody{res.Body, cancel}
	return res, nil
}

// cancelBody ends its request's context when the body is closed.
type cancelBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *cancelBody) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// refusalSize bounds how much of an error's body is looked at.
const refusalSize = 64 << 10

// refusalOf looks whether an answer refuses the request as too long, and
// returns its whole body where that is small enough. The response can be read
// as if nobody had looked.
func (ex *exchange) refusalOf(res *http.Response) (upstream.Refusal, []byte) {
	if res.StatusCode < 400 || res.StatusCode > 500 {
		return upstream.Refusal{}, nil
	}
	head, err := io.ReadAll(io.LimitReader(res.Body, refusalSize+1))
	rest := io.MultiReader(bytes.NewReader(head), res.Body)
	if err != nil {
		rest = io.MultiReader(bytes.NewReader(head), failingReader{err})
	}
	res.Body = readCloser{rest, res.Body}
	if err != nil || len(head) > refusalSize {
		return upstream.Classify(res.StatusCode, head), nil
	}
	return upstream.Classify(res.StatusCode, head), head
}

type readCloser struct {
	io.Reader
	io.Closer
}

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

func setBody(res *http.Response, body []byte) {
	res.Body = readCloser{bytes.NewReader(body), res.Body}
	res.ContentLength = int64(len(body))
	res.Header.Set("Content-Length", strconv.Itoa(len(body)))
	res.TransferEncoding = nil
}

// again decides what to send after a refusal as too long, and reports whether
// there is anything. Each way is taken once, and never with the same list
// except where a shared pool was exhausted by others.
func (ex *exchange) again(ctx context.Context, h http.Header, refusal upstream.Refusal) bool {
	ex.rec.refusal = refusal.Kind.String()
	if ex.body == nil {
		return false
	}
	if refusal.Window > 0 {
		ex.p.tracker.Learn(ex.body.Model, refusal.Window)
		ex.window = refusal.Window
	}
	switch {
	case refusal.Kind == upstream.SharedPool && !ex.pooled:
		if ex.mode == config.ModeObserve {
			return false
		}
		ex.pooled = true
		release, err := ex.p.pool.alone(ctx, ex)
		if err != nil {
			return false
		}
		ex.release = release
		return true
	case refusal.Kind == upstream.OutputTooLong && !ex.capped && ex.lowerCap(refusal):
		ex.capped = true
		ex.did("max_tokens")
		ex.compose()
		return ex.mode == config.ModeOn
	case ex.recovered, ex.side: // the agent knows what to drop from a request of its own
		return false
	}
	ex.recovered = ex.recover(ctx, h, refusal)
	if !ex.recovered && ex.mode == config.ModeOn {
		ex.p.metrics.OverflowRetries.WithLabelValues(metrics.RetryHopeless).Inc()
	}
	return ex.recovered && ex.mode == config.ModeOn
}

// lowerCap makes input and output fit together where the input alone does. Where
// the server gave only a bound for the input, our own count decides, with room
// for its error.
func (ex *exchange) lowerCap(refusal upstream.Refusal) bool {
	const margin = 16 // tokens that a template may add to what was counted
	prompt := refusal.PromptTokens
	if refusal.AtLeast {
		prompt = ex.forecast * 5 / 4
	}
	room := refusal.Window - prompt - margin
	if prompt <= 0 || room < 1 || ex.body.MaxTokens <= room {
		return false
	}
	ex.maxTokens = room
	return true
}

// decorate adds the proxy's own response headers.
func (ex *exchange) decorate(h http.Header) {
	if ex.conv == nil {
		h.Set(headerAction, "none")
		return
	}
	h.Set(headerConversation, ex.conv.ID)
	h.Set(headerAction, ex.action())
	h.Set(headerTokens, fmt.Sprintf("%d/%d", ex.forecast, ex.window))
	if ex.warning != "" {
		h.Set(headerWarning, ex.warning)
	}
}

// readWhole takes in a whole answer that was not streamed.
func (ex *exchange) readWhole(body []byte) {
	ex.answer.read(body)
}

// tappedBody keeps a copy of a small body and hands it over at its end.
type tappedBody struct {
	io.ReadCloser
	kept []byte
	over bool
	done func([]byte)
}

// maxAnswer bounds how much of an answer is kept to read its usage.
const maxAnswer = 8 << 20

func (t *tappedBody) Read(b []byte) (int, error) {
	n, err := t.ReadCloser.Read(b)
	if len(t.kept)+n > maxAnswer {
		t.kept, t.over = nil, true
	}
	if !t.over {
		t.kept = append(t.kept, b[:n]...)
	}
	if errors.Is(err, io.EOF) && t.done != nil {
		t.done(t.kept)
		t.done = nil
	}
	return n, err
}
