package proxy

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// guard protects what shows transcripts: a token where one is set, and against
// pages of other sites that a browser on this machine has open. Such a page can
// send requests here, under a name of its own (DNS rebinding) or across origins.
type guard struct {
	token [sha256.Size]byte
	want  bool
	host  string // of the admin address, where it is a name
}

func newGuard(token, address string) *guard {
	g := &guard{token: sha256.Sum256([]byte(token)), want: token != ""}
	if host, _, err := net.SplitHostPort(address); err == nil {
		g.host = strings.ToLower(host)
	}
	return g
}

func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := g.refuses(r); f != nil {
			f.write(w)
			return
		}
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

func (g *guard) refuses(r *http.Request) *failure {
	site := r.Header.Get("Sec-Fetch-Site") // "none" is an address that the user typed
	if origin := r.Header.Get("Origin"); origin != "" && !sameOrigin(origin, r.Host) || site != "" && site != "same-origin" && site != "none" {
		return &failure{Status: http.StatusForbidden, Type: "permission_error", Code: "foreign_origin",
			Message: "this address does not answer pages of other sites"}
	}
	if g.want {
		if !g.presents(r) {
			return &failure{Status: http.StatusUnauthorized, Type: "authentication_error", Code: "invalid_api_key",
				Message: "this address wants the admin_token, as \"Authorization: Bearer TOKEN\""}
		}
		return nil // whoever has the token may use any name for this host
	}
	if !g.knows(r.Host) {
		return &failure{Status: http.StatusForbidden, Type: "permission_error", Code: "foreign_host",
			Message: "this address is not known by that name: use its number or localhost, or set admin_token"}
	}
	return nil
}

func (g *guard) presents(r *http.Request) bool {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return ok && strings.EqualFold(scheme, "bearer") && subtle.ConstantTimeCompare(sum[:], g.token[:]) == 1
}

// knows accepts hosts that no foreign name can stand for: numbers and localhost,
// and the name that the user gave the address.
func (g *guard) knows(hostport string) bool {
	host := hostport
	if h, port, err := net.SplitHostPort(hostport); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return false
		}
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	return net.ParseIP(host) != nil || host == "localhost" || strings.HasSuffix(host, ".localhost") || host != "" && host == g.host
}

func sameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, host)
}
