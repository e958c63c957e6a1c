package httpapi

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/engine"
	"pawl/fsm"
)

// order is an order as the API shows it. The fields of the original contract come
// first. Its JSON is written by append, for lists and single orders alike.
type order struct {
	OrderID        string     `json:"orderId" minLength:"1" maxLength:"255" doc:"The caller's name for the order." example:"order-123"`
	Status         state      `json:"status"`
	Steps          steps      `json:"steps"`
	Amount         amount     `json:"amount" doc:"The amount with its digits as stored. Read the text of the number, not a float." example:"99.99"`
	Currency       string     `json:"currency" pattern:"^[A-Z]{3}$" doc:"ISO 4217." example:"USD"`
	Item           string     `json:"item" minLength:"1" maxLength:"255" example:"widget"`
	Quantity       int32      `json:"quantity" minimum:"1"`
	Metadata       stringMap  `json:"metadata,omitempty" doc:"As given with the first request."`
	Generation     int32      `json:"generation" minimum:"0" doc:"Raised by every redrive."`
	Seq            int32      `json:"seq" minimum:"1" doc:"Raised by every write to the order; also its ETag."`
	CreatedAt      time.Time  `json:"createdAt"`
	FinishedAt     *time.Time `json:"finishedAt,omitempty"`
	Hold           *string    `json:"hold,omitempty" enum:"retry,callback,scheduled,queued,approval,paused,attention" doc:"What the order waits for. Absent while it is driven or finished."`
	HoldReason     *string    `json:"holdReason,omitempty"`
	StopRequested  *string    `json:"stopRequested,omitempty" enum:"cancel,pause,deadline" doc:"Somebody asked to stop the order."`
	Failure        *failure   `json:"failure,omitempty" doc:"Why the order failed, or is being undone."`
	AllowedActions []string   `json:"allowedActions" nullable:"false" doc:"The verbs that apply to the order as it is." example:"[\"cancel\"]"`
}

type steps struct {
	Charge  stepState `json:"charge"`
	Reserve stepState `json:"reserve"`
	Confirm stepState `json:"confirm"`
}

// stepState says of a step whether its effect happened and stands.
type stepState struct {
	Completed bool `json:"completed" doc:"The effect of the step happened and stands."`
	Undone    bool `json:"undone,omitempty" doc:"The effect happened and was taken back."`
}

type failure struct {
	Step   string `json:"step,omitempty" enum:"charge,reserve,confirm"`
	Code   string `json:"code" example:"out_of_stock"`
	Detail string `json:"detail,omitempty"`
}

// transition is one row of an order's history.
type transition struct {
	Seq    int32     `json:"seq" minimum:"1" doc:"Number of the row, without gaps."`
	From   *state    `json:"from,omitempty" doc:"Absent in a row without a state before."`
	To     state     `json:"to" doc:"The same as from when something other than the status changed."`
	At     time.Time `json:"at"`
	Fence  int64     `json:"fence" minimum:"0" doc:"Which pick-up of the order wrote the row."`
	Verb   string    `json:"verb,omitempty" doc:"What was done, when it was not a step." example:"cancel"`
	Actor  string    `json:"actor" doc:"Who did it; pawl for the service itself." example:"pawl"`
	Reason string    `json:"reason,omitempty"`
}

// item is the stock of one item.
type item struct {
	Item      string `json:"item" minLength:"1" maxLength:"255" example:"widget"`
	Tracked   bool   `json:"tracked" doc:"Whether the stock is counted. An item that was never given stock is not tracked and never runs out."`
	OnHand    int64  `json:"onHand" minimum:"0" doc:"Units on the shelf; sold units are gone from it."`
	Reserved  int64  `json:"reserved" minimum:"0" doc:"Units reserved by orders that are not finished."`
	Available *int64 `json:"available" nullable:"true" minimum:"0" doc:"What is left to sell: onHand - reserved. Null when the item is not tracked."`
}

// self is the actor of what the service does by itself.
const self = "pawl"

func orderOf(o *engine.Order) order {
	row := &o.Order
	out := order{
		OrderID: row.OrderID, Status: state(row.Status), Steps: stepsOf(o),
		Amount: amount(row.Amount), Currency: row.Currency, Item: row.Item, Quantity: row.Quantity, Metadata: compact(row.Metadata),
		Generation: row.Generation, Seq: row.Seq, CreatedAt: row.CreatedAt.UTC(),
		Hold: row.Hold, HoldReason: row.HoldReason, StopRequested: row.StopRequested,
		AllowedActions: engine.AllowedActions(o),
	}
	if row.FinishedAt != nil {
		finished := row.FinishedAt.UTC()
		out.FinishedAt = &finished
	}
	if row.FailureCode != nil {
		out.Failure = &failure{Step: or(row.FailureStep, ""), Code: *row.FailureCode, Detail: or(row.FailureDetail, "")}
	}
	return out
}

func ordersOf(rows []engine.Order) []order {
	out := make([]order, len(rows))
	for i := range rows {
		out[i] = orderOf(&rows[i])
	}
	return out
}

func stepsOf(o *engine.Order) steps {
	return steps{
		Charge:  stepState{Completed: o.ChargedAt != nil && o.RefundedAt == nil, Undone: o.RefundedAt != nil},
		Reserve: stepState{Completed: o.ReservedAt != nil && o.ReleasedAt == nil, Undone: o.ReleasedAt != nil},
		Confirm: stepState{Completed: o.Order.Status == fsm.Completed},
	}
}

func transitionOf(row *db.Transition) transition {
	return transition{
		Seq: row.Seq, From: (*state)(row.FromStatus), To: state(row.ToStatus), At: row.At.UTC(), Fence: row.Fence,
		Verb: or(row.Verb, ""), Actor: or(row.Actor, self), Reason: or(row.Reason, ""),
	}
}

func itemOf(row *engine.Stock) item {
	out := item{Item: row.Item, Tracked: row.Tracked, OnHand: row.OnHand, Reserved: row.Reserved}
	if row.Tracked {
		available := row.OnHand - row.Reserved
		out.Available = &available
	}
	return out
}

func or(s *string, fallback string) string {
	if s == nil {
		return fallback
	}
	return *s
}

// amount is a decimal that is written as a JSON number with all its digits.
type amount decimal.Decimal

// stringMap is a JSON object of strings, kept as text.
type stringMap []byte

// state is a status of the machine.
type state fsm.State

// entityTag is the ETag of a version.
func entityTag[N int32 | int64](version N) string {
	return `"` + strconv.FormatInt(int64(version), 10) + `"`
}

var _ json.Marshaler = order{}
