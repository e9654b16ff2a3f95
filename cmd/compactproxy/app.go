package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/compactproxy/compactproxy/internal/agents"
	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/config"
	"github.com/compactproxy/compactproxy/internal/conversation"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/proxy"
	"github.com/compactproxy/compactproxy/internal/store"
	"github.com/compactproxy/compactproxy/internal/upstream"
)

// app is the whole program: both listeners, the proxy, and the watch on the
// server. serve runs it until a signal, the demo until its session is over.
type app struct {
	cfg      config.Config
	log      *zap.Logger
	root     *url.URL
	prober   *upstream.Prober
	tracker  *upstream.Tracker
	counter  *upstream.Counter
	proxy    *proxy.Proxy
	store    *store.Store // nil where it could not be opened
	index    *conversation.Index
	metrics  *metrics.Metrics
	broken   error         // why there is no store
	keeper   chan struct{} // closed when the index has stopped storing
	stop     context.CancelFunc
	public   net.Listener
	admin    net.Listener
	servers  []*http.Server
	draining chan struct{}
	failed   chan error
}

// newApp opens both listeners and starts serving. The caller must Close it.
func newApp(cfg config.Config, log *zap.Logger) (*app, error) {
	root, err := cfg.Upstream.Root()
	if err != nil {
		return nil, err
	}
	a := &app{cfg: cfg, log: log, root: root, draining: make(chan struct{}), failed: make(chan error, 2)}
	if a.public, err = listen("listen", cfg.Listen); err != nil {
		return nil, err
	}
	if a.admin, err = listen("admin", cfg.Admin); err != nil {
		a.public.Close()
		return nil, err
	}

	registry := prometheus.NewRegistry()
	build := thisBuild()
	a.metrics = metrics.New(registry, build.Version, build.Commit, proxy.MetricLabels())
	if err := a.openState(); err != nil {
		a.public.Close()
		a.admin.Close()
		return nil, err
	}
	transport := proxy.NewTransport()
	a.prober = newProber(cfg, root, transport)
	a.counter = newCounter(cfg, root, transport)
	a.tracker = newTracker(cfg, a.prober, a.counter, log, a.metrics)

	a.proxy = proxy.New(proxy.Options{
		Config:    cfg,
		Upstream:  root,
		Transport: transport,
		Tracker:   a.tracker,
		Counter:   a.countsTokens(),
		Generator: upstream.Generator{Server: a.counter},
		Settings:  passSettings(cfg.Compaction),
		Index:     a.index,
		Metrics:   a.metrics,
		Log:       log,
	})
	admin := proxy.Admin(proxy.AdminOptions{
		Metrics: registry, Ready: a.ready, Index: a.index, Archive: a.archive(),
		Token: cfg.AdminToken.Reveal(), Address: cfg.Admin, Log: log,
	})
	for _, listener := range []struct {
		net.Listener
		http.Handler
	}{ // in the order in which they are drained: health is told to the end
		{a.public, a.proxy},
		{a.admin, admin},
	} {
		server := proxy.NewServer(listener.Handler, log)
		a.servers = append(a.servers, server)
		go func() { // ends with Shutdown or Close
			if err := server.Serve(listener.Listener); !errors.Is(err, http.ErrServerClosed) {
				a.failed <- err
			}
		}()
	}
	return a, nil
}

// listen names the setting where the address cannot be had.
func listen(key, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return nil, fmt.Errorf("cannot listen on %s: %w; stop what uses it, or set %s to another address", address, err, key)
	}
	return l, nil
}

// passSettings are the parts of the configuration that the passes read.
func passSettings(c config.Compaction) compaction.Settings {
	s := compaction.DefaultSettings()
	s.KeepRecent, s.TailMin, s.TailMax, s.ThinChars = c.KeepRecent, c.TailMin, c.TailMax, c.ThinChars
	s.CarriedState = c.CarriedState
	s.Summary = compaction.SummarySettings{
		Enabled: c.Summary.Enabled, Style: compaction.Style(c.Summary.Style), Validate: c.Summary.Validate,
		Target: c.Summary.TargetTokens, Max: c.Summary.MaxTokens,
	}
	switch {
	case c.Settle.Explicit:
		s.Settle = c.Settle.Value
	case c.Summary.Enabled:
		s.Settle = -1 // by price
	}
	var tools []agents.Tool
	for _, t := range c.Tools {
		tools = append(tools, toolRow(t))
	}
	s.Tools = s.Tools.Extend(tools)
	return s
}

// toolRow translates a tool of the configuration into a row of the table.
func toolRow(t config.Tool) agents.Tool {
	row := agents.Tool{Name: t.Name, Kind: agents.Kind(t.Kind), Path: t.Path, Range: t.Range, Errors: t.Errors, Refusals: t.Refusals}
	if t.Command != "" {
		row.Command = []string{t.Command}
	}
	if t.Kind == config.ToolUntrusted {
		row.Kind, row.Untrusted = "", true
	}
	return row
}

// countsTokens is nil, and not a nil counter, where the server is not to be asked.
func (a *app) countsTokens() proxy.Counter {
	if a.cfg.Compaction.ExactCount == config.ExactCountNever {
		return nil
	}
	return a.counter
}

// base is what agents are pointed at.
func (a *app) base() string {
	address := a.public.Addr().String()
	if host, port, err := net.SplitHostPort(address); err == nil && net.ParseIP(host).IsUnspecified() {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	return "http://" + address + "/v1"
}

// ready is the state that /readyz reports: the server answers, and nobody has
// asked us to stop.
func (a *app) ready(r *http.Request) proxy.Readiness {
	status := a.prober.Probe(r.Context())
	state := proxy.Readiness{Server: status.State.String(), Store: a.storeState()}
	select {
	case <-a.draining:
		state.Draining = true
	default:
	}
	state.Ready = status.State == upstream.Ready && !state.Draining
	return state
}

// Drain stops accepting requests and lets running ones finish until ctx ends.
func (a *app) Drain(ctx context.Context) {
	close(a.draining)
	for _, server := range a.servers {
		if err := server.Shutdown(ctx); err != nil {
			a.log.Warn("streams were still running at the deadline (shutdown) and were cut")
		}
	}
}

// Close ends everything at once.
func (a *app) Close() {
	for _, server := range a.servers {
		server.Close()
	}
	a.proxy.Close()
	a.tracker.Close()
	a.closeState()
}
