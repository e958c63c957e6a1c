package httpapi

import (
	"net/http"
	"net/url"
	"strings"
)

// canonical reports whether http.ServeMux takes the path as it is. Others it
// would answer with a redirect, to another resource than was asked for.
func canonical(path string) bool {
	return strings.HasPrefix(path, "/") && !strings.Contains(path, "//") &&
		!strings.Contains(path, "/./") && !strings.Contains(path, "/../") &&
		!strings.HasSuffix(path, "/.") && !strings.HasSuffix(path, "/..")
}

// An id may be a single slash, %2F in a path, but http.ServeMux takes a segment
// that is nothing else for the end of the path. Such a segment is doubled before
// routing, and the value made single again behind it.
func doubleLoneSlash(path string) string {
	if !strings.Contains(path, "/%2") {
		return path
	}
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		if segment == "%2F" || segment == "%2f" {
			segments[i] = "%2F%2F"
		}
	}
	return strings.Join(segments, "/")
}

// withPath is the URL with another path, which is given percent-encoded.
func withPath(u *url.URL, escaped string) *url.URL {
	changed := *u
	changed.RawPath = escaped
	changed.Path, _ = url.PathUnescape(escaped) // it was part of a URL that has been parsed
	return &changed
}

// singleLoneSlash restores the value of the wildcard, of which a route has one.
func singleLoneSlash(r *http.Request) {
	for _, name := range []string{"orderId", "item", "code", "token"} {
		if r.PathValue(name) == "//" {
			r.SetPathValue(name, "/")
		}
	}
}

// unknown answers whatever no route matches.
func (s *server) unknown(_ http.ResponseWriter, r *http.Request) error {
	if !canonical(r.URL.EscapedPath()) {
		return newProblem("unknown_route", "")
	}
	var allowed []string
	probe := *r
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		probe.Method = method
		if _, pattern := s.mux.Handler(&probe); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		return newProblem("unknown_route", "")
	}
	p := newProblem("method_not_allowed", "")
	p.allow = strings.Join(allowed, ", ")
	return p
}
