package proxy

import (
	"encoding/json"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Readiness is the body of /readyz.
type Readiness struct {
	Ready bool `json:"ready"`
	// Server is "ready", or why it is not: "down", "loading", …
	Server string `json:"server"`
	// Draining is true once a signal has asked the proxy to stop.
	Draining bool `json:"draining"`
}

// Admin is the handler of the admin listener: metrics and health. Nothing of a
// conversation is shown here yet; what shows one will check Host, Origin and
// token first.
func Admin(gatherer prometheus.Gatherer, ready func(*http.Request) Readiness) http.Handler {
	r := chi.NewRouter()
	r.Method(http.MethodGet, "/metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	r.Get("/livez", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	r.Get("/readyz", func(w http.ResponseWriter, req *http.Request) {
		state := ready(req)
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		if !state.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(state)
	})
	return r
}
