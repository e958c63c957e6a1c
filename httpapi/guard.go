package httpapi

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"pawl/access"
)

// guarded identifies who sends a request, and refuses what he may not do, before anything of it is read. It panics for
// a route that has no rule.
func (s *server) guarded(pattern string, next http.HandlerFunc) http.HandlerFunc {
	rule, known := rules[s.operationOf(pattern)]
	if !known {
		panic("httpapi: no rule says who may use " + pattern)
	}
	if rule.class == alwaysOpen {
		return next
	}
	return s.answered(func(w http.ResponseWriter, r *http.Request) error {
		p, err := s.access.Identify(r.Context(), callerOf(r))
		if err != nil {
			return err
		}
		if err := rule.allows(p); err != nil {
			return err
		}
		if rec, ok := w.(*Recorder); ok {
			rec.principal = p
		}
		next(w, r)
		return nil
	})
}

// operationOf is the id of the operation at a pattern, or for what is none the pattern.
func (s *server) operationOf(pattern string) string {
	for _, op := range s.documented {
		if op.Method+" "+op.Path == pattern {
			return op.OperationID
		}
	}
	return pattern
}

// principalOf is who sends the request that is answered with w. It is never nil.
func principalOf(w http.ResponseWriter) *access.Principal {
	rec, ok := w.(*Recorder)
	if !ok {
		return access.Nobody
	}
	return cmp.Or(rec.principal, access.Nobody)
}

// callerOf is what is known of who sends a request.
func callerOf(r *http.Request) access.Request {
	q := access.Request{Authorization: r.Header.Get("Authorization")}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		q.Address, _ = netip.ParseAddr(host)
		q.Address = q.Address.Unmap()
	}
	for name := range r.Header {
		q.Forwarded = q.Forwarded || name == "Forwarded" || strings.HasPrefix(name, "X-Forwarded-")
	}
	q.Local = q.Address.IsLoopback() && !q.Forwarded
	return q
}

// forbidden is the error of a principal without the roles that an operation needs.
type forbidden struct {
	principal *access.Principal
	roles     access.Roles
}

func (f *forbidden) Error() string {
	return fmt.Sprintf("This needs the role %s; %s has %s.", listed(f.roles, " or "), f.principal.Name, cmp.Or(listed(f.principal.Roles, ", "), "none"))
}

func listed(roles access.Roles, separator string) string {
	var names []string
	for _, role := range roles {
		names = append(names, string(role))
	}
	return strings.Join(names, separator)
}

// accessProblems are the problems that an operation has because not everybody may do it.
func accessProblems(operation string) []problemCode {
	if rules[operation].class == alwaysOpen {
		return nil
	}
	return []problemCode{"unauthenticated", "forbidden"}
}
