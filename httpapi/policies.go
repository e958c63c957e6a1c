package httpapi

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/internal/policy"
	"pawl/internal/policy/store"
)

var listPoliciesOperation = failing(huma.Operation{
	OperationID: "listPolicies", Method: http.MethodGet, Path: "/api/policies", Tags: []string{"policies"},
	Summary:     "List policy versions",
	Description: "Newest first, without source. New orders start with the active version; an order keeps the version that it started with.",
}, "invalid_parameter", "unavailable", "internal")

type listPoliciesRequest struct {
	Before int32 `query:"before" minimum:"1" doc:"Only versions below this one."`
	Limit  int32 `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Maximum number of versions."`
}

type listPoliciesAnswer struct {
	ETag string `header:"ETag" doc:"Changes with every activation."`
	Body policyList
}

type policyList struct {
	Policies []policyVersion `json:"policies" nullable:"false"`
	Active   int32           `json:"active,omitempty" minimum:"1" doc:"The version that new orders start with. Absent if there was none yet: every step runs in the database."`
}

func (s *server) listPolicies(ctx context.Context, in *listPoliciesRequest) (*listPoliciesAnswer, error) {
	below := in.Before
	if below == 0 {
		below = math.MaxInt32
	}
	rows, active, err := s.engine.Policies(ctx, below, in.Limit)
	if err != nil {
		return nil, err
	}
	return &listPoliciesAnswer{policyTag(active), policyList{each(rows, policyVersionOf), active.Version}}, nil
}

var getPolicyOperation = failing(huma.Operation{
	OperationID: "getPolicy", Method: http.MethodGet, Path: "/api/policies/{version}", Tags: []string{"policies"},
	Summary:     "Get a policy version",
	Description: "Includes its source. A policy refers to secrets and contains none.",
}, "not_found", "invalid_parameter", "unavailable", "internal")

type getPolicyRequest struct {
	Version int32 `path:"version" minimum:"1" maximum:"2147483646" doc:"The version."`
}

type policyVersionAnswer struct {
	ETag string `header:"ETag" doc:"Changes with every activation, of any version."`
	Body policyVersion
}

func (s *server) getPolicy(ctx context.Context, in *getPolicyRequest) (*policyVersionAnswer, error) {
	v, active, err := s.engine.Policy(ctx, in.Version)
	if err != nil {
		return nil, err
	}
	return &policyVersionAnswer{ETag: policyTag(active), Body: policyVersionOf(&v)}, nil
}

var storePolicyOperation = failing(huma.Operation{
	OperationID: "storePolicy", Method: http.MethodPost, Path: "/api/policies", Tags: []string{"policies"},
	Summary: "Check and store a policy",
	Description: "The new version is not activated. A source that is already stored keeps its version. With dryRun, it is only checked. " +
		"Every mistake is reported with its line and column, as by `pawl policy check`.",
}, "cross_origin", "malformed_json", "request_timeout", "body_too_large", "unsupported_media_type", "invalid_input",
	"invalid_policy", "invalid_parameter",
	"unavailable", "internal")

// storePolicyRequest documents what storePolicy reads.
type storePolicyRequest struct {
	DryRun bool   `query:"dryRun" doc:"Check it, and store nothing."`
	Prefer string `header:"Prefer" doc:"handling=strict rejects unknown fields (RFC 7240)."`
	Body   storePolicyBody
}

type storePolicyBody struct {
	Source string `json:"source" doc:"The policy in YAML, as in a file for serve --policy."`
}

func (s *server) storePolicy(w http.ResponseWriter, r *sent[storePolicyBody]) error {
	dry, err := dryRun(r.Request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), readLimit)
	defer cancel()
	stored, err := s.engine.StorePolicy(ctx, []byte(r.body.Source), principalOf(w).Name, dry)
	if err != nil {
		return err
	}
	return answerJSON(w, &storedPolicy{
		Version: stored.Version, Created: stored.Created, Steps: executorsOf(stored.Policy),
		Warnings: warningsOf(stored.Warnings), DryRun: dry, IgnoredFields: r.ignored,
	})
}

var activatePolicyOperation = failing(huma.Operation{
	OperationID: "activatePolicy", Method: http.MethodPost, Path: "/api/policies/{version}/activate", Tags: []string{"policies"},
	Summary: "Activate a policy version",
	Description: "New orders start with this version, which may be an older one. Orders that have started keep theirs. " +
		"The replica that answers uses it at once, others within seconds. Activating the active version has no effect.",
}, "cross_origin", "malformed_json", "request_timeout", "body_too_large", "unsupported_media_type", "invalid_input",
	"invalid_policy", "invalid_parameter",
	"not_found", "invalid_idempotency_key", "precondition_failed", "unavailable", "internal")

// activatePolicyRequest documents what activatePolicy reads.
type activatePolicyRequest struct {
	Version int32  `path:"version" minimum:"1" maximum:"2147483646" doc:"The version."`
	DryRun  bool   `query:"dryRun" doc:"Check whether it could be activated, and do nothing."`
	IfMatch string `header:"If-Match" doc:"Only if no version was activated since this ETag."`
	Prefer  string `header:"Prefer" doc:"handling=strict rejects unknown fields (RFC 7240)."`
	Body    activatePolicyBody
}

type activatePolicyBody struct {
	OnBehalfOf string `json:"onBehalfOf,omitempty" minLength:"1" maxLength:"255" doc:"For whom the request is made; recorded beside the caller. Requires the role delegate."`
	Reason     string `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; recorded with the activation."`
}

func (b activatePolicyBody) asks() VerbBody {
	return VerbBody{OnBehalfOf: b.OnBehalfOf, Reason: b.Reason}
}

func (s *server) activatePolicy(ctx context.Context, q *sent[activatePolicyBody]) (any, error) {
	a, err := readActivation(q)
	if err != nil {
		return nil, err
	}
	dry, err := dryRun(q.Request)
	if err != nil {
		return nil, err
	}
	v, active, err := s.engine.ActivatePolicy(ctx, a, dry)
	if err != nil {
		return nil, err
	}
	warnings, err := s.engine.PolicyWarnings(ctx, v.Policy)
	if err != nil {
		return nil, err
	}
	out := policyVersionOf(&v)
	out.Warnings, out.DryRun, out.IgnoredFields = warningsOf(warnings), dry, q.ignored
	q.answer.Set("ETag", policyTag(active))
	return &out, nil
}

// policyRoutes registers the routes of policies.
func (s *server) policyRoutes() {
	s.bound(listPoliciesOperation, s.lists)
	getWithin(s, listPoliciesOperation, readWithin, s.listPolicies)
	getWithin(s, getPolicyOperation, readWithin, s.getPolicy)
	postBody[storePolicyRequest, plainAnswer[storedPolicy]](s, storePolicyOperation, nil, s.storePolicy)
	postChange[activatePolicyRequest, policyVersionAnswer](s, activatePolicyOperation, nil, s.activatePolicy)
}

// policyTag is the ETag of all policies. It begins with 1, before the first activation.
func policyTag(active store.Current) string { return entityTag(active.No + 1) }

func readActivation(q *sent[activatePolicyBody]) (store.Activation, error) {
	version, ok := parseInteger([]byte(q.PathValue("version")))
	if !ok || version < 1 || version >= math.MaxInt32 {
		return store.Activation{}, &orders.NotFound{What: "policy"}
	}
	a := store.Activation{Version: int32(version), Actor: q.by.Actor, OnBehalfOf: q.by.OnBehalfOf, Reason: q.by.Reason}
	tag, err := ifMatch[int64](q.Header.Get("If-Match"))
	if tag != nil {
		a.After = new(*tag - 1)
	}
	return a, err
}

// policyVersion is a stored policy as the API shows it.
type policyVersion struct {
	Version     int32            `json:"version" minimum:"1"`
	Active      bool             `json:"active" doc:"New orders start with it."`
	CreatedAt   time.Time        `json:"createdAt"`
	CreatedBy   string           `json:"createdBy" doc:"Who stored it: serve, or an actor as in the history of an order."`
	ActivatedAt *time.Time       `json:"activatedAt,omitempty" doc:"When it was last activated."`
	ActivatedBy string           `json:"activatedBy,omitempty" doc:"Who activated it."`
	OnBehalfOf  string           `json:"onBehalfOf,omitempty" doc:"On whose behalf, as stated by activatedBy."`
	Reason      string           `json:"reason,omitempty" doc:"Why."`
	Steps       *policyExecutors `json:"steps,omitempty" doc:"The executor of each step. Absent if the replica that answers cannot run this version, or has not read it yet."`
	Source      string           `json:"source,omitempty" doc:"The source, as stored. Not in lists."`

	Warnings      []string `json:"warnings,omitempty" nullable:"false" doc:"After an activation: steps that the replica that answers cannot perform, and why; and whether orders would not use the stock that is tracked here."`
	DryRun        bool     `json:"dryRun,omitempty" doc:"True for a dry run: nothing was done."`
	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Unknown fields of the request, which had no effect."`
}

// storedPolicy is the result of storing a policy.
type storedPolicy struct {
	Version int32            `json:"version,omitempty" minimum:"1" doc:"Absent after a dry run of a new source."`
	Created bool             `json:"created" doc:"Whether the source is new, and was stored unless this is a dry run."`
	Steps   *policyExecutors `json:"steps"`

	Warnings      []string `json:"warnings,omitempty" nullable:"false" doc:"Steps that the replica that answers cannot perform, and why: their orders would wait for a person. And whether orders would not use the stock that is tracked here."`
	DryRun        bool     `json:"dryRun,omitempty" doc:"True for a dry run: nothing was done."`
	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Unknown fields of the request, which had no effect."`
}

// policyExecutors are the executors of the steps.
type policyExecutors struct {
	Charge  policy.Executor `json:"charge" enum:"ledger,http,stripe,simulator"`
	Reserve policy.Executor `json:"reserve" enum:"ledger,http,stripe,simulator"`
	Confirm policy.Executor `json:"confirm" enum:"ledger,http,stripe,simulator"`
}

func policyVersionOf(v *engine.PolicyVersion) policyVersion {
	return policyVersion{
		Version: v.Version, Active: v.Active, CreatedAt: v.CreatedAt.UTC(), CreatedBy: v.CreatedBy,
		ActivatedAt: utc(v.ActivatedAt), ActivatedBy: or(v.ActivatedBy, ""), OnBehalfOf: or(v.OnBehalfOf, ""), Reason: or(v.Reason, ""),
		Steps: executorsOf(v.Policy), Source: v.Source,
	}
}

func executorsOf(p *policy.Policy) *policyExecutors {
	if p == nil {
		return nil
	}
	return &policyExecutors{p.Charge.Executor, p.Reserve.Executor, p.Confirm.Executor}
}

func warningsOf(warnings []error) []string {
	var out []string
	for _, err := range warnings {
		out = append(out, err.Error())
	}
	return out
}

// policyFaults are the faults of a policy, or the first of many.
func policyFaults(problems policy.Problems) (faults []fieldError) {
	for _, problem := range problems[:min(len(problems), maxFaults)] {
		faults = append(faults, fieldError{
			Pointer: "/source", Code: "policy", Detail: problem.Message(), Line: int32(problem.Line), Column: int32(problem.Column),
		})
	}
	return faults
}
