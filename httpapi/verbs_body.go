package httpapi

import (
	"math"

	"pawl/engine"
	"pawl/fsm"
)

// verbRequest documents what every verb reads.
type verbRequest struct {
	OrderID        string `path:"orderId" doc:"The id, percent-encoded."`
	DryRun         bool   `query:"dryRun" doc:"Say whether it applies, and do nothing."`
	IfMatch        string `header:"If-Match" doc:"Only if the order is still at this ETag."`
	Prefer         string `header:"Prefer" doc:"How long to wait for the end: wait=N (seconds, up to 60), or respond-async (RFC 7240)."`
	IdempotencyKey string `header:"Idempotency-Key" doc:"The requestId, where the body has none."`
}

type anyVerbRequest struct {
	verbRequest
	Body *verbBody `required:"false"`
}

type retryRequest struct {
	verbRequest
	Body *retryBody `required:"false"`
}

type approvalRequest struct {
	verbRequest
	Body approvalBody
}

type stepResultRequest struct {
	verbRequest
	Body stepResultBody
}

type verbBody struct {
	_         struct{} `additionalProperties:"true"`
	Actor     string   `json:"actor,omitempty" minLength:"1" maxLength:"255" doc:"Who asks; kept in the history."`
	Reason    string   `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; kept in the history."`
	RequestID string   `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once."`
}

type retryBody struct {
	_         struct{} `additionalProperties:"true"`
	Actor     string   `json:"actor,omitempty" minLength:"1" maxLength:"255" doc:"Who asks; kept in the history."`
	Reason    string   `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; kept in the history."`
	RequestID string   `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once."`
	Policy    string   `json:"policy,omitempty" enum:"pinned,active" doc:"Which policy the order goes on with: the one it started with, or the active one. pinned when left out."`
}

type approvalBody struct {
	_         struct{} `additionalProperties:"true"`
	Actor     string   `json:"actor" minLength:"1" maxLength:"255" doc:"Who decides; kept in the history."`
	Reason    string   `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; kept in the history."`
	RequestID string   `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once."`
}

type stepResultBody struct {
	_          struct{} `additionalProperties:"true"`
	Step       string   `json:"step" enum:"charge,reserve,confirm" doc:"The step that the order does, or undoes."`
	Generation *int32   `json:"generation,omitempty" minimum:"0" doc:"Says that this is not about the step the order is at, but about the open undo of a late effect of that step in this generation. The outcome is done then: it was undone by hand."`
	Outcome    string   `json:"outcome" enum:"done,refused,not_done" doc:"Of the step, or of its undoing where the order is being undone. done: it is. refused: it is not and never will be. not_done: it is not, and may be tried again."`
	Reference  string   `json:"reference,omitempty" minLength:"1" maxLength:"255" doc:"The provider's name for what is done."`
	Code       string   `json:"code,omitempty" minLength:"1" maxLength:"255" doc:"Why it is not done, for programs."`
	Detail     string   `json:"detail,omitempty" minLength:"1" maxLength:"1000" doc:"Why it is not done, for people."`
	Actor      string   `json:"actor" minLength:"1" maxLength:"255" doc:"Who says so; kept in the history."`
	Reason     string   `json:"reason" minLength:"1" maxLength:"1000" doc:"How they know; kept in the history."`
	RequestID  string   `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once."`
}

const maxReason = 1000

// verbNames are the fields of the bodies of verbs beside those that all of them have.
var (
	verbNames       = []string{"actor", "reason", "requestId"}
	retryNames      = []string{"actor", "reason", "requestId", "policy"}
	stepResultNames = []string{"step", "generation", "outcome", "reference", "code", "detail", "actor", "reason", "requestId"}
)

// decodeVerb reads the body of a verb. One that requires nothing may have none.
func decodeVerb(data []byte, q *engine.Request) error {
	required := requiredOf(q.Verb)
	if len(data) == 0 {
		if len(required) == 0 {
			return nil
		}
		data = []byte("{}")
	}
	names := verbNames
	if q.Verb == engine.Retry {
		names = retryNames
	}
	if q.Verb == engine.StepResult {
		names, q.Settle = stepResultNames, &engine.Settled{}
	}
	given := map[string]bool{}
	return decode(data, names, func(d *decoder, name string) error {
		given[name] = true
		return d.verbField(q, name)
	}, func(d *decoder) {
		for _, name := range required {
			if !given[name] {
				d.fault("/"+name, "required", "is missing")
			}
		}
		if s := q.Settle; s != nil && s.Generation != nil && given["outcome"] && s.Outcome != engine.SettledDone {
			d.fault("/outcome", "not_done", "must be done where a generation is given: an undo is closed when it was done by hand")
		}
	})
}

func requiredOf(verb engine.Verb) []string {
	switch verb {
	case engine.Approve, engine.Reject:
		return []string{"actor"}
	case engine.StepResult:
		return []string{"step", "outcome", "actor", "reason"}
	default:
		return nil
	}
}

func (d *decoder) verbField(q *engine.Request, name string) (err error) {
	switch name {
	case "actor":
		q.Actor, err = d.text("/actor", maxText)
	case "reason":
		q.Reason, err = d.text("/reason", maxReason)
	case "requestId":
		q.RequestID, err = d.text("/requestId", maxText)
	case "policy":
		var choice string
		choice, err = d.word("/policy", "pinned", "active")
		q.ActivePolicy = choice == "active"
	case "step":
		var step string
		step, err = d.word("/step", string(fsm.Charge), string(fsm.Reserve), string(fsm.Confirm))
		q.Settle.Step = fsm.Step(step)
	case "generation":
		var generation int64
		generation, err = d.integer("/generation", 0, math.MaxInt32)
		q.Settle.Generation = new(int32(generation))
	case "outcome":
		q.Settle.Outcome, err = d.word("/outcome", engine.SettledDone, engine.SettledRefused, engine.SettledNotDone)
	case "reference":
		q.Settle.Reference, err = d.text("/reference", maxText)
	case "code":
		q.Settle.Code, err = d.text("/code", maxText)
	case "detail":
		q.Settle.Detail, err = d.text("/detail", maxReason)
	}
	return err
}
