package simulator

import (
	"encoding/json"
	"net/http"
)

// answer is what the state of a key says to a do; replayed, as it was decided before.
func (e *entry) answer() reply {
	a := reply{replayed: true}
	switch e.State {
	case Live:
		a.status, a.outcome, a.body = http.StatusOK, "done", done{Reference: e.Reference, Data: e.data()}
	case Pending:
		return e.promised()
	case Refused:
		a = refusal(e.Code, e.Detail)
		a.replayed = true
	default:
		a = refusal("voided", "the key was undone")
		a.outcome, a.replayed = string(Voided), e.body != ""
	}
	return a
}

func (e *entry) promised() reply {
	return reply{status: http.StatusAccepted, outcome: string(Pending), body: done{Reference: e.Reference}, replayed: true}
}

// data is what a provider tells beside its reference.
func (e *entry) data() json.RawMessage {
	data := map[string]any{"orderId": e.OrderID}
	switch e.Step {
	case "charge":
		data = map[string]any{"amount": e.Amount, "currency": e.Currency}
	case "reserve":
		data = map[string]any{"item": e.Item, "quantity": e.Quantity}
	}
	text, err := json.Marshal(data)
	if err != nil {
		panic(err) // strings and numbers
	}
	return text
}

// undone is what the state of a key says to an undo.
func (e *entry) undone(replayed bool) reply {
	verdict := "voided"
	if e.State == Undone {
		verdict = map[string]string{"charge": "refunded", "reserve": "released"}[e.Step]
	}
	return reply{status: http.StatusOK, outcome: verdict, body: undone{State: verdict, Reference: e.undoName}, replayed: replayed}
}
