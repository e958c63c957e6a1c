package httpapi

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// checked refuses a query string that says anything but what the route takes, once each, before
// the request is read: a mistyped dryRun would be done for real, a mistyped filter would list
// everything.
func (s *server) checked(pattern string, next http.HandlerFunc) http.HandlerFunc {
	known := s.queryParameters(pattern)
	return s.answered(func(w http.ResponseWriter, r *http.Request) error {
		if err := checkQuery(r.URL.RawQuery, known); err != nil {
			return err
		}
		next(w, r)
		return nil
	})
}

// queryParameters are those that the document has for a route.
func (s *server) queryParameters(pattern string) (names []string) {
	for _, parameter := range s.operationAt(pattern).Parameters {
		if parameter.In == "query" {
			names = append(names, parameter.Name)
		}
	}
	return names
}

func checkQuery(query string, known []string) error {
	if query == "" {
		return nil
	}
	given, err := url.ParseQuery(query)
	if err != nil {
		return newProblem("invalid_parameter", "The query string is not percent-encoded, or contains a semicolon.")
	}
	var faults []fieldError
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if code, detail := checkParameter(name, given[name], known); code != "" && len(faults) < maxFaults {
			faults = append(faults, fieldError{Parameter: shownName(name), Code: code, Detail: detail})
		}
	}
	if len(faults) > 0 {
		return newProblem("invalid_parameter", "", faults...)
	}
	return nil
}

// checkParameter returns a fault as code and detail.
func checkParameter(name string, values, known []string) (code, detail string) {
	switch {
	case !slices.Contains(known, name) && len(known) == 0:
		return "unknown_parameter", "unknown parameter; this route has none"
	case !slices.Contains(known, name):
		return "unknown_parameter", "unknown parameter; must be one of " + strings.Join(known, ", ")
	case len(values) > 1:
		return "repeated", "must be sent only once"
	case values[0] == "":
		return "empty", "must not be empty; omit it instead"
	}
	return "", ""
}

// shownName is the name of a parameter, unless it is longer than any of ours.
func shownName(name string) string {
	if len(name) > maxKey {
		return ""
	}
	return name
}
