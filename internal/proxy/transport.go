package proxy

import (
	"net"
	"net/http"
	"time"

	"github.com/compactproxy/compactproxy/internal/compaction"
	"github.com/compactproxy/compactproxy/internal/metrics"
	"github.com/compactproxy/compactproxy/internal/pairing"
)

// NewTransport returns the transport for the server: no deadline on an answer,
// since a prefill takes what it takes, and no compression of its own, so that
// what a client asked for is what the server is asked for.
func NewTransport() *http.Transport {
	return &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		DisableCompression:    true,
		MaxIdleConns:          256,
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       2 * time.Second, // llama-server's is 5
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
	}
}

// MetricLabels are the label values that the packages below own.
func MetricLabels() metrics.Labels {
	var l metrics.Labels
	for _, pass := range compaction.Passes {
		l.Passes = append(l.Passes, string(pass))
	}
	for _, kind := range pairing.Kinds {
		l.ViolationKinds = append(l.ViolationKinds, string(kind))
	}
	return l
}
