package events

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"pawl/db"
	"pawl/fsm"
)

// Event is one event as it is sent: in a page of the feed, in a stream, as the body of a webhook.
type Event struct {
	ID        string    `json:"id" doc:"Names the event for ever. One that comes twice has the same, and no other event has it, also after an older state of the database was restored." example:"evt_1042_5_660e29dbaab52"`
	Cursor    string    `json:"cursor" doc:"To go on after this event." example:"29411432.17"`
	Type      string    `json:"type" doc:"What happened: the list is in docs/events.md. There may be more one day." example:"order.completed"`
	Timestamp time.Time `json:"timestamp" doc:"When it happened, by the clock of the database."`
	Data      EventData `json:"data"`

	No        int64  `json:"-"` // its number in the feed
	OrderNo   int64  `json:"-"` // of the order it is about; 0: a stock movement
	StockItem string `json:"-"` // the item of a stock movement; empty: it is about an order
}

// EventData is what an event says: of an order, or of the stock of an item. Nothing that is withheld from readers is in it.
type EventData struct {
	OrderID    string `json:"orderId,omitempty" doc:"The order, of an event about an order." example:"order-123"`
	Seq        int64  `json:"seq,omitempty" doc:"The number of the row in the history of the order: 1, 2, 3 …" example:"5"`
	From       string `json:"from,omitempty" doc:"The status before it." example:"confirming"`
	Status     string `json:"status,omitempty" doc:"The status after it." example:"completed"`
	Verb       string `json:"verb,omitempty" doc:"What was done, as in the history, where the status does not say it."`
	Amount     string `json:"amount,omitempty" doc:"Of the order, as a decimal." example:"9.99"`
	Currency   string `json:"currency,omitempty" doc:"ISO 4217." example:"USD"`
	CustomerID string `json:"customerId,omitempty"`
	Refund     int32  `json:"refund,omitempty" doc:"The number of the refund that it is about."`

	RefundAmount string `json:"refundAmount,omitempty" doc:"Of that refund, as a decimal." example:"2.50"`

	Item     string `json:"item" doc:"What was ordered, or whose stock changed." example:"widget"`
	Quantity int32  `json:"quantity,omitempty" doc:"How many units were ordered." example:"1"`

	Version int64  `json:"version,omitempty" doc:"The version of the item that a stock movement made."`
	Change  *int64 `json:"change,omitempty" doc:"By how many units the stock changed."`
	OnHand  *int64 `json:"onHand,omitempty" doc:"Units on the shelf after it."`

	Actor      string `json:"actor,omitempty" doc:"Who asked for it. Absent: the service did it by itself." example:"token:support"`
	OnBehalfOf string `json:"onBehalfOf,omitempty" doc:"For whom the actor says that it asked."`
	Reason     string `json:"reason,omitempty" doc:"Why. A long one is cut."`
}

// textMost is how long a text of an event may be, in bytes, beside names, which have their own limits. So an event stays below
// 20 kB, however its characters are escaped.
const textMost = 700

func eventOf(row *db.EventsOfBatchRow) Event {
	e := Event{
		Cursor: Cursor{row.Epoch, row.EventNo}.String(), Timestamp: row.At.UTC(),
		No: row.EventNo, OrderNo: row.OrderNo, StockItem: row.StockItem,
		Data: EventData{Actor: clip(row.Actor), OnBehalfOf: clip(row.OnBehalfOf), Reason: clip(row.Reason)},
	}
	if row.StockItem != "" {
		sum := sha256.Sum256([]byte(row.StockItem))
		e.ID = eventID("stk_"+hex.EncodeToString(sum[:8]), row)
		e.Type = "stock." + row.ToStatus
		e.Data.Item, e.Data.Version, e.Data.Change, e.Data.OnHand = row.StockItem, row.Seq, row.Change, row.OnHand
		return e
	}
	e.ID = eventID("evt_"+strconv.FormatInt(row.OrderNo, 10), row)
	e.Type = typeOf(row.FromStatus, row.ToStatus, row.Verb, row.Actor)
	d := &e.Data
	d.OrderID, d.Seq, d.From, d.Status, d.Verb = row.OrderID, row.Seq, row.FromStatus, row.ToStatus, row.Verb
	d.Amount, d.Currency, d.Item, d.Quantity, d.CustomerID = row.Amount, row.Currency, row.Item, row.Quantity, row.CustomerID
	d.Refund, d.RefundAmount = row.Refund, row.RefundAmount
	if row.Verb == "refund" && row.RefundInLedger {
		e.Type = typesOfVerbs["refund_done"] // asking for it did it
	}
	return e
}

// eventID ends with the time of the row, in microseconds. An older state of the database that was restored numbers other orders
// with the same numbers, and receivers drop what has an id that they know. The time is that of the row, so an event
// keeps its id.
func eventID(subject string, row *db.EventsOfBatchRow) string {
	return subject + "_" + strconv.FormatInt(row.Seq, 10) + "_" + strconv.FormatInt(row.At.UnixMicro(), 16)
}

// clip cuts a text between two characters.
func clip(text string) string {
	if len(text) <= textMost {
		return text
	}
	return strings.ToValidUTF8(text[:textMost], "") + "…"
}

// JSON is the event as it is sent, everywhere the same.
func (e *Event) JSON() []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(e); err != nil {
		panic("events: " + err.Error()) // our own types
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}

// What happened to an order that kept its status, by the verb of its row in the history. A row without a verb is a move. A
// hold that is named as a verb of people is told from it by the actor.
var typesOfVerbs = map[string]string{
	// What people ask for.
	"cancel": "order.cancel_requested", "pause": "order.pause_requested", "resume": "order.resumed", "approve": "order.approved",
	"reject": "order.rejected", "step-result": "order.step_result", "refund": "order.refund_requested",
	// What an order waits for.
	"callback": "order.awaiting_callback", "scheduled": "order.awaiting_start", "queued": "order.awaiting_permit",
	"approval": "order.awaiting_approval", "paused": "order.paused", "hold": "order.needs_attention", "attention": "order.needs_attention",
	// What the service does.
	"call": "order.step_called", "answer": "order.step_answered", "deadline": "order.deadline_exceeded", "permit": "order.permit_granted",
	"wake": "order.woken", "take_over": "order.taken_over", "release_lease": "order.released", "late_undo": "order.late_undo_requested",
	// What becomes of a refund.
	"refund_pending": "order.refund_pending", "refund_in_doubt": "order.refund_in_doubt", "refund_accepted": "order.refund_accepted",
	"refund_done": "order.refund_done", "refund_failed": "order.refund_failed",
}

const (
	typeAwaitingRetry  = "order.awaiting_retry"
	typeRetryRequested = "order.retry_requested"
	typeChanged        = "order.changed" // of a verb that this program does not know: a newer one wrote it
)

// Types lists the types of events, sorted. Newer versions may have more.
func Types() []string {
	all := []string{typeAwaitingRetry, typeRetryRequested, typeChanged, "stock.set", "stock.adjustment", "stock.restock"}
	for _, status := range fsm.States() {
		all = append(all, "order."+string(status))
	}
	for _, name := range typesOfVerbs {
		all = append(all, name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// KnownType reports whether a filter on types can match: it is a type, or "order.*" or "stock.*".
func KnownType(filter string) bool {
	return filter == "order.*" || filter == "stock.*" || slices.Contains(Types(), filter)
}

// MatchesType reports whether an event of a type passes a filter on types: one that names it, or its first part as "order.*".
// No filter lets all pass.
func MatchesType(filter []string, name string) bool {
	return len(filter) == 0 || slices.ContainsFunc(filter, func(f string) bool {
		prefix, all := strings.CutSuffix(f, "*")
		return f == name || all && strings.HasPrefix(name, prefix)
	})
}

// typeOf is the type of an event about an order.
func typeOf(from, to, verb, actor string) string {
	switch {
	case from != to:
		return "order." + to
	case verb == "retry" && actor == "":
		return typeAwaitingRetry
	case verb == "retry":
		return typeRetryRequested
	case typesOfVerbs[verb] != "":
		return typesOfVerbs[verb]
	default:
		return typeChanged
	}
}
