package simulator

import (
	"encoding/json"
	"net/http"
)

// says is what the state of a key comes to, for callbacks and look-ups.
func (e *entry) says() said {
	switch e.State {
	case Live:
		return said{Outcome: "done", Reference: e.Reference, Data: e.data()}
	case Pending:
		return said{Outcome: string(Pending)}
	case Refused:
		return said{Outcome: "refused", Code: e.Code, Detail: e.Detail}
	default:
		return said{Outcome: "refused", Code: "voided", Detail: "the key was undone"}
	}
}

// answer is what the state of a key says to a do.
func (e *entry) answer() reply {
	told := e.says()
	switch e.State {
	case Live:
		told.Outcome = "" // the status says it
		return reply{status: http.StatusOK, outcome: "done", body: told}
	case Pending:
		return e.promised()
	case Refused:
		return reply{status: http.StatusPaymentRequired, outcome: "refused", body: told}
	default:
		return reply{status: http.StatusPaymentRequired, outcome: string(Voided), body: told}
	}
}

func (e *entry) promised() reply {
	return reply{status: http.StatusAccepted, outcome: string(Pending), body: said{Reference: e.Reference}}
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
	return encode(data)
}

// undone is what the state of a key says to an undo.
func (e *entry) undone(replayed bool) reply {
	verdict := "voided"
	if e.State == Undone {
		verdict = map[string]string{"charge": "refunded", "reserve": "released"}[e.Step]
	}
	return reply{status: http.StatusOK, outcome: verdict, body: said{State: verdict, Reference: e.undoName}, replayed: replayed}
}

// encode writes what can always be written: types of our own, of strings and numbers.
func encode(body any) json.RawMessage {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return text
}
