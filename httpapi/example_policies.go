package httpapi

import (
	"pawl/db"
	"pawl/engine"
	"pawl/internal/policy"
)

var exampleVersion = engine.PolicyVersion{
	PoliciesListRow: db.PoliciesListRow{
		Version: 1, CreatedAt: exampleTime, CreatedBy: "token:operations",
		ActivatedAt: &exampleTime, ActivatedBy: new("token:operations"), Reason: new("the deadline was agreed"),
	},
	Active: true,
	Policy: &policy.Policy{
		Charge: policy.Step{Executor: policy.Ledger}, Reserve: policy.Step{Executor: policy.Ledger}, Confirm: policy.Step{Executor: policy.Ledger},
	},
	Source: "completeWithin: 48h\n",
}

func examplePolicy() policyVersion { return policyVersionOf(&exampleVersion) }

func examplePolicies() any {
	unread := exampleVersion
	unread.Source = ""
	return policyList{[]policyVersion{policyVersionOf(&unread)}, unread.Version}
}
