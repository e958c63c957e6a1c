package httpapi

import (
	"net/http"
	"strings"
)

// canonical reports whether http.ServeMux takes the path as it is. Others it
// would answer with a redirect, to another resource than was asked for.
func canonical(path string) bool {
	return strings.HasPrefix(path, "/") && !strings.Contains(path, "//") &&
		!strings.Contains(path, "/./") && !strings.Contains(path, "/../") &&
		!strings.HasSuffix(path, "/.") && !strings.HasSuffix(path, "/..")
}

// unknown answers whatever no route matches.
func (s *server) unknown(w http.ResponseWriter, r *http.Request) error {
	if !canonical(r.URL.EscapedPath()) {
		return newProblem("unknown_route", "")
	}
	var allowed []string
	probe := *r
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		probe.Method = method
		if _, pattern := recordOf(w).mux.Handler(&probe); pattern != "/" {
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
