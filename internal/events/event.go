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

// Event is an event as it is sent: in pages of the feed, in streams, to webhook endpoints.
type Event struct {
	ID        string    `json:"id" doc:"Unique ID. A repeated event has the same one, and no other event has it, even after a backup was restored."`
	Cursor    string    `json:"cursor" doc:"Cursor to continue after this event."`
	Type      string    `json:"type" doc:"What happened. docs/events.md lists the types; newer versions may add more."`
	Timestamp time.Time `json:"timestamp" doc:"When it happened, by the clock of the database."`
	Data      EventData `json:"data"`

	No        int64  `json:"-"` // its number in the feed
	OrderNo   int64  `json:"-"` // of its order; 0: it is a stock movement
	StockItem string `json:"-"` // the item of a stock movement; empty: it is about an order
}

// EventData describes what happened to an order, or to the stock of an item. It contains only what every reader of
// orders may see.
type EventData struct {
	OrderID    string `json:"orderId,omitempty" doc:"Order that the event is about."`
	Seq        int64  `json:"seq,omitempty" doc:"Position in the history of the order: 1, 2, 3 …"`
	From       string `json:"from,omitempty" doc:"Status before the event."`
	Status     string `json:"status,omitempty" doc:"Status after the event."`
	Verb       string `json:"verb,omitempty" doc:"What was done, as in the history, if the status does not say it."`
	Amount     string `json:"amount,omitempty" doc:"Amount of the order, a decimal."`
	Currency   string `json:"currency,omitempty" doc:"ISO 4217."`
	CustomerID string `json:"customerId,omitempty"`
	Route      string `json:"route,omitempty" doc:"Provider of the charge, by its name in the policy, if the policy has several: when the order is completed, and when it falls back to this route."`
	Refund     int32  `json:"refund,omitempty" doc:"Number of the refund that the event is about."`

	RefundAmount  string       `json:"refundAmount,omitempty" doc:"Amount of that refund, a decimal."`
	RefundLines   []RefundLine `json:"refundLines,omitempty" nullable:"false" doc:"Lines that the refund is about, if it says so. Absent if they are longer than 4 kB."`
	Capture       int32        `json:"capture,omitempty" doc:"Number of the capture that the event is about."`
	CaptureAmount string       `json:"captureAmount,omitempty" doc:"Amount of that capture, a decimal."`
	Void          int32        `json:"void,omitempty" doc:"Number of the void that the event is about."`
	VoidAmount    string       `json:"voidAmount,omitempty" doc:"Amount of that void, a decimal."`

	Item     string      `json:"item,omitempty" doc:"Item that was ordered, or whose stock changed. Absent if the order has lines."`
	Quantity int32       `json:"quantity,omitempty" doc:"Number of units ordered, of all items."`
	Lines    []EventLine `json:"lines,omitempty" nullable:"false" doc:"Lines of the order, if it has any. Absent if the lines of an event are longer than 4 kB."`

	Version int64  `json:"version,omitempty" doc:"Version of the item after a stock movement."`
	Change  *int64 `json:"change,omitempty" doc:"Change of the stock, in units."`
	OnHand  *int64 `json:"onHand,omitempty" doc:"Units on hand after the event."`

	Actor      string `json:"actor,omitempty" doc:"Principal that requested it. Absent if the service acted by itself."`
	OnBehalfOf string `json:"onBehalfOf,omitempty" doc:"Person for whom the actor acted, as stated by the actor."`
	Reason     string `json:"reason,omitempty" doc:"Reason. A long one is truncated."`
}

// fallbackReason comes before the route in the reason of a fallback: see RemoteFallback.
const fallbackReason = ": next route "

// EventLine is a line of an order.
type EventLine struct {
	Item     string `json:"item"`
	Quantity int32  `json:"quantity"`
	Amount   string `json:"amount,omitempty" doc:"Of the whole line, a decimal."`
	Kind     string `json:"kind,omitempty" doc:"Absent for an item."`
}

// RefundLine is a line that a refund is about.
type RefundLine struct {
	Line int `json:"line" minimum:"1" doc:"Number of the line in the order, from 1."`
	EventLine
	Restock bool `json:"restock,omitempty" doc:"The units were put back into stock."`
}

// textMost is the maximum length of an actor or reason, in bytes. It keeps an event below 20 kB, however its characters
// are escaped. Names have limits of their own.
const textMost = 700

// linesMost is the maximum length of the lines in an event, in bytes. Longer ones are left out, those of the order
// first.
const linesMost = 4 << 10

func eventOf(row *db.EventsOfBatchRow) Event {
	e := Event{
		Cursor: Cursor{row.Epoch, row.EventNo}.String(), Timestamp: row.At.UTC(),
		No: row.EventNo, OrderNo: row.OrderNo, StockItem: row.StockItem,
		Data: EventData{Actor: clip(row.Actor), OnBehalfOf: clip(row.OnBehalfOf), Reason: clip(row.Reason)},
	}
	if row.StockItem != "" {
		sum := sha256.Sum256([]byte(row.StockItem))
		e.ID = eventID("stk_"+hex.EncodeToString(sum[:8]), row)
		e.Type = TypeOfStock(row.ToStatus)
		e.Data.Item, e.Data.Version, e.Data.Change, e.Data.OnHand = row.StockItem, row.Seq, row.Change, row.OnHand
		return e
	}
	e.ID = eventID("evt_"+strconv.FormatInt(row.OrderNo, 10), row)
	e.Type = TypeOf(row.FromStatus, row.ToStatus, row.Verb, row.Actor)
	d := &e.Data
	d.OrderID, d.Seq, d.From, d.Status, d.Verb = row.OrderID, row.Seq, row.FromStatus, row.ToStatus, row.Verb
	d.Amount, d.Currency, d.Item, d.Quantity, d.CustomerID = row.Amount, row.Currency, row.Item, row.Quantity, row.CustomerID
	d.Route = row.Route
	if i := strings.LastIndex(row.Reason, fallbackReason); row.Verb == "fallback" && i >= 0 {
		d.Route = row.Reason[i+len(fallbackReason):]
	}
	switch row.OperationKind {
	case "refund":
		d.Refund, d.RefundAmount = row.Operation, row.OperationAmount
	case "capture":
		d.Capture, d.CaptureAmount = row.Operation, row.OperationAmount
	case "void":
		d.Void, d.VoidAmount = row.Operation, row.OperationAmount
	}
	if n := len(row.OperationLines); n > 0 && n <= linesMost && row.OperationKind == "refund" {
		_ = json.Unmarshal(row.OperationLines, &d.RefundLines) // our own columns
	}
	if n := len(row.Lines); n > 0 && n+len(row.OperationLines) <= linesMost {
		_ = json.Unmarshal(row.Lines, &d.Lines)
	}
	if row.Verb == "refund" && row.InLedger {
		e.Type = typesOfVerbs["refund_done"] // the ledger refunds at once
	}
	return e
}

// eventID makes the ID of an event. It ends with the time of its row, in microseconds: after a backup was restored,
// other orders get the same numbers, and receivers drop events with an ID that they know.
func eventID(subject string, row *db.EventsOfBatchRow) string {
	return subject + "_" + strconv.FormatInt(row.Seq, 10) + "_" + strconv.FormatInt(row.At.UnixMicro(), 16)
}

// At is when an event happened, by its ID. Nil: it is not one of the feed.
func At(id string) *time.Time {
	micro, err := strconv.ParseInt(id[strings.LastIndexByte(id, '_')+1:], 16, 64)
	if err != nil {
		return nil
	}
	return new(time.UnixMicro(micro).UTC())
}

// clip truncates a text between two characters.
func clip(text string) string {
	if len(text) <= textMost {
		return text
	}
	return strings.ToValidUTF8(text[:textMost], "") + "…"
}

// JSON encodes the event. It has the same bytes wherever it is sent.
func (e *Event) JSON() []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(e); err != nil {
		panic("events: " + err.Error()) // our own types
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}

// typesOfVerbs has the types of events that did not change the status, by the verb of their row in the history. TypeOf
// handles retry, which is the name of a hold and of a request.
var typesOfVerbs = map[string]string{
	// Requests.
	"cancel": "order.cancel_requested", "pause": "order.pause_requested", "resume": "order.resumed", "approve": "order.approved",
	"reject": "order.rejected", "step-result": "order.step_result", "refund": "order.refund_requested",
	"capture": "order.capture_requested", "void": "order.void_requested",
	// Holds.
	"callback": "order.awaiting_callback", "scheduled": "order.awaiting_start", "queued": "order.awaiting_permit",
	"approval": "order.awaiting_approval", "paused": "order.paused", "hold": "order.needs_attention", "attention": "order.needs_attention",
	// Actions of the service.
	"fallback": "order.route_changed",
	"call":     "order.step_called", "answer": "order.step_answered", "deadline": "order.deadline_exceeded", "permit": "order.permit_granted",
	"wake": "order.woken", "take_over": "order.taken_over", "release_lease": "order.released", "late_undo": "order.late_undo_requested",
	// Results of charge operations, and the end of an authorization.
	"refund_sent": "order.refund_sent", "capture_sent": "order.capture_sent", "void_sent": "order.void_sent",
	"refund_pending": "order.refund_pending", "refund_in_doubt": "order.refund_in_doubt", "refund_accepted": "order.refund_accepted",
	"refund_done": "order.refund_done", "refund_failed": "order.refund_failed",
	"capture_pending": "order.capture_pending", "capture_in_doubt": "order.capture_in_doubt", "capture_accepted": "order.capture_accepted",
	"capture_done": "order.capture_done", "capture_failed": "order.capture_failed", "capture_due": "order.capture_due",
	"void_pending": "order.void_pending", "void_in_doubt": "order.void_in_doubt", "void_accepted": "order.void_accepted",
	"void_done": "order.void_done", "void_failed": "order.void_failed",
	"erase": "order.erased",
	// Reports about disputes.
	"dispute_opened": "order.dispute_opened", "dispute_won": "order.dispute_won", "dispute_lost": "order.dispute_lost",
}

const (
	typeAwaitingRetry  = "order.awaiting_retry"
	typeRetryRequested = "order.retry_requested"
	typeChanged        = "order.changed" // with a verb that this version does not know
)

// Types returns all types of events, sorted. Newer versions may have more.
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

// KnownType reports whether an element of a filter can match: it is a type, "order.*" or "stock.*".
func KnownType(filter string) bool {
	return filter == "order.*" || filter == "stock.*" || slices.Contains(Types(), filter)
}

// MatchesType reports whether a type matches a filter, which lists types and prefixes such as "order.*". An empty
// filter matches all.
func MatchesType(filter []string, name string) bool {
	return len(filter) == 0 || slices.ContainsFunc(filter, func(f string) bool {
		prefix, all := strings.CutSuffix(f, "*")
		return f == name || all && strings.HasPrefix(name, prefix)
	})
}

// Driving reports whether a type is about how Pawl drives an order: nothing that a receiver of webhooks acts on, and
// while a provider is away one for each try of each order.
func Driving(name string) bool {
	return slices.Contains([]string{typeAwaitingRetry, "order.woken", "order.step_called", "order.step_answered", "order.taken_over", "order.released",
		"order.awaiting_permit", "order.permit_granted"}, name)
}

// TypeOfStock is the type of an event about an item, by the kind of the movement.
func TypeOfStock(kind string) string { return "stock." + kind }

// TypeOf is the type of an event about an order.
func TypeOf(from, to, verb, actor string) string {
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
