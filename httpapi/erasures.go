package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"net/http"
	"regexp"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
)

var createErasureOperation = withBody(huma.Operation{
	OperationID: "createErasure", Method: http.MethodPost, Path: "/api/erasures", Tags: []string{"customers"},
	Summary: "Erase a customer",
	Description: "Replaces the customer's id, payment methods, metadata, and all texts about the customer's orders by a pseudonym. " +
		"Amounts, statuses and order ids stay. It cannot be undone. All orders of the customer must have ended, and no refund, capture, void or " +
		"late undo may be open. The answer, which is kept, lists to whom data of the customer was sent. " +
		"A repeated request with the same requestId continues one that was interrupted, and otherwise has no further effect.",
}, "not_found", "orders_open", "invalid_idempotency_key", "idempotency_key_reused", "stopping", "unavailable", "internal")

type erasureBody struct {
	CustomerID string `json:"customerId" minLength:"1" maxLength:"255" doc:"The customer. It is not stored with the request."`
	Reason     string `json:"reason" minLength:"1" maxLength:"1000" doc:"Why. It is kept, so it must not name the customer."`
	RequestID  string `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request. It must not name the customer. Required, here or as Idempotency-Key."`
	VerbBody
}

func (b erasureBody) asks() VerbBody {
	return VerbBody{OnBehalfOf: b.OnBehalfOf, Reason: b.Reason, RequestID: b.RequestID}
}

func (s *server) createErasure(w http.ResponseWriter, r *sent[erasureBody]) error {
	asks := r.body.asks()
	q := engine.Erasure{CustomerID: r.body.CustomerID, OnBehalfOf: asks.OnBehalfOf, Reason: asks.Reason}
	var err error
	if q.Actor, err = actorOf(w, q.OnBehalfOf); err != nil {
		return err
	}
	if q.RequestID, err = requestIDOf(r.Request, asks.RequestID); err != nil {
		return err
	}
	if fault := faultOfErasure(&q); fault != nil {
		return newProblem("invalid_input", "", *fault)
	}
	ctx, cancel := context.WithTimeout(r.Context(), bulkLimit)
	defer cancel()
	done, err := s.engine.EraseCustomer(ctx, q)
	if err != nil {
		return err
	}
	out := s.erasureOf(&done)
	out.IgnoredFields = r.ignored
	return answerJSON(w, &out)
}

// faultOfErasure finds the customer in what is kept of the request, as a word of its own, as pawl.erase_customer does.
func faultOfErasure(q *engine.Erasure) *fieldError {
	if q.RequestID == "" {
		return &fieldError{Pointer: "/requestId", Code: "required", Detail: "is required if there is no Idempotency-Key: it continues a request that was interrupted"}
	}
	names := regexp.MustCompile(`(^|[^\pL\pN])` + regexp.QuoteMeta(q.CustomerID) + `($|[^\pL\pN])`)
	for _, kept := range [][2]string{{"/reason", q.Reason}, {"/requestId", q.RequestID}, {"/onBehalfOf", q.OnBehalfOf}} {
		if names.MatchString(kept[1]) {
			return &fieldError{Pointer: kept[0], Code: "names_customer", Detail: "must not contain the customerId, because it is kept"}
		}
	}
	return nil
}

var listErasuresOperation = failing(huma.Operation{
	OperationID: "listErasures", Method: http.MethodGet, Path: "/api/erasures", Tags: []string{"customers"},
	Summary:     "List erasures of customers",
	Description: "Newest first. One without finishedAt was interrupted: send its request again.",
}, "invalid_parameter", "unavailable", "internal")

type listErasuresRequest struct {
	Before int32 `query:"before" minimum:"1" doc:"Only erasures with smaller numbers."`
	Limit  int32 `query:"limit" minimum:"1" maximum:"100" default:"50" doc:"Maximum number of erasures."`
}

type erasurePage struct {
	Erasures []erasure `json:"erasures" nullable:"false"`
}

// erasure is a request to erase a customer.
type erasure struct {
	Number        int32      `json:"number" minimum:"1"`
	Pseudonym     string     `json:"pseudonym" doc:"What the customer id was replaced by. It is random."`
	Orders        int32      `json:"orders" minimum:"0" doc:"Number of orders that were erased."`
	RequestedAt   time.Time  `json:"requestedAt"`
	FinishedAt    *time.Time `json:"finishedAt,omitempty" doc:"Absent if orders of the customer are left."`
	Actor         string     `json:"actor" doc:"Who requested it."`
	OnBehalfOf    string     `json:"onBehalfOf,omitempty" doc:"On whose behalf, as stated by the actor."`
	Reason        string     `json:"reason"`
	RequestID     string     `json:"requestId"`
	Sent          *sentData  `json:"sent,omitempty" doc:"To whom Pawl sent data of the customer, as far as it still knows. They must erase it themselves. Absent until finishedAt."`
	IgnoredFields []string   `json:"ignoredFields,omitempty" nullable:"false" doc:"Unknown fields of the request."`
}

type sentData struct {
	Providers        []sentToProvider `json:"providers" nullable:"false" doc:"Providers that were called, by step and policy."`
	WebhookEndpoints []sentToEndpoint `json:"webhookEndpoints" nullable:"false" doc:"Webhook endpoints that got events, as far as their deliveries are kept."`
	ArchiveFiles     int64            `json:"archiveFiles" minimum:"0" doc:"Number of files that pawl archive has written so far. They may have other orders of the customer."`
}

type sentToProvider struct {
	Step     string `json:"step" enum:"charge,reserve,confirm"`
	Policy   int32  `json:"policy" doc:"The version of the policy."`
	Route    string `json:"route,omitempty" doc:"Of a charge with several providers."`
	Provider string `json:"provider,omitempty" doc:"The executor and the address of the step."`
	Orders   int64  `json:"orders" minimum:"1"`
}

type sentToEndpoint struct {
	ID     string `json:"id"`
	URL    string `json:"url"`
	Orders int64  `json:"orders" minimum:"1"`
}

func (s *server) listErasures(ctx context.Context, in *listErasuresRequest) (erasurePage, error) {
	rows, err := s.engine.Orders.Erasures(ctx, cmp.Or(in.Before, math.MaxInt32), in.Limit)
	return erasurePage{each(rows, s.erasureOf)}, err
}

func (s *server) erasureOf(e *orders.Erasure) erasure {
	out := erasure{Number: e.Number, Pseudonym: e.Pseudonym, Orders: e.Orders, RequestedAt: e.RequestedAt.UTC(), FinishedAt: utc(e.FinishedAt),
		Actor: e.Actor, OnBehalfOf: or(e.OnBehalfOf, ""), Reason: e.Reason, RequestID: e.RequestID}
	if e.Sent == "" {
		return out
	}
	_ = json.Unmarshal([]byte(e.Sent), &out.Sent) // our own column
	for i := range out.Sent.Providers {
		p := &out.Sent.Providers[i]
		p.Provider = s.engine.ProviderOf(p.Policy, fsm.Step(p.Step), p.Route)
	}
	return out
}
