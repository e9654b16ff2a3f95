package config

import (
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// Loopback says whether a listener on addr (host:port) can be reached from this machine only. A host name other
// than localhost counts as reachable from elsewhere: what it resolves to is not known here.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && loopbackHost(host)
}

func loopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// hostName is what a host may look like that is not an IP address.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$`)

// checkAddress says what is wrong with a listening address; port 0 lets the system choose one.
func checkAddress(key, addr string) *Problem {
	wrong := func(text, fix string) *Problem { return &Problem{Key: key, Text: text, Got: quote(addr), Fix: fix} }
	const example = "write it like 127.0.0.1:8090, or :8090 for every interface"
	if addr == "" {
		return wrong("must not be empty", example)
	}
	if strings.Contains(addr, "://") {
		return wrong("is a URL, not an address", "leave out the scheme and the path, as in 127.0.0.1:8090")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return wrong("is not host:port", example)
	}
	if _, err := netip.ParseAddr(host); host != "" && err != nil && !hostName.MatchString(host) {
		return wrong("has a host that is neither a name nor an IP address", example)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 || port[0] == '+' || port[0] == '-' {
		return wrong("needs a port from 0 to 65535", example)
	}
	return nil
}

// sameListener says whether two listening addresses cannot be opened side by side.
func sameListener(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || !samePort(portA, portB) {
		return false
	}
	return canonical(hostA) == canonical(hostB) || wildcard(hostA) || wildcard(hostB)
}

// reaches says whether the server's URL leads back to a listening address of our own.
func reaches(upstream *url.URL, addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	target := upstream.Port()
	if target == "" {
		target = map[string]string{"http": "80", "https": "443"}[upstream.Scheme]
	}
	if !samePort(target, port) {
		return false
	}
	to := upstream.Hostname()
	return canonical(to) == canonical(host) || wildcard(host) && (loopbackHost(to) || wildcard(to))
}

func samePort(a, b string) bool {
	x, errX := strconv.Atoi(a)
	y, errY := strconv.Atoi(b)
	return errX == nil && errY == nil && x == y && x != 0
}

func wildcard(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

func canonical(host string) string {
	if wildcard(host) {
		return ""
	}
	host = strings.ToLower(host)
	if host == "localhost" {
		return "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	return host
}
