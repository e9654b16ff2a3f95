package llamasim

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Server is a simulated llama-server.
type Server struct {
	options Options
	routes  map[string]func(*answer) error
	started time.Time

	loading atomic.Bool
	window  atomic.Int64
	numbers atomic.Int64 // generations so far

	records records
	cache   promptCache
	slots   *slots
	pool    *pool
	totals  totals

	mu     sync.Mutex
	random *rand.Rand
}

// New returns a server that is ready to serve.
func New(options Options) *Server {
	o := options.withDefaults()
	seed := o.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	s := &Server{
		options: o,
		started: o.Now(),
		records: records{keep: o.KeepRequests},
		cache:   promptCache{limit: o.CachedPrompts},
		slots:   newSlots(o.Slots),
		pool:    newPool(o.UnifiedPool),
		random:  rand.New(rand.NewPCG(seed, seed)),
	}
	s.loading.Store(o.Loading)
	s.window.Store(int64(o.Window))
	s.routes = map[string]func(*answer) error{
		"GET /":            s.page,
		"GET /index.html":  s.page,
		"GET /health":      s.health,
		"GET /v1/health":   s.health,
		"GET /props":       s.props,
		"GET /slots":       s.slotList,
		"GET /metrics":     s.metrics,
		"GET /v1/models":   s.models,
		"GET /models":      s.models,
		"POST /tokenize":   s.tokenize,
		"POST /detokenize": s.detokenize,

		"POST /apply-template":                   s.applyTemplate,
		"POST /v1/chat/completions":              s.chat,
		"POST /chat/completions":                 s.chat,
		"POST /v1/chat/completions/input_tokens": s.inputTokens,
		"POST /v1/completions":                   s.completions,
		"POST /v1/embeddings":                    func(*answer) error { return errEmbeddings },
		"POST /v1/rerank":                        func(*answer) error { return errReranking },
	}
	return s
}

// SetLoading makes the server answer everything with 503 "Loading model", or
// stop doing so.
func (s *Server) SetLoading(loading bool) { s.loading.Store(loading) }

// SetWindow changes the context size of a slot, as a restart with another -c
// would. The prompt cache stays.
func (s *Server) SetWindow(tokens int) { s.window.Store(int64(tokens)) }

// ForgetCache empties the prompt cache, as a restart would.
func (s *Server) ForgetCache() { s.cache.forget() }

// Requests are the requests received, oldest first, those still being answered
// included.
func (s *Server) Requests() []Recorded { return s.records.all() }

// ForgetRequests empties Requests.
func (s *Server) ForgetRequests() { s.records.forget() }

// PromptTokens is the exact prompt size of a chat completion body, or the
// error that it would be refused with. It leaves no trace.
func (s *Server) PromptTokens(body []byte) (int, error) {
	_, prompt, err := s.render(body)
	if err != nil {
		return 0, err
	}
	return CountTokens(prompt), nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	rec := &Recorded{Method: r.Method, RequestURI: r.RequestURI, Host: r.Host, Header: r.Header, Body: body}
	s.records.add(rec)
	a := &answer{w: w, r: r, records: &s.records, rec: rec}
	if s.options.Finished != nil {
		defer func() { s.options.Finished(s.records.copyOf(rec)) }()
	}

	h := w.Header()
	h["Date"] = nil // the real server sends none
	h.Set("Server", "llama.cpp")
	h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
	var refused *refusal
	switch err := s.route(a); {
	case errors.As(err, &refused):
		a.refuse(refused)
	case err != nil:
		// There is nobody left to answer.
		s.records.update(func() { rec.Canceled = true })
	}
}

// route goes through the gates in the real server's order, then answers.
func (s *Server) route(a *answer) error {
	r := a.r
	if r.Method == http.MethodOptions {
		preflight(a)
		return nil
	}
	if s.loading.Load() {
		return errLoading
	}
	if !s.admits(r) {
		return errKey
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	handler, ok := s.routes[method+" "+r.URL.Path]
	if !ok {
		return errNotFound
	}
	return handler(a)
}

// preflight answers a browser that asks what it may do: anything.
func preflight(a *answer) {
	h := a.w.Header()
	h.Set("Access-Control-Allow-Credentials", "true")
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
	h.Set("Access-Control-Allow-Headers", "*")
	a.send(http.StatusOK, "text/html", nil)
}

// admits reports whether a request needs no key or has the right one.
func (s *Server) admits(r *http.Request) bool {
	if s.options.APIKey == "" {
		return true
	}
	keys := strings.Split(s.options.APIKey, ",")
	switch r.URL.Path {
	case "/health", "/v1/health", "/", "/index.html":
		return true
	}
	bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && slices.Contains(keys, bearer) || slices.Contains(keys, r.Header.Get("X-Api-Key"))
}

const idAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// newID is 32 random letters and digits.
func (s *Server) newID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := make([]byte, 32)
	for i := range id {
		id[i] = idAlphabet[s.random.IntN(len(idAlphabet))]
	}
	return string(id)
}

func (s *Server) newIdentity() identity {
	return identity{id: "chatcmpl-" + s.newID(), created: s.options.Now().Unix(), model: s.options.Model}
}
