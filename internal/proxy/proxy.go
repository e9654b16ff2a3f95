package proxy

import (
	"crypto/sha256"
	"crypto/subtle"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/transcript"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// Tracker knows the server's window; [upstream.Tracker] is the real one. No
// method waits for the server.
type Tracker interface {
	// Window is the window of a model per slot.
	Window(model string) upstream.Window
	// LlamaServer tells whether the server is one, as far as is known: others refuse
	// what they do not know.
	LlamaServer() bool
	// Learn takes in the window in tokens that a refusal named.
	Learn(model string, window int) (changed bool)
	// Touch says that a request came: what is known may be old.
	Touch()
	// Invalidate says that what is known may be wrong.
	Invalidate(reason string)
}

// Options are what a proxy is made of.
type Options struct {
	Config    config.Config
	Upstream  *url.URL // the server's root, without /v1
	Transport http.RoundTripper
	Tracker   Tracker
	Counter   Counter   // nil where the server is not to be asked
	Generator Generator // nil where no summaries are to be written
	Settings  compaction.Settings
	Index     *conversation.Index
	Metrics   *metrics.Metrics
	Log       *zap.Logger
	// BodyIdle is how long a client may send nothing in the middle of a chat
	// body; 0 means a minute.
	BodyIdle time.Duration
}

// Proxy is the handler of the public listener.
type Proxy struct {
	mode        config.Mode
	pairing     config.Pairing
	upstream    *url.URL
	upstreamKey string
	apiKeys     [][sha256.Size]byte
	sendID      bool
	timeout     time.Duration
	keepalive   time.Duration
	maxBody     int64
	bodyIdle    time.Duration
	pin         bool
	predictive  bool
	fraction    float64 // of the window at which compaction fires, 0 for auto
	imageTokens int
	perModel    []config.Model
	summary     config.SummaryConfig
	tokens      int // at which compaction fires, 0 for the fraction

	transport http.RoundTripper
	tracker   Tracker
	counter   Counter
	generator Generator
	flights   *flights
	settings  compaction.Settings
	index     *conversation.Index
	memo      *transcript.Memo
	metrics   *metrics.Metrics
	log       *zap.Logger
	stdlog    *log.Logger
	pool      *pool
	models    models
	pass      *httputil.ReverseProxy
	handler   http.Handler
}

// memoBytes bounds what is remembered of messages, twice over: enough for some
// 100,000 of them.
const memoBytes = 64 << 20

// New returns a proxy. It starts nothing by itself; Close ends what its requests
// have started.
func New(o Options) *Proxy {
	p := &Proxy{
		mode:        o.Config.Compaction.Mode,
		pairing:     o.Config.Pairing,
		upstream:    o.Upstream,
		upstreamKey: o.Config.Upstream.APIKey.Reveal(),
		sendID:      o.Config.Upstream.SendConversation,
		timeout:     o.Config.Upstream.Timeout,
		keepalive:   o.Config.Keepalive,
		maxBody:     int64(o.Config.Limits.Body),
		bodyIdle:    o.BodyIdle,
		transport:   o.Transport,
		tracker:     o.Tracker,
		counter:     o.Counter,
		generator:   o.Generator,
		flights:     newFlights(),
		summary:     o.Config.Compaction.Summary,
		pin:         o.Config.Pin,
		predictive:  o.Config.Compaction.Predictive,
		fraction:    o.Config.Compaction.Threshold.Value,
		imageTokens: o.Config.ImageTokens,
		perModel:    o.Config.Models,
		tokens:      o.Config.Compaction.AtTokens,
		settings:    o.Settings,
		index:       o.Index,
		memo:        transcript.NewMemo(memoBytes),
		metrics:     o.Metrics,
		log:         o.Log,
		pool:        newPool(),
	}
	if p.bodyIdle == 0 {
		p.bodyIdle = time.Minute
	}
	for _, key := range o.Config.APIKeys {
		p.apiKeys = append(p.apiKeys, sha256.Sum256([]byte(key.Reveal())))
	}
	p.stdlog = quietLog(p.log)
	p.pass = p.passthrough()
	p.handler = p.routes()
	return p
}

// chatRoutes are the paths of chat requests.
var chatRoutes = []string{"/v1/chat/completions", "/chat/completions"}

func (p *Proxy) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(p.recorded, p.authorized)
	pass := func(w http.ResponseWriter, r *http.Request) { p.passOn(plainWriter{w}, r) }
	for _, route := range chatRoutes {
		r.Post(route, p.chat)
	}
	r.NotFound(pass)
	r.MethodNotAllowed(pass)
	return r
}

// Close ends the compactions that nobody waits for any more. The requests must be
// over.
func (p *Proxy) Close() { p.flights.close() }

func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.handler.ServeHTTP(w, r) }

// The headers of the outside. None of the request's is forwarded.
const (
	headerMode         = "X-Compactproxy-Mode"
	headerCompact      = "X-Compactproxy-Compact"
	headerSession      = "X-Compactproxy-Session"
	headerConversation = "X-Compactproxy-Conversation"
	headerAction       = "X-Compactproxy-Action"
	headerTokens       = "X-Compactproxy-Tokens"
	headerWarning      = "X-Compactproxy-Warning"
)

var ownRequestHeaders = []string{headerMode, headerCompact, headerSession}

// authorized checks the client's key on every route where keys are configured.
// A browser's preflight carries no key and reveals nothing; the server answers
// it without one as well.
func (p *Proxy) authorized(next http.Handler) http.Handler {
	if len(p.apiKeys) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isPreflight(r) && !p.knows(r.Header) {
			recordOf(r.Context()).reason = "invalid_api_key"
			(&failure{
				Status: http.StatusUnauthorized, Type: "authentication_error", Code: "invalid_api_key",
				Message: "this proxy wants one of the keys in api_keys, as \"Authorization: Bearer KEY\" or \"X-Api-Key: KEY\"",
			}).write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""
}

// knows compares in constant time: hashes of equal length, every key looked at.
func (p *Proxy) knows(h http.Header) bool {
	found := 0
	for _, presented := range presentedKeys(h) {
		sum := sha256.Sum256([]byte(presented))
		for i := range p.apiKeys {
			found |= subtle.ConstantTimeCompare(sum[:], p.apiKeys[i][:])
		}
	}
	return found == 1
}

func presentedKeys(h http.Header) []string {
	var keys []string
	if scheme, key, ok := strings.Cut(h.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "bearer") {
		keys = append(keys, strings.TrimSpace(key))
	}
	if key := h.Get("X-Api-Key"); key != "" {
		keys = append(keys, key)
	}
	return keys
}

// modeOf is the mode of one request: its header's, else the configuration's.
func (p *Proxy) modeOf(h http.Header) config.Mode {
	switch mode := config.Mode(strings.ToLower(h.Get(headerMode))); mode {
	case config.ModeOn, config.ModeObserve, config.ModeOff:
		return mode
	}
	return p.mode
}

// atTokens is the threshold in tokens that the user set for a model, 0 for none.
func (p *Proxy) atTokens(model string) int {
	for _, m := range p.perModel {
		if m.Name == model && m.AtTokens > 0 {
			return m.AtTokens
		}
	}
	return p.tokens
}
