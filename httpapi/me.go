package httpapi

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/access"
)

var getCallerOperation = failing(huma.Operation{
	OperationID: "getCaller", Method: http.MethodGet, Path: "/api/me", Tags: []string{"service"},
	Summary: "Read who you are, and what you may do",
	Description: "Answers everybody. A caller without a credential, or with one that is not good, is anonymous. " +
		"Where the service is not open to them, anonymous callers have no roles and no operations.",
	Security: []map[string][]string{{}, {tokenScheme: {}}},
}, "tls_required", "too_many_requests", "issuer_unavailable", "invalid_parameter", "unavailable", "internal")

type getCallerAnswer struct {
	Body struct {
		Name        string   `json:"name" doc:"As the history has it: token:NAME, oidc:ISSUER#SUBJECT, local or anonymous." example:"token:support"`
		Email       string   `json:"email,omitempty" doc:"Your address, if the OpenID Connect issuer has verified it. It is for people to read: it may change, and decides nothing."`
		Roles       []string `json:"roles" nullable:"false" doc:"Of submit, read, operate, approve, settle, stock, delegate, metrics and admin." example:"[\"approve\"]"`
		Open        bool     `json:"open" doc:"Whether the service is open to this machine without a token, because none was ever made."`
		Quarantined bool     `json:"quarantined" doc:"Whether the service only reads, because its database belongs elsewhere: nobody may do anything else."`
		Operations  []string `json:"operations" nullable:"false" doc:"Ids of the operations that you may do at this address, but for those that everybody may. With submit and without read, some are only for what you submitted; applyBulkVerb is for the verbs that you may apply to one order." example:"[\"approveOrder\",\"rejectOrder\",\"applyBulkVerb\"]"`
	} `nameHint:"Caller"`
}

// getCaller identifies the caller itself, to answer those who are nobody as well. What keeps the service from knowing who
// somebody is, it says.
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
	out := callerOf(p, s.Access.Open(ctx), s.operationsAt(recordOf(w).mux, p))
	out.Body.Quarantined = s.Quarantine != ""
	return out, nil
}

func callerOf(p *access.Principal, open bool, operations []string) *getCallerAnswer {
	out := &getCallerAnswer{}
	out.Body.Name, out.Body.Email, out.Body.Open, out.Body.Operations = p.Name, p.Email, open, operations
	out.Body.Roles = each(p.Roles, func(role *access.Role) string { return string(*role) })
	return out
}

// operationsAt are the ids of the operations that an address has and a principal may do.
func (s *server) operationsAt(mux *http.ServeMux, p *access.Principal) []string {
	ids := []string{}
	for _, op := range s.documented {
		rule := rules[op.OperationID]
		pattern := op.Method + " " + op.Path
		if rule.class != alwaysOpen && rule.allows(p) == nil && slices.Contains(s.muxesOf(patternsOf(pattern)[0]), mux) && !s.refusedInQuarantine(pattern) {
			ids = append(ids, op.OperationID)
		}
	}
	return ids
}
