package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
)

// passthrough forwards everything that is not a chat request in mode on or
// observe: same request line, header fields, body and trailers, both ways.
func (p *Proxy) passthrough() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:       p.rewrite,
		Transport:     p.transport,
		FlushInterval: -1, // every write at once: streams come through as they are
		ErrorHandler:  p.failed,
		ErrorLog:      p.stdlog,
	}
}

// passOn forwards a request whose body is still on its way. Without full duplex
// net/http would take the rest of that body away from the transport as soon as
// the answer begins, and the transport would cut the answer.
func (p *Proxy) passOn(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).EnableFullDuplex() // not for HTTP/2, which is full duplex
	p.pass.ServeHTTP(w, r)
}

// rewrite points a request at the server.
func (p *Proxy) rewrite(pr *httputil.ProxyRequest) {
	out := pr.Out
	prefix := strings.TrimRight(p.upstream.EscapedPath(), "/")
	if prefix == "" {
		out.URL.Scheme, out.URL.Host = p.upstream.Scheme, p.upstream.Host
	} else {
		pr.SetURL(p.upstream)
	}
	// net/url would escape what the client did not.
	if raw, _, _ := strings.Cut(pr.In.RequestURI, "?"); strings.HasPrefix(raw, "/") && !strings.HasPrefix(prefix+raw, "//") && prefix+raw != out.URL.EscapedPath() {
		out.URL.Opaque = prefix + raw
	}
	out.Host = ""
	// ReverseProxy drops what it cannot parse from a query; a proxy that is not
	// there would not.
	out.URL.RawQuery, out.URL.ForceQuery = pr.In.URL.RawQuery, pr.In.URL.ForceQuery
	// The values of request trailers arrive with the end of the body, in the
	// inbound request's map.
	out.Trailer = pr.In.Trailer
	// ReverseProxy also strips these, for proxies that set them anew.
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := pr.In.Header[name]; ok {
			out.Header[name] = v
		}
	}
	for _, name := range ownRequestHeaders {
		out.Header.Del(name)
	}
	if !isPreflight(pr.In) { // it came without a key, and goes on without one
		p.credentials(out.Header)
	}
}

// credentials replaces consumed client keys, and adds the server's key where
// the client presents none.
func (p *Proxy) credentials(h http.Header) {
	if len(p.apiKeys) > 0 {
		h.Del("Authorization")
		h.Del("X-Api-Key")
	}
	if p.upstreamKey != "" && h.Get("Authorization") == "" && h.Get("X-Api-Key") == "" {
		h.Set("Authorization", "Bearer "+p.upstreamKey)
	}
}

// plainWriter keeps net/http from adding header fields that the server did not
// send: a Date, a sniffed content type. They are claimed at the last moment,
// since an interim answer clears the header map.
type plainWriter struct{ http.ResponseWriter }

func (w plainWriter) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		for _, name := range []string{"Date", "Content-Type"} {
			if _, ok := w.Header()[name]; !ok {
				w.Header()[name] = nil
			}
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController]: flushing, hijacking, deadlines.
func (w plainWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// failed answers for a server that gave no answer.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	rec := recordOf(r.Context())
	// net/http also ends the context where the client stalled; it still listens.
	var own *failure
	stalled := errors.As(err, &own) && own.Status == http.StatusRequestTimeout
	if r.Context().Err() != nil && !stalled {
		rec.reason = "client_gone"
		w.WriteHeader(statusClientGone) // nobody reads it; the log does
		return
	}
	f := p.failureOf(err)
	rec.reason = f.Code
	f.write(w)
}

// errUpstreamTimeout is the cause of a cancelled wait for the first byte.
var errUpstreamTimeout = errors.New("no first byte in time")

// failureOf says what went wrong with the server in the words of a person who
// can mend it. The underlying error may quote an answer, so only what is known
// to be harmless is shown.
func (p *Proxy) failureOf(err error) *failure {
	var own *failure
	switch {
	case errors.As(err, &own):
		return own
	case errors.Is(err, errUpstreamTimeout) || errors.Is(err, context.DeadlineExceeded):
		return &failure{
			Status: http.StatusGatewayTimeout, Type: serverError, Code: "upstream_timeout",
			Message: fmt.Sprintf("the server at %s sent no first byte within %s; raise upstream.timeout, or set it to 0 to wait as long as prefill takes", p.shownUpstream(), p.timeout),
		}
	}
	p.tracker.Invalidate("connection failed")
	why := "the connection broke before an answer came"
	var op *net.OpError
	var name *net.DNSError
	switch {
	case errors.As(err, &name):
		why = "there is no host of that name; correct upstream.url"
	case errors.As(err, &op) && op.Op == "dial":
		why = "it does not accept connections; start it, or set upstream.url"
	}
	return &failure{
		Status: http.StatusBadGateway, Type: serverError, Code: "upstream_unreachable",
		Message: fmt.Sprintf("no answer from the server at %s: %s", p.shownUpstream(), why),
	}
}

// shownUpstream is the server's address without what could be secret in it.
func (p *Proxy) shownUpstream() string {
	return (&url.URL{Scheme: p.upstream.Scheme, Host: p.upstream.Host, Path: p.upstream.Path}).String()
}
