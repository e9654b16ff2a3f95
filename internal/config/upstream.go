package config

import (
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// Root returns the server's root as a URL without a slash at the end: http://host/prefix for
// http://host/prefix/v1/. Paths of the API, /v1/... and the server's own, go behind it. Root returns an error where
// the URL breaks one of Validate's rules; for a loaded configuration it does not.
func (u Upstream) Root() (*url.URL, error) {
	root, problem := normalise(u.URL)
	if problem != nil {
		return nil, problem
	}
	return url.Parse(root)
}

// normalise returns the root of the server at raw.
func normalise(raw string) (string, *Problem) {
	wrong := func(text, fix string) (string, *Problem) {
		return "", &Problem{Key: "upstream.url", Text: text, Got: quote(maskURL(raw)), Fix: fix}
	}
	const example = "write it like http://127.0.0.1:8080"
	if raw == "" {
		return wrong("must not be empty", example)
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil && !strings.Contains(raw, "://"):
		return wrong("needs http:// or https:// at the start", example)
	case err != nil:
		return wrong("is not a URL", example)
	case u.Scheme != "http" && u.Scheme != "https":
		return wrong("needs http:// or https:// at the start", example)
	case u.Hostname() == "":
		return wrong("needs a host", example)
	case u.User != nil:
		return wrong("must not hold a user name or password", "put the server's key in upstream.api_key")
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(raw, "#"):
		return wrong("must not have a query or a fragment", "end it before the ? or #")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return wrong("has a port out of range", "use one from 1 to 65535")
		}
	}
	path := strings.TrimRight(u.EscapedPath(), "/")
	if i := endpoint.FindStringIndex(path); i != nil {
		return wrong("is an endpoint, not the server's root", "end it before "+path[i[0]:])
	}
	path = strings.TrimRight(strings.TrimSuffix(path, "/v1"), "/")
	u.Path, err = url.PathUnescape(path)
	if err != nil {
		return wrong("is not a URL", example)
	}
	u.RawPath = path
	return u.String(), nil
}

// endpoint matches paths that people copy from examples together with the address.
var endpoint = regexp.MustCompile(`(/v1)?/(chat/completions|completions|responses|messages|models|embeddings|health|props|slots)$`)

// maskURL hides what may be a user name, a password or a key in a URL, also in one that does not parse.
func maskURL(raw string) string {
	u, err := url.Parse(raw)
	if end := strings.LastIndexByte(raw, '@'); end >= 0 && (err != nil || u.Host == "" || u.User != nil) {
		start := 0
		if i := strings.Index(raw, "//"); i >= 0 && i+2 <= end {
			start = i + 2
		}
		raw = raw[:start] + "***" + raw[end:]
	}
	if i := strings.IndexAny(raw, "?#"); i >= 0 {
		raw = raw[:i+1] + "***"
	}
	return raw
}
