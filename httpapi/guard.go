package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/access"
	"pawl/internal/orders"
)

// guarded identifies who sends a request, and refuses what he may not do, before anything of it is read.
func (s *server) guarded(pattern string, next http.HandlerFunc) http.HandlerFunc {
	if s.refusedInQuarantine(pattern) {
		return s.answered(func(w http.ResponseWriter, _ *http.Request) error { return newProblem("quarantined", "") })
	}
	operation, rule := s.operationAt(pattern).OperationID, s.ruleAt(pattern)
	switch {
	case rule.class != alwaysOpen:
		return s.answered(func(w http.ResponseWriter, r *http.Request) error {
			p, err := s.identify(w, r)
			if err == nil {
				err = rule.allows(p)
			}
			if err != nil {
				s.logDenial(r, access.Denial{Actor: nameOf(p), Address: fromOf(w).address, Operation: operation}, err)
				return err
			}
			if err := s.withinLimits(w, p); err != nil {
				return err
			}
			next(w, r)
			return nil
		})
	case len(rule.roles) > 0:
		return func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), readLimit) // to find out who asks, and for the answer
			defer cancel()
			r = r.WithContext(ctx)
			_, _ = s.identify(w, r) // whoever it is may ask
			next(w, r)
		}
	}
	return next
}

// refusedInQuarantine reports whether the requests of a pattern do more than read while the database belongs elsewhere. People may
// sign in and out, to look.
func (s *server) refusedInQuarantine(pattern string) bool {
	method, path, _ := strings.Cut(pattern, " ")
	return s.Quarantine != "" && path != "" && method != http.MethodGet && path != "/logout" && !strings.HasPrefix(path, "/login/") && !strings.HasPrefix(path, "/console")
}

// identify says who sends the request that is answered with w, and has principalOf say so, too.
func (s *server) identify(w http.ResponseWriter, r *http.Request) (*access.Principal, error) {
	if !fromOf(w).secure && r.Header["Authorization"] != nil {
		return nil, newProblem("tls_required", "")
	}
	p, err := s.Access.Identify(r.Context(), s.credentialsOf(w, r))
	if err == nil {
		recordOf(w).principal = p
	}
	return p, err
}

// logDenial puts into the access log that somebody may not do something.
func (s *server) logDenial(r *http.Request, d access.Denial, err error) {
	problem := problemOf(err)
	if problem.Code != "unauthenticated" && problem.Code != "forbidden" {
		return
	}
	d.Event, d.Detail = string(problem.Code), problem.Detail
	if name := cmp.Or(r.PathValue("orderId"), r.PathValue("item"), r.PathValue("endpointId"), r.PathValue("version")); d.Event == "forbidden" && possible(name) {
		d.Subject = name // others could make up any number of them
	}
	s.Access.Denied(d)
}

// nameOf is the name of a principal, if there is one.
func nameOf(p *access.Principal) string {
	if p == nil {
		return ""
	}
	return p.Name
}

// ruleAt says who may use the route with a pattern. It panics for a route that has no rule.
func (s *server) ruleAt(pattern string) rule {
	id := s.operationAt(pattern).OperationID
	if _, verb, bulk := strings.Cut(pattern, bulkPath); bulk { // the role is that for one order
		id = operationOf(orders.Verb(verb))
	}
	rule, known := rules[id]
	if !known {
		panic("httpapi: no rule says who may use " + pattern)
	}
	return rule
}

// operationAt is the operation at a pattern, or for what is none one that has the pattern for its id.
func (s *server) operationAt(pattern string) *huma.Operation {
	pattern = documentedAs(pattern)
	for _, op := range s.documented {
		if op.Method+" "+op.Path == pattern {
			return op
		}
	}
	return &huma.Operation{OperationID: pattern}
}

// principalOf is who sends the request that is answered with w. It is never nil.
func principalOf(w http.ResponseWriter) *access.Principal {
	return cmp.Or(recordOf(w).principal, access.Nobody)
}

// credentialsOf is what is known of who sends a request. Of two credentials in the header none counts: who is in between may
// look at the other one.
func (s *server) credentialsOf(w http.ResponseWriter, r *http.Request) access.Request {
	from := fromOf(w)
	return access.Request{
		Authorization: strings.Join(r.Header["Authorization"], ", "), Session: s.sessionOf(w, r),
		Address: from.address, Local: from.local, Forwarded: from.forwarded,
	}
}

// forbidden is the error of a principal without the roles that an operation needs.
type forbidden struct {
	principal *access.Principal
	roles     access.Roles
}

func (f *forbidden) Error() string {
	return fmt.Sprintf("This needs the role %s; %s has %s.", anyOf(f.roles), f.principal.Name, cmp.Or(f.principal.Roles.String(), "none"))
}

func anyOf(roles access.Roles) string { return strings.ReplaceAll(roles.String(), ", ", " or ") }

// tokenScheme is what the document calls a token.
const tokenScheme = "token"

// secure says in the document who may do an operation.
func secure(op *huma.Operation) {
	rule := rules[op.OperationID]
	switch {
	case rule.class == alwaysOpen && len(rule.roles) > 0:
		op.Security = []map[string][]string{{}, {tokenScheme: {}}}
		op.Description += " Says more to those with the role " + anyOf(rule.roles) + "."
	case rule.class != alwaysOpen && len(rule.roles) > 0:
		op.Description += " Needs the role " + anyOf(rule.roles) + "."
		fallthrough
	case rule.class != alwaysOpen:
		op.Security = []map[string][]string{{tokenScheme: {}}}
	}
}

// accessProblems are the problems that an operation has because not everybody may do it.
func accessProblems(operation string) []problemCode {
	if rules[operation].class == alwaysOpen {
		return nil
	}
	return []problemCode{"unauthenticated", "forbidden", "tls_required", "too_many_requests", "issuer_unavailable"}
}
