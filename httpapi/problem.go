package httpapi

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"pawl/internal/access"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/policy"
)

// problem is an answer that is not what was asked for (RFC 9457).
type problem struct {
	Type           string       `json:"type" format:"uri-reference" doc:"A page that explains the code." example:"/problems/order_conflict"`
	Title          string       `json:"title" doc:"What the code means."`
	Status         int          `json:"status" doc:"The HTTP status."`
	Code           problemCode  `json:"code"`
	Detail         string       `json:"detail,omitempty" doc:"What happened this time."`
	Errors         []fieldError `json:"errors,omitempty" nullable:"false" doc:"What is wrong with the request, field by field."`
	Order          *order       `json:"order,omitempty" doc:"The order as it is, when it is the reason."`
	AllowedActions []string     `json:"allowedActions,omitempty" nullable:"false" doc:"The verbs that apply to the order as it is, or to a refund of it."`
	IgnoredFields  []string     `json:"ignoredFields,omitempty" nullable:"false" doc:"With invalid_input: fields of the request that are not known."`
	NextCursor     string       `json:"nextCursor,omitempty" doc:"With cursor_expired: where to go on."`

	kind      *kind
	allow     string           // the Allow header of a 405
	challenge string           // the WWW-Authenticate header of a 401
	exceeded  *access.Exceeded // of a 429
}

// problemCode is one of the codes of the table.
type problemCode string

func (p *problem) Error() string { return p.Detail }

// GetStatus and the two methods below are what huma asks of an error.
func (p *problem) GetStatus() int { return p.Status }

// GetHeaders returns the headers that go with the problem.
func (p *problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.kind != nil && p.kind.retryAfter != "" {
		h.Set("Retry-After", p.kind.retryAfter)
	}
	if p.exceeded != nil {
		h.Set("Retry-After", wholeSeconds(p.exceeded.Pause))
		writeQuotas(h, p.exceeded.All)
	}
	if p.allow != "" {
		h.Set("Allow", p.allow)
	}
	if p.challenge != "" {
		h.Set("WWW-Authenticate", p.challenge)
	}
	return h
}

// ContentType names the media type of problems.
func (p *problem) ContentType(string) string { return "application/problem+json" }

// newProblem fills in what the table says of a code.
func newProblem(code problemCode, detail string, faults ...fieldError) *problem {
	k := kindOf(code)
	return &problem{
		Type: "/problems/" + string(k.Code), Title: k.Title, Status: k.Status, Code: k.Code,
		Detail: detail, Errors: faults, kind: k,
	}
}

func malformedJSON(m *malformed) *problem {
	return newProblem("malformed_json", m.text(), fieldError{Pointer: m.pointer, Code: m.code, Detail: m.detail})
}

func invalidParameter(name, code, detail string) *problem {
	return newProblem("invalid_parameter", "", fieldError{Parameter: name, Code: code, Detail: detail})
}

func invalidHeader(name, detail string) *problem {
	return newProblem("invalid_parameter", "", fieldError{Header: name, Code: "invalid", Detail: detail})
}

func missingHeader(name, detail string) fieldError {
	return fieldError{Header: name, Code: "required", Detail: detail}
}

// problemOf is the way from any error to an answer. What the table does not know
// is internal, and mute: its text may hold anything.
func problemOf(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	at := slices.IndexFunc(kinds, func(k kind) bool { return k.matches != nil && k.matches(err) })
	p := newProblem(kinds[at].Code, "")
	p.explain(err)
	return p
}

// explain adds what the errors of the engine carry.
func (p *problem) explain(err error) {
	if missing, ok := errors.AsType[*orders.NotFound](err); ok {
		p.Detail = "T" + strings.TrimPrefix(missing.Error(), "t") + "."
	} else if expired, ok := errors.AsType[*events.Expired](err); ok {
		p.NextCursor = expired.Continue.String()
		if p.Detail = "The events after this cursor are no longer kept."; expired.Lost {
			p.Detail = "The history of this cursor was lost. Events may be missing, and some may be repeated."
		}
	} else if exceeded, ok := errors.AsType[*access.Exceeded](err); ok {
		p.Detail, p.exceeded = "The quota "+exceeded.Quota.Name+" is exceeded.", exceeded
	} else if stranger, ok := errors.AsType[*access.NotIdentified](err); ok {
		p.Detail, p.challenge = stranger.Reason, "Bearer"
		if stranger.Invalid {
			p.challenge = `Bearer error="invalid_token"`
		}
	} else if lacking, ok := errors.AsType[*forbidden](err); ok {
		p.Detail = lacking.Error()
	} else if conflict, ok := errors.AsType[*orders.Conflict](err); ok {
		p.Order = new(orderOf(&conflict.Order))
		for _, d := range conflict.Differences {
			p.Errors = append(p.Errors, fieldError{
				Pointer: d.Pointer, Code: "differs", Detail: "differs from the stored order", Stored: &d.Stored, Sent: &d.Sent,
			})
		}
	} else if other, ok := errors.AsType[*orders.KeyReused](err); ok {
		if other.Verb {
			p.Detail = "The first request with this key used a different verb."
		}
		for _, member := range other.Members {
			p.Errors = append(p.Errors, fieldError{Pointer: "/" + member, Code: "differs", Detail: "differs from the first request with this key"})
		}
	} else if refusal, ok := errors.AsType[*orders.NotApplicable](err); ok {
		p.Order = new(orderOf(&refusal.Order))
		if refusal.Code == orders.RefusedUnknown || refusal.Code == orders.RefusedStillUndoing { // what its row does not say
			p.Order.AllowedActions = slices.DeleteFunc(p.Order.AllowedActions, func(v string) bool { return v == string(refusal.Verb) })
		}
		p.AllowedActions = p.Order.AllowedActions
		p.Detail = refusal.Error() + "."
	} else if mistakes, ok := errors.AsType[policy.Problems](err); ok {
		p.Errors = policyFaults(mistakes)
	} else if low, ok := errors.AsType[*orders.StockTooLow](err); ok {
		p.Errors = []fieldError{{Pointer: low.Pointer, Code: "below_reserved", Detail: "must leave at least " + decimalText(low.Item.Reserved) + ", the units reserved"}}
	}
}
