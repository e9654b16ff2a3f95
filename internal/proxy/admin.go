package proxy

import (
	"encoding/json"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/compactproxy/compactproxy/internal/conversation"
)

// Readiness is the body of /readyz.
type Readiness struct {
	Ready bool `json:"ready"`
	// Server is "ready", or why it is not: "down", "loading", …
	Server string `json:"server"`
	// Store is "open", "memory" where nothing is kept on disk, or "degraded: …" while
	// the proxy serves on from memory because the store fails.
	Store string `json:"store"`
	// Draining is true once a signal has asked the proxy to stop.
	Draining bool `json:"draining"`
}

// AdminOptions are what the admin listener shows.
type AdminOptions struct {
	Metrics prometheus.Gatherer
	Ready   func(*http.Request) Readiness
	Index   *conversation.Index
	Archive Archive // nil where there is none
	Token   string  // "" asks for none
	Address string  // of the listener, as configured
	Log     *zap.Logger
}

// Admin is the handler of the admin listener: metrics and health for everyone,
// so that Prometheus may use any name for this host, and the API behind a guard,
// since it shows transcripts.
func Admin(o AdminOptions) http.Handler {
	r := chi.NewRouter()
	r.Use(middleware.GetHead)
	r.Method(http.MethodGet, "/metrics", promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	r.Get("/livez", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	r.Get("/readyz", func(w http.ResponseWriter, req *http.Request) {
		state := o.Ready(req)
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		if !state.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(state)
	})
	r.Group(func(r chi.Router) {
		r.Use(newGuard(o.Token, o.Address).wrap)
		r.Route("/api/v1", func(r chi.Router) {
			if o.Archive == nil {
				r.NotFound(func(w http.ResponseWriter, _ *http.Request) {
					notFound("there is no store: it could not be opened, the log says why").write(w)
				})
				return
			}
			(&api{archive: o.Archive, index: o.Index, log: o.Log}).routes(r)
		})
	})
	return r
}
