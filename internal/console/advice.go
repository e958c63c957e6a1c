package console

import (
	"cmp"
	"html/template"
	"regexp"
	"slices"
	"strings"

	"pawl/client"
	"pawl/fsm"
)

// reason is why orders wait for a person.
type reason struct {
	Key     string // what is before the colon in holdReason; of an approval, nothing
	Title   string // in words
	Meaning string // what is known then, in a sentence
	Section string // of the runbook
	try     []string
}

const (
	stepInDoubt = "The step may have been done or not, and nobody knows."
	dataRefused = "sqlstate"
)

// reasons are what the runbook has a section on, with the actions in the order in which it says to try them.
var reasons = []reason{
	{"retries_exhausted", "Retries are used up", "Every call of the step failed or got no answer. It may have been done, so the customer may have been charged.",
		"retries_exhausted", []string{"retry", "cancel", "step-result"}},
	{"outcome_unknown", "Nobody knows the outcome", stepInDoubt + " The provider may have forgotten the key, so nothing is sent again. Look at the provider first.",
		"outcome_unknown", []string{"step-result", "cancel"}},
	{"policy_unusable", "The policy can't be used", "A secret is missing, or the policy names a step that can't be done. Nothing was sent.",
		"policy_unusable", []string{"retry", "cancel"}},
	{"undo_refused", "The provider refuses the undo", "Money or goods stand at the provider until they are taken back there.",
		"undo_refused", []string{"step-result", "retry", "cancel"}},
	{"void_refused", "The provider refuses to void an earlier try", "Nothing of the present try was sent. What stands of the earlier one must be gone first.",
		"void_refused", []string{"retry", "cancel"}},
	{"refused_in_doubt", "Refused, but perhaps confirmed before", "The confirmation was refused, and an earlier call of it got no answer. Look at the provider first.",
		"refused_in_doubt", []string{"step-result", "retry"}},
	{"retry_after", "The provider asks to wait", "It asks for a longer pause than the policy allows.",
		"retry_after", []string{"retry", "cancel"}},
	{"non_retryable", "Not to be tried again", stepInDoubt + " The policy says not to try again after this answer.",
		"non_retryable", []string{"retry", "cancel", "step-result"}},
	{"taken over three times without a move", "Replicas fail on it", "Three replicas in a row took it over and did not move it. See their logs first.",
		"taken-over-three-times-without-a-move", []string{"retry", "cancel"}},
	{"unknown_move", "A move that nobody knows", "The program and the schema of the database do not agree. Find out which of them is wrong first.",
		"unknown_move", []string{"retry", "cancel"}},
	{dataRefused, "The database refuses its data", "The statement that moves it fails each time, because of rows that the service did not write.",
		"an-sqlstate", []string{"retry", "cancel"}},
}

var approval = reason{"", "Waits for approval", "A rule of the policy wants a person to look at it before anything is charged.",
	"approval", []string{"approve", "reject"}}

var anSQLState = regexp.MustCompile(`^[0-9A-Z]{5}$`)

// reasonOf finds the reason in the words that an order is held with.
func reasonOf(hold client.OrderHold, words string) reason {
	if hold == client.OrderHoldApproval {
		return approval
	}
	key, _, _ := strings.Cut(words, ":")
	named := func(name string) int { return slices.IndexFunc(reasons, func(r reason) bool { return r.Key == name }) }
	if i := named(key); i >= 0 {
		return reasons[i]
	}
	if anSQLState.MatchString(key) {
		r := reasons[named(dataRefused)]
		r.Key = key
		r.Title += " (" + key + ")"
		return r
	}
	return reason{Key: key, Title: cmp.Or(key, "Without a reason"), Section: "attention"}
}

// Runbook is what the runbook says about it.
func (r reason) Runbook() template.HTML { return runbook.sections[r.Section] }

// Hold is what orders wait for with this reason.
func (r reason) Hold() string {
	if r.Section == approval.Section {
		return fsm.HoldApproval
	}
	return fsm.HoldAttention
}

// ranked puts verbs into the order in which to try them.
func (r reason) ranked(verbs []*verb) []*verb {
	rank := func(a *verb) int {
		if i := slices.Index(r.try, a.Name); i >= 0 {
			return i
		}
		return len(r.try)
	}
	slices.SortStableFunc(verbs, func(a, b *verb) int { return rank(a) - rank(b) })
	return verbs
}
