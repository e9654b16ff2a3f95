package proxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// fixedWindow is a tracker that was told the window, or learns it.
type fixedWindow struct {
	mu     sync.Mutex
	tokens int
}

func (f *fixedWindow) Window(string) upstream.Window {
	f.mu.Lock()
	defer f.mu.Unlock()
	return upstream.Window{Tokens: f.tokens}
}

func (f *fixedWindow) Learn(_ string, tokens int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tokens = tokens
	return true
}

func (f *fixedWindow) Touch() {}

func (f *fixedWindow) LlamaServer() bool { return true }

func (f *fixedWindow) Invalidate(string) {}

// rig is a proxy in front of an upstream, with everything that a test may look
// at.
type rig struct {
	*Proxy
	URL      string // of the proxy
	Upstream string
	Logs     *observer.ObservedLogs
	Registry *prometheus.Registry
}

type rigOption func(*Options)

func withConfig(change func(*config.Config)) rigOption {
	return func(o *Options) { change(&o.Config) }
}

// counting lets the proxy ask the server how many tokens a request has.
func counting(o *Options) {
	o.Counter = &upstream.Counter{Client: &http.Client{Transport: o.Transport}, BaseURL: o.Upstream.String()}
}

// withWindow lets the proxy know the window before the first refusal.
func withWindow(tokens int) rigOption {
	return func(o *Options) { o.Tracker = &fixedWindow{tokens: tokens} }
}

func start(t testing.TB, upstream http.Handler, options ...rigOption) *rig {
	t.Helper()
	server := httptest.NewServer(upstream)
	t.Cleanup(server.Close)
	return startBefore(t, server.URL, options...)
}

// startBefore puts a proxy before a server that runs already.
func startBefore(t testing.TB, address string, options ...rigOption) *rig {
	t.Helper()
	root, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.DebugLevel)
	r := &rig{Upstream: address, Logs: logs, Registry: prometheus.NewRegistry()}
	transport := NewTransport()
	t.Cleanup(transport.CloseIdleConnections)
	o := Options{
		Config:    config.Default(),
		Upstream:  root,
		Transport: transport,
		Tracker:   &fixedWindow{},
		Settings:  compaction.DefaultSettings(),
		Index:     newIndex(t, conversation.Options{Conversations: 1000, Bytes: 64 << 20}),
		Metrics:   metrics.New(r.Registry, "test", "none", MetricLabels()),
		Log:       zap.New(core),
	}
	for _, option := range options {
		option(&o)
	}
	r.Proxy = New(o)
	front := httptest.NewUnstartedServer(r.Proxy)
	asServed(front.Config, o.Log)
	front.Start()
	t.Cleanup(func() {
		front.Close() // waits for every request
		r.Close()
		r.checkIdle(t)
	})
	r.URL = front.URL
	return r
}

func newIndex(t testing.TB, o conversation.Options) *conversation.Index {
	t.Helper()
	x, err := conversation.NewIndex(o)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// asServed gives a test's server the settings that the program's has.
func asServed(server *http.Server, log *zap.Logger) {
	server.ReadHeaderTimeout = 30 * time.Second
	server.IdleTimeout = 2 * time.Minute
	server.DisableGeneralOptionsHandler = true
	server.ErrorLog, _ = zap.NewStdLogAt(log, zap.DebugLevel)
}

// checkIdle fails the test where a request that is over left something behind
// in the proxy.
func (r *rig) checkIdle(t testing.TB) {
	t.Helper()
	// A server does not wait for a connection that was upgraded.
	for limit := time.Now().Add(10 * time.Second); testutil.ToFloat64(r.metrics.Inflight) != 0; runtime.Gosched() {
		if time.Now().After(limit) {
			t.Errorf("%v requests are counted as in flight after the last one", testutil.ToFloat64(r.metrics.Inflight))
			break
		}
	}
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	if len(r.pool.running) != 0 || len(r.pool.turn) != 0 {
		t.Errorf("the pool still holds %d requests and %d turns after the last one", len(r.pool.running), len(r.pool.turn))
	}
}

// TestMain fails the package where a goroutine outlives its test.
func TestMain(m *testing.M) { goleak.VerifyTestMain(run{m}) }

type run struct{ *testing.M }

func (r run) Run() int {
	code := r.M.Run()
	http.DefaultClient.CloseIdleConnections()
	return code
}

// post sends a chat body and returns the answer whole.
func (r *rig) post(t testing.TB, body []byte, header ...string) (*http.Response, []byte) {
	t.Helper()
	return post(t, r.URL+"/v1/chat/completions", body, header...)
}

func post(t testing.TB, address string, body []byte, header ...string) (*http.Response, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true // a llama-server behind this address may drop a used connection
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("read the answer: %v", err)
	}
	return res, answer
}

func hasAction(res *http.Response, action string) bool {
	for _, a := range strings.Split(res.Header.Get(headerAction), ", ") {
		if a == action {
			return true
		}
	}
	return false
}
