package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/access"
	"pawl/internal/orders"
)

// class says which callers an operation is open to, before and after the first token is created.
type class int

const (
	closedToOthers class = iota // this machine; once a token exists, callers with a role
	inContract                  // everyone; once a token exists, callers with a role
	alwaysOpen                  // everyone, always: it has a key of its own, or nothing to hide
)

// rule says which callers may use an operation: those with any of the roles, or without roles all authenticated ones. An
// operation that is always open shows more to callers with the roles.
type rule struct {
	class class
	roles access.Roles
}

func needs(roles ...access.Role) rule { return rule{closedToOthers, roles} }

// rules are by operation id, or by pattern for routes that are not operations. The service does not start if a route
// has no rule.
var rules = map[string]rule{
	"processOrder":    {inContract, access.Roles{access.Submit}},
	"getOrder":        {inContract, readers},
	"listOrders":      needs(readers...),
	"listTransitions": {closedToOthers, readers},
	"listCalls":       {closedToOthers, readers},

	"cancelOrder":       needs(access.Operate),
	"retryOrder":        needs(access.Operate),
	"pauseOrder":        needs(access.Operate),
	"resumeOrder":       needs(access.Operate),
	"approveOrder":      needs(access.Approve),
	"rejectOrder":       needs(access.Approve),
	"settleStepOfOrder": needs(access.Settle),
	"refundOrder":       needs(access.Operate),
	"captureOrder":      needs(access.Operate),
	"voidOrder":         needs(access.Operate),
	"recordDispute":     needs(access.Operate),

	"applyBulkVerb": needs(access.Operate, access.Approve, access.Settle),              // and the role of the verb
	"getRequest":    needs(access.Read, access.Operate, access.Approve, access.Settle), // whoever may make one

	"listInventory":      needs(access.Read, access.Stock),
	"getInventory":       needs(access.Read, access.Stock),
	"setInventory":       needs(access.Stock),
	"adjustInventory":    needs(access.Stock),
	"listStockMovements": needs(access.Read, access.Stock),

	"createErasure": needs(access.Erase),
	"listErasures":  needs(access.Erase, access.Read),

	"listMoneyMovements":    needs(access.Read),
	"startVerification":     needs(access.Operate),
	"getVerification":       needs(access.Read),
	"listVerifications":     needs(access.Read),
	"getVerificationReport": needs(access.Read),

	"listEvents": needs(readers...),

	"getOverview":     needs(access.Read),
	"listErrorGroups": needs(access.Read),

	"listWebhookEndpoints":   needs(access.Read),
	"getWebhookEndpoint":     needs(access.Read),
	"createWebhookEndpoint":  needs(access.Admin),
	"changeWebhookEndpoint":  needs(access.Admin),
	"deleteWebhookEndpoint":  needs(access.Admin),
	"rotateWebhookSecret":    needs(access.Admin),
	"enableWebhookEndpoint":  needs(access.Admin),
	"disableWebhookEndpoint": needs(access.Admin),
	"testWebhookEndpoint":    needs(access.Admin),
	"listDeliveries":         needs(access.Read),
	"listDeliveriesOfOrder":  needs(access.Read),
	"getDelivery":            needs(access.Read),
	"resendDelivery":         needs(access.Operate),
	"skipDelivery":           needs(access.Operate),
	"recoverDeliveries":      needs(access.Operate),

	"listPolicies":   needs(access.Read),
	"getPolicy":      needs(access.Read),
	"storePolicy":    needs(access.Admin),
	"activatePolicy": needs(access.Admin),

	"answerStep":      {class: alwaysOpen}, // authenticated by the token in its path
	"takeStripeEvent": {class: alwaysOpen}, // authenticated by its signature

	"health":       {alwaysOpen, access.Roles{access.Read}}, // balancers have no token
	"livez":        {class: alwaysOpen},
	"getCaller":    {class: alwaysOpen}, // shows callers their identity
	"GET /metrics": needs(access.Read, access.Metrics),

	"GET /{$}":             {class: alwaysOpen},
	"GET /docs":            {class: alwaysOpen},
	"GET /docs/{page}":     {class: alwaysOpen},
	"GET /openapi.yaml":    {class: alwaysOpen},
	"GET /openapi.json":    {class: alwaysOpen},
	"GET /problems/{code}": {class: alwaysOpen},
	"GET /login":           {class: alwaysOpen}, // shows who is signed in
	"GET /login/{link}":    {class: alwaysOpen}, // authenticated by the link
	"POST /login/{link}":   {class: alwaysOpen},
	"POST /logout":         {class: alwaysOpen},
	"GET /console":         {class: alwaysOpen}, // checked operation by operation
	"GET /console/":        {class: alwaysOpen},
	"GET /console/live":    {class: alwaysOpen},
	"POST /console/":       {class: alwaysOpen},
	"/":                    {class: alwaysOpen}, // not found
}

// readers may read orders: with submit alone those that they submitted.
var readers = access.Roles{access.Submit, access.Read}

// allows returns nil if a principal may use the operation. Errors: *access.NotIdentified, *forbidden.
func (r rule) allows(p *access.Principal) error {
	switch {
	case r.class == alwaysOpen, p == access.Anonymous && r.class == inContract:
		return nil
	case p == access.Anonymous:
		return &access.NotIdentified{Reason: "No credentials were sent, and they are required for requests from other machines."}
	case len(r.roles) == 0, slices.ContainsFunc(r.roles, p.Has):
		return nil
	}
	return &forbidden{principal: p, roles: r.roles}
}

// AllowedTo lists the operations of the API that a principal may use, as method and path.
func AllowedTo(p *access.Principal) (operations []string) {
	s := newServer(nil, Config{})
	for _, op := range s.documented {
		for _, pattern := range patternsOf(op.Method + " " + op.Path) {
			if s.ruleAt(pattern).allows(p) != nil {
				continue
			}
			if slices.Equal(s.ruleAt(pattern).roles, readers) && !p.Has(access.Read) {
				pattern += " (of orders that it submitted)"
			}
			operations = append(operations, pattern)
		}
	}
	return operations
}

// guarded identifies the caller, and rejects a request without permission before reading its body.
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
			ctx, cancel := context.WithTimeout(r.Context(), readLimit) // to identify the caller, and for the answer
			defer cancel()
			r = r.WithContext(ctx)
			_, _ = s.identify(w, r) // everyone is permitted
			next(w, r)
		}
	}
	return next
}

// refusedInQuarantine reports whether a route is closed because the database was restored or copied. Reading, and
// signing in and out, stay open.
func (s *server) refusedInQuarantine(pattern string) bool {
	method, path, _ := strings.Cut(pattern, " ")
	return s.Quarantine != "" && path != "" && method != http.MethodGet && path != "/logout" &&
		!strings.HasPrefix(path, "/login/") && !strings.HasPrefix(path, "/console")
}

// identify returns the principal of the request that w answers, and stores it for principalOf.
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

// rights are the rights of a caller with a long answer. They are checked every few seconds, because tokens end.
type rights struct {
	*server
	caller  access.Request
	rule    rule
	checked time.Time
}

func (s *server) rightsOf(w http.ResponseWriter, r *http.Request, operation string) rights {
	return rights{s, s.credentialsOf(w, r), rules[operation], time.Now()}
}

// check returns an error if the caller has lost its rights. If that cannot be determined, it has not.
func (r *rights) check() error {
	if time.Since(r.checked) < r.streams.rightsHold {
		return nil
	}
	r.checked = time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), rightsHold)
	defer cancel()
	p, err := r.Access.Identify(ctx, r.caller)
	if err == nil {
		return r.rule.allows(p)
	}
	if _, refused := errors.AsType[*access.NotIdentified](err); refused {
		return err
	}
	return nil
}

// logDenial records a denied request in the access log.
func (s *server) logDenial(r *http.Request, d access.Denial, err error) {
	problem := problemOf(err)
	if problem.Code != "unauthenticated" && problem.Code != "forbidden" {
		return
	}
	d.Event, d.Detail = string(problem.Code), problem.Detail
	if name := cmp.Or(r.PathValue("orderId"), r.PathValue("item"), r.PathValue("endpointId"),
		r.PathValue("version")); d.Event == "forbidden" && possible(name) {
		d.Subject = name // not of anonymous callers, who could make up any number of names
	}
	s.Access.Denied(d)
}

// nameOf is the name of a principal, or empty.
func nameOf(p *access.Principal) string {
	if p == nil {
		return ""
	}
	return p.Name
}

// ruleAt returns the rule of the route with a pattern. It panics if there is none.
func (s *server) ruleAt(pattern string) rule {
	id := s.operationAt(pattern).OperationID
	if verb, bulk := strings.CutPrefix(pattern, bulkVerbPattern); bulk { // the same role as for one order
		id = operationOf(orders.Verb(verb))
	}
	rule, known := rules[id]
	if !known {
		panic("httpapi: no access rule for " + pattern)
	}
	return rule
}

// operationAt returns the operation at a pattern. For other routes it makes one, with the pattern as its id.
func (s *server) operationAt(pattern string) *huma.Operation {
	pattern = documentedAs(pattern)
	for _, op := range s.documented {
		if op.Method+" "+op.Path == pattern {
			return op
		}
	}
	return &huma.Operation{OperationID: pattern}
}

// principalOf returns the principal of the request that w answers. It is never nil.
func principalOf(w http.ResponseWriter) *access.Principal {
	return cmp.Or(recordOf(w).principal, access.Nobody)
}

// credentialsOf returns the credentials of a request. If the header occurs twice, both are ignored: a proxy may have
// checked the other one.
func (s *server) credentialsOf(w http.ResponseWriter, r *http.Request) access.Request {
	from := fromOf(w)
	return access.Request{
		Authorization: strings.Join(r.Header["Authorization"], ", "), Session: s.sessionOf(w, r),
		Address: from.address, Local: from.local, Forwarded: from.forwarded,
	}
}

// forbidden is the error of a principal that lacks the roles for an operation.
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

// secure documents the roles for an operation.
func secure(op *huma.Operation) {
	rule := rules[op.OperationID]
	switch {
	case rule.class == alwaysOpen && len(rule.roles) > 0:
		op.Security = []map[string][]string{{}, {tokenScheme: {}}}
		op.Description += " Shows more to callers with the role " + anyOf(rule.roles) + "."
	case slices.Equal(rule.roles, readers):
		op.Description += " Needs the role " + anyOf(rule.roles) + "; with submit alone, it is limited to orders that you submitted."
		op.Security = []map[string][]string{{tokenScheme: {}}}
	case rule.class != alwaysOpen && len(rule.roles) > 0:
		op.Description += " Needs the role " + anyOf(rule.roles) + "."
		fallthrough
	case rule.class != alwaysOpen:
		op.Security = []map[string][]string{{tokenScheme: {}}}
	}
}

// accessProblems are the additional problems of an operation that is not open to everyone.
func accessProblems(operation string) []problemCode {
	if rules[operation].class == alwaysOpen {
		return nil
	}
	return []problemCode{"unauthenticated", "forbidden", "tls_required", "too_many_requests", "issuer_unavailable"}
}

var getCallerOperation = failing(huma.Operation{
	OperationID: "getCaller", Method: http.MethodGet, Path: "/api/me", Tags: []string{"service"},
	Summary: "Get your identity and permissions",
	Description: "Every caller gets an answer. A caller without a valid credential is anonymous. " +
		"Anonymous callers have no roles and no operations, unless the service is open to them.",
	Security: []map[string][]string{{}, {tokenScheme: {}}},
}, "tls_required", "too_many_requests", "issuer_unavailable", "invalid_parameter", "unavailable", "internal")

type getCallerAnswer struct {
	Body struct {
		Name        string   `json:"name" doc:"As in the history: token:NAME, oidc:ISSUER#SUBJECT, local or anonymous."`
		Email       string   `json:"email,omitempty" doc:"Your email address, if the OpenID Connect issuer has verified it. For display only."`
		Roles       []string `json:"roles" nullable:"false" doc:"Any of submit, read, operate, approve, settle, stock, erase, delegate, metrics and admin."`
		Open        bool     `json:"open" doc:"Whether the service can be used from this machine without a token, because none was created yet."`
		Quarantined bool     `json:"quarantined" doc:"Whether the service is read-only, because its database was restored or copied."`
		Cell        string   `json:"cell" doc:"Which orders the service has, as cell of cells: 0/1 all of them, 1/4 those of the second of four cells."`
		Operations  []string `json:"operations" nullable:"false" doc:"Ids of the operations that you may use at this address, except public ones. With submit but not read, some are limited to orders that you submitted; applyBulkVerb is for the verbs that you may apply to one order."`

		Forbidden map[string]string `json:"forbidden" doc:"Ids of the operations that your roles do not allow, with those that would, such as read or stock."`
	} `nameHint:"Caller"`
}

// getCaller identifies the caller itself, because it also answers anonymous callers.
func (s *server) getCaller(ctx context.Context, _ *struct{}) (*getCallerAnswer, error) {
	w := writerOf(ctx)
	p, err := s.identify(w, httpRequestOf(ctx))
	if _, unknown := errors.AsType[*access.NotIdentified](err); unknown {
		p, err = access.Nobody, nil
	}
	if err == nil {
		err = s.withinLimits(w, p)
	}
	if err != nil {
		return nil, err
	}
	out := &getCallerAnswer{}
	out.Body.Name, out.Body.Email, out.Body.Open = p.Name, p.Email, s.Access.Open(ctx)
	out.Body.Roles = each(p.Roles, func(role *access.Role) string { return string(*role) })
	out.Body.Operations, out.Body.Forbidden = s.operationsAt(recordOf(w).mux, p)
	out.Body.Quarantined, out.Body.Cell = s.Quarantine != "", s.Cell.String()
	return out, nil
}

// operationsAt are the ids of the operations that an address has and a principal may use, and the roles that others need.
func (s *server) operationsAt(mux *http.ServeMux, p *access.Principal) (ids []string, forbidden map[string]string) {
	ids, forbidden = []string{}, map[string]string{}
	for _, op := range s.documented {
		rule, pattern := rules[op.OperationID], op.Method+" "+op.Path
		switch {
		case rule.class == alwaysOpen || !slices.Contains(s.muxesOf(patternsOf(pattern)[0]), mux) || s.refusedInQuarantine(pattern):
		case rule.allows(p) == nil:
			ids = append(ids, op.OperationID)
		default:
			forbidden[op.OperationID] = anyOf(rule.roles)
		}
	}
	return ids, forbidden
}

// submitterOf is the submitter of an order, or empty for an anonymous caller.
func submitterOf(p *access.Principal) string {
	switch p {
	case access.Local, access.Anonymous, access.Nobody:
		return ""
	}
	return p.Name
}

// actorOf is the authenticated caller. With the role delegate, a request can also state on whose behalf it acts.
func actorOf(w http.ResponseWriter, onBehalfOf string) (string, error) {
	p := principalOf(w)
	if onBehalfOf != "" && !p.Has(access.Delegate) {
		return "", &forbidden{principal: p, roles: access.Roles{access.Delegate}}
	}
	return p.Name, nil
}

// requestIDOf is the request id from the body or the Idempotency-Key header, or empty.
func requestIDOf(r *http.Request, inBody string) (string, error) {
	key, err := idempotencyKey(r.Header)
	switch {
	case err != nil:
		return "", err
	case key == "":
		return inBody, nil
	case inBody != "" && inBody != key:
		return "", badIdempotencyKey("must equal the requestId of the body if both are given")
	}
	return key, nil
}

// The header is a string of structured fields (RFC 9651). Many callers send it without the quotes.
var (
	quotedKey  = regexp.MustCompile(`^"((?:[^"\\]|\\["\\])*)"$`)
	escapedKey = strings.NewReplacer(`\"`, `"`, `\\`, `\`)
)

// idempotencyKey reads the Idempotency-Key header. Empty: there is none.
func idempotencyKey(h http.Header) (string, error) {
	given := h["Idempotency-Key"]
	if len(given) == 0 {
		return "", nil
	}
	key, bare := given[0], true
	if strings.Contains(key, `"`) {
		parts := quotedKey.FindStringSubmatch(key)
		if bare = parts == nil; !bare {
			key = escapedKey.Replace(parts[1])
		}
	}
	if len(given) > 1 || bare && strings.Contains(key, `"`) || !possible(key) {
		return "", badIdempotencyKey("must be a single value of 1 to 255 visible UTF-8 characters, quoted or not")
	}
	return key, nil
}

func badIdempotencyKey(detail string) error {
	return newProblem("invalid_idempotency_key", "", fieldError{Header: "Idempotency-Key", Code: "invalid", Detail: detail})
}
