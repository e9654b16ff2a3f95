package proxy

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/compactproxy/compactproxy/internal/agents"
	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/pairing"
	"github.com/compactproxy/compactproxy/internal/transcript"
)

// chat is the life of a chat request.
func (p *Proxy) chat(w http.ResponseWriter, r *http.Request) {
	rec := recordOf(r.Context())
	mode := p.modeOf(r.Header)
	rec.mode = string(mode)
	w = plainWriter{w}
	if mode == config.ModeOff {
		p.passOn(w, r)
		return
	}
	rec.session = label(r.Header.Get(headerSession))

	start := time.Now()
	raw, plain, decoded, err := p.readBody(w, r)
	if err != nil {
		p.failed(w, r, err)
		return
	}
	p.metrics.Stage(metrics.StageRead, start)
	rec.bodyBytes = len(plain)

	planning := time.Now()
	ex := &exchange{p: p, rec: rec, mode: mode, decoded: decoded, start: start, now: wantsCompaction(r.Header)}
	ex.wire = plain
	if mode == config.ModeObserve {
		ex.wire = raw
	}
	if err := ex.plan(r.Header, plain); err != nil {
		p.failed(w, r, err)
		return
	}
	p.metrics.Stage(metrics.StagePlan, planning)
	defer ex.finish()
	(&httputil.ReverseProxy{
		Rewrite:       ex.rewrite,
		Transport:     ex,
		FlushInterval: -1,
		ErrorHandler:  p.failed,
		ErrorLog:      p.stdlog,
	}).ServeHTTP(w, r)
}

// label bounds what a client may write into our log as a session's name.
func label(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, s)
	if len(s) > 64 {
		s = strings.ToValidUTF8(s[:64], "")
	}
	return s
}

// readBody returns the body as it came and as plain JSON text; both are the
// same slice unless the client compressed it. llama-server answers 415 to a
// compressed body, so the plain one goes on.
func (p *Proxy) readBody(w http.ResponseWriter, r *http.Request) (raw, plain []byte, decoded bool, err error) {
	if r.ContentLength > p.maxBody {
		return nil, nil, false, p.tooLarge()
	}
	idle := &idleReader{r: r.Body, extend: func() {
		// A test's recorder has no deadlines; a connection does.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(p.bodyIdle))
	}}
	raw, err = readLimited(idle, p.maxBody, r.ContentLength)
	if err == nil { // else net/http, which reads on to save the connection, would wait for ever
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	switch {
	case errors.Is(err, errTooLarge):
		return nil, nil, false, p.tooLarge()
	case err != nil && isTimeout(err):
		return nil, nil, false, &failure{
			Status: http.StatusRequestTimeout, Type: invalidRequest, Code: "request_timeout",
			Message: fmt.Sprintf("the request's body stopped coming for %s", p.bodyIdle),
		}
	case err != nil:
		return nil, nil, false, &failure{
			Status: http.StatusBadRequest, Type: invalidRequest, Code: "request_body_incomplete",
			Message: "the request's body ended before it was complete",
		}
	}
	if !strings.EqualFold(r.Header.Get("Content-Encoding"), "gzip") {
		return raw, raw, false, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return raw, raw, false, nil // not gzip: let the server say so
	}
	plain, err = readLimited(z, p.maxBody, 0)
	if errors.Is(err, errTooLarge) {
		return nil, nil, false, p.tooLarge()
	}
	if err != nil {
		return raw, raw, false, nil
	}
	return raw, plain, true, nil
}

func (p *Proxy) tooLarge() error {
	return &failure{
		Status: http.StatusRequestEntityTooLarge, Type: invalidRequest, Code: "request_body_too_large",
		Message: fmt.Sprintf("the request's body is over the %s that this proxy reads; raise limits.body", config.ByteSize(p.maxBody)),
	}
}

var errTooLarge = errors.New("body over the limit")

// readLimited reads at most limit bytes. hint is the size that was announced,
// believed up to a point.
func readLimited(r io.Reader, limit, hint int64) ([]byte, error) {
	buf := bytes.NewBuffer(make([]byte, 0, min(max(hint, 4<<10), 64<<20)+bytes.MinRead))
	if _, err := buf.ReadFrom(io.LimitReader(r, limit+1)); err != nil {
		return nil, err
	}
	if int64(buf.Len()) > limit {
		return nil, errTooLarge
	}
	return buf.Bytes(), nil
}

// idleReader calls extend before each read.
type idleReader struct {
	r      io.Reader
	extend func()
}

func (i *idleReader) Read(b []byte) (int, error) {
	i.extend()
	return i.r.Read(b)
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// plan indexes the body, finds the conversation, replays its checkpoint and
// makes the list legal. A body that is no chat request goes out as it is. The
// only error is the refusal of an illegal list where the configuration wants
// one.
func (ex *exchange) plan(h http.Header, plain []byte) error {
	p, asItCame := ex.p, ex.wire
	defer ex.contain("plan", func() { ex.body, ex.conv, ex.wire = nil, nil, asItCame })
	body, err := p.memo.Parse(plain)
	if err != nil {
		ex.rec.reason = "not_chat"
		p.log.Debug("not a chat request, forwarded as it is", zap.Int("body_bytes", len(plain)))
		return nil
	}
	ex.body = body
	ex.rec.stream, ex.rec.model = body.Stream, body.Model
	ex.leading = body.Leading()
	ex.originals = body.Messages[ex.leading:]
	system := body.Messages[:ex.leading]
	tools := body.Tools()

	ex.chain = transcript.Chain(credentials(h), ex.originals)
	ex.side = isSide(body)
	found := p.index.Resolve(conversation.Request{
		Chain:  ex.chain,
		Prints: transcript.Prints(ex.originals),
		System: transcript.Chain(nil, system)[len(system)],
		Tools:  hash(tools),
		Side:   ex.side,
	})
	ex.conv, ex.checkpoint, ex.change = found.Conversation, found.Checkpoint, found.Change
	ex.rec.conversation = ex.conv.ID
	ex.last = ex.conv.Describe(body.Model, ex.rec.session)
	ex.model = p.models.get(body.Model)
	p.tracker.Touch()
	ex.window = p.tracker.Window(body.Model).Tokens
	if err := ex.list(); err != nil {
		return err
	}
	if !ex.side && ex.mode == config.ModeOn && ex.conv.Rewritten(ex.checkpoint) {
		// Made for a request whose client had gone: this one is the first to carry it.
		ex.compacted = true
		ex.did(compactionAction(ex.checkpoint))
	}
	ex.estimate()
	return nil
}

// compactionAction is the action that a checkpoint came of.
func compactionAction(cp *conversation.Checkpoint) string {
	if cp != nil && slices.ContainsFunc(cp.Entries, func(e compaction.Entry) bool { return e.Summary != "" }) {
		return "summary"
	}
	return "passes"
}

// wantsCompaction tells whether the client asks for a compaction by hand.
func wantsCompaction(h http.Header) bool {
	return strings.EqualFold(h.Get(headerCompact), "now")
}

// prepare does what is to be done before the request leaves, and may take as long
// as a summary: room is made, what a client may change next time is stored. The
// header is the outgoing request's.
func (ex *exchange) prepare(req *http.Request) {
	if ex.body == nil {
		return
	}
	defer ex.p.metrics.Stage(metrics.StagePrepare, time.Now())
	defer ex.contain("preparation", ex.asBefore())
	ex.makeRoom(req.Context(), req.Header)
	ex.pin()
}

// isSide tells a request that an agent sends on its own account: a title, its own
// summary.
func isSide(body *transcript.Body) bool {
	system, user := "", ""
	if n := body.Leading(); n > 0 {
		system = body.Messages[0].Text()
	}
	if n := len(body.Messages); n > 0 && body.Messages[n-1].Role == transcript.User {
		user = body.Messages[n-1].Text()
	}
	return agents.SideRequest(system, user, body.HasTools) != agents.SideNone
}

// list makes the effective list: the checkpoint replayed, the new messages as
// they came, the pairing mended.
func (ex *exchange) list() error {
	ex.entries, ex.replayed = compaction.Entries(ex.originals, 0), 0
	if cp := ex.checkpoint; cp != nil {
		ex.replayed = len(cp.Entries)
		ex.entries = append(append(make([]compaction.Entry, 0, len(ex.originals)), cp.Entries...),
			compaction.Entries(ex.originals[cp.N:], cp.N)...)
		ex.did("replay")
	}
	pinned := ex.replayPins()
	repaired, err := ex.pair()
	if err != nil {
		return err
	}
	if repaired || pinned || ex.checkpoint != nil {
		ex.compose()
	}
	return nil
}

// pair checks the list and repairs or refuses it.
func (ex *exchange) pair() (repaired bool, err error) {
	p := ex.p
	ex.open = len(ex.entries)
	if p.pairing == config.PairingOff {
		return false, nil
	}
	legal, open, violations := compaction.Repair(ex.entries)
	if violations == nil {
		return false, nil
	}
	action := metrics.ActionRepaired
	switch {
	case ex.mode == config.ModeObserve:
		action = metrics.ActionSeen
	case p.pairing == config.PairingReject:
		action = metrics.ActionRejected
	}
	for _, v := range violations {
		p.metrics.Violations.WithLabelValues(string(v.Kind), action).Inc()
	}
	if action == metrics.ActionRejected {
		first := violations[0]
		at := ex.clientIndex(first.Message)
		return false, &failure{
			Status: http.StatusBadRequest, Type: invalidRequest, Code: "invalid_tool_pairing",
			Param:   fmt.Sprintf("messages[%d]", at),
			Message: fmt.Sprintf("messages[%d], call id %q: %s; set pairing: repair to have such lists mended", at, first.CallID, words(first.Kind)),
		}
	}
	ex.did("repair")
	ex.entries, ex.open = legal, open
	return true, nil
}

// clientIndex translates an index of the effective list to the client's.
func (ex *exchange) clientIndex(entry int) int {
	return ex.leading + max(ex.entries[entry].End-1, 0)
}

func words(k pairing.Kind) string {
	switch k {
	case pairing.OrphanResult:
		return "a tool message that answers no call of the assistant message before it"
	case pairing.DuplicateResult:
		return "a second result for one call"
	case pairing.UnansweredCall:
		return "a call without a result"
	case pairing.Interleaved:
		return "another message stands between a call and its result"
	}
	return "the call's arguments are not JSON"
}

// credentials seed the chain, so that nothing crosses users.
func credentials(h http.Header) []byte {
	sum := sha256.Sum256([]byte(h.Get("Authorization") + "\x00" + h.Get("X-Api-Key")))
	return sum[:]
}

func hash(b []byte) (out transcript.Hash) {
	sum := sha256.Sum256(b)
	copy(out[:], sum[:])
	return out
}
