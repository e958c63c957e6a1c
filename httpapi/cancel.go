package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
)

var cancelOperation = failing(huma.Operation{
	OperationID: "cancelOrder", Method: http.MethodPost, Path: "/api/orders/{orderId}/cancel", Tags: []string{"orders"},
	Summary: "Stop an order and undo it",
	Description: "Asks that the order be stopped: the step under way is recorded, then everything done is undone and the order ends canceled. " +
		"Waits and answers like processing. An order that is final, or being undone already, is 409. " +
		"A request that comes again with the same requestId is answered and not done again.",
}, "cross_origin", "malformed_json", "request_timeout", "body_too_large", "unsupported_media_type", "invalid_input", "invalid_parameter",
	"not_found", "not_applicable", "precondition_failed", "stopping", "unavailable", "internal")

// cancelRequest documents what cancel reads.
type cancelRequest struct {
	OrderID string      `path:"orderId" doc:"The id, percent-encoded."`
	DryRun  bool        `query:"dryRun" doc:"Say whether it can be done, and do nothing."`
	IfMatch string      `header:"If-Match" doc:"Only if the order is still at this ETag."`
	Prefer  string      `header:"Prefer" doc:"How long to wait for the end: wait=N (seconds, up to 60), or respond-async (RFC 7240)."`
	Body    *cancelBody `required:"false"`
}

type cancelBody struct {
	_         struct{} `additionalProperties:"true"`
	Actor     string   `json:"actor,omitempty" minLength:"1" maxLength:"255" doc:"Who asks; kept in the history."`
	Reason    string   `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; kept in the history."`
	RequestID string   `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once."`
}

const maxReason = 1000

// leastStopWait is what a cancellation is given even when the caller does not want
// to wait: time to be stored.
const leastStopWait = time.Second

func (s *server) cancel(w http.ResponseWriter, r *http.Request) error {
	stop, err := readStop(w, r)
	if err != nil {
		return err
	}
	want := preferenceOf(r.Header["Prefer"], s.wait)
	ctx, done := context.WithTimeout(r.Context(), max(want.atMost, leastStopWait))
	defer done()
	o, err := s.engine.Cancel(ctx, stop)
	if err != nil {
		return err
	}
	if stop.DryRun {
		writeOrderStatus(w, &o, http.StatusOK)
		return nil
	}
	writeOrder(w, &o, want)
	return nil
}

func readStop(w http.ResponseWriter, r *http.Request) (engine.Stop, error) {
	stop := engine.Stop{OrderID: r.PathValue("orderId")}
	body := newBuffer()
	defer body.free()
	if err := body.read(w, r); err != nil {
		return stop, err
	}
	if len(body.bytes) > 0 {
		if err := decodeStop(body.bytes, &stop); err != nil {
			return stop, err
		}
	}
	if !possible(stop.OrderID) {
		return stop, engine.ErrNotFound
	}
	switch r.URL.Query().Get("dryRun") {
	case "", "false":
	case "true":
		stop.DryRun = true
	default:
		return stop, invalidParameter("dryRun", "wrong_type", "must be true or false")
	}
	version, err := ifMatch(r.Header.Get("If-Match"), 32)
	if version != nil {
		seq := int32(*version)
		stop.IfSeq = &seq
	}
	return stop, err
}

var stopNames = []string{"actor", "reason", "requestId"}

func decodeStop(data []byte, stop *engine.Stop) error {
	return decode(data, stopNames, func(d *decoder, name string) (err error) {
		switch name {
		case "actor":
			stop.Actor, err = d.text("/actor", maxText)
		case "reason":
			stop.Reason, err = d.text("/reason", maxReason)
		case "requestId":
			stop.RequestID, err = d.text("/requestId", maxText)
		}
		return err
	}, func(*decoder) {})
}
