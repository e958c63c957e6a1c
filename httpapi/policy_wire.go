package httpapi

import (
	"time"

	"pawl/engine"
	"pawl/internal/policy"
)

// policyVersion is a stored policy as the API shows it.
type policyVersion struct {
	Version     int32            `json:"version" minimum:"1"`
	Active      bool             `json:"active" doc:"New orders start with it."`
	CreatedAt   time.Time        `json:"createdAt"`
	CreatedBy   string           `json:"createdBy" doc:"Who stored it: serve, or as in the history of an order." example:"token:operations"`
	ActivatedAt *time.Time       `json:"activatedAt,omitempty" doc:"When it was last made the active version. Absent: never."`
	ActivatedBy string           `json:"activatedBy,omitempty" doc:"Who asked for that." example:"token:operations"`
	OnBehalfOf  string           `json:"onBehalfOf,omitempty" doc:"For whom activatedBy says that it asked."`
	Reason      string           `json:"reason,omitempty" doc:"Why."`
	Steps       *policyExecutors `json:"steps,omitempty" doc:"What does each step. Absent where the service that answers can't run this version, or has not read it yet."`
	Source      string           `json:"source,omitempty" doc:"The text, as it was stored. Not in lists." example:"completeWithin: 48h\n"`

	Warnings      []string `json:"warnings,omitempty" nullable:"false" doc:"In the answer to an activation: which steps the service that answers can't do with it, and why, and whether orders would take nothing from stock that is tracked here."`
	DryRun        bool     `json:"dryRun,omitempty" doc:"True in the answer to a dry run: nothing was done."`
	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Fields of the request that are not known, and had no effect."`
}

// storedPolicy is what came of a policy that was to be stored.
type storedPolicy struct {
	Version int32            `json:"version,omitempty" minimum:"1" doc:"Absent after a dry run of a text that is not stored."`
	Created bool             `json:"created" doc:"It is stored now, or as a dry run would be. False: the text is stored already."`
	Steps   *policyExecutors `json:"steps"`

	Warnings      []string `json:"warnings,omitempty" nullable:"false" doc:"Which steps the service that answers can't do with it, and why; their orders would wait for a person. And whether orders would take nothing from stock that is tracked here."`
	DryRun        bool     `json:"dryRun,omitempty" doc:"True in the answer to a dry run: nothing was done."`
	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Fields of the request that are not known, and had no effect."`
}

// policyExecutors is what does each step.
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

// policyFaults are the mistakes of a policy, or the first of many.
func policyFaults(problems policy.Problems) (faults []fieldError) {
	for _, problem := range problems[:min(len(problems), maxFaults)] {
		faults = append(faults, fieldError{
			Pointer: "/source", Code: "policy", Detail: problem.Says(), Line: int32(problem.Line), Column: int32(problem.Column),
		})
	}
	return faults
}
