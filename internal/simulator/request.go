package simulator

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/govalues/decimal"

	"pawl/internal/signing"
)

const (
	operationDo     = "do"
	operationUndo   = "undo"
	operationRefund = "refund"

	maxBody = 64 << 10
	maxKey  = 255
)

// request is what was asked for, checked.
type request struct {
	key         string
	fingerprint string // the same for the same path and body, byte for byte
	step        string
	operation   string
	means       string // do or undo, of a request of Stripe's API that is one by another name
	stripe      bool   // it is one of Stripe's API
	counted     string // what the times of a rule are counted by, if not the key
	fence       int64
	amount      decimal.Decimal
	body        struct {
		Subject
		Operation   string          `json:"operation"`
		Metadata    json.RawMessage `json:"metadata"`
		CallbackURL string          `json:"callbackUrl"`
		UndoKey     string          `json:"undoKey"`
		ChargeKey   string          `json:"chargeKey"` // of what is refunded
		Reference   string          `json:"reference"` // of what an undo is to take back, or a refund to give back
	}
	rule   Rule     // what is to go wrong; the zero rule is nothing
	logged *Request // in the log of requests
}

// event is what the file says of this request.
func (q *request) event(kind string) event {
	key, undoKey := q.key, ""
	if q.operation == operationUndo {
		key, undoKey = q.body.UndoKey, q.key
	}
	return event{Event: kind, Key: key, UndoKey: undoKey, Body: q.fingerprint, Subject: q.body.Subject}
}

var errSignature = errors.New("webhook-signature: does not fit, webhook-id is not the Idempotency-Key, or webhook-timestamp is too far from now")

func (s *Simulator) read(w http.ResponseWriter, r *http.Request, step, operation string) (*request, error) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	key := r.Header.Get("Idempotency-Key")
	// The key is signed as the id: under another one, the same request would be done again.
	if s.cfg.Secret != "" && (r.Header.Get("Webhook-Id") != key || signing.Verify(s.cfg.Secret, r.Header, text, time.Now()) != nil) {
		return nil, errSignature
	}
	sum := sha256.Sum256([]byte(r.URL.Path + "\x00" + string(text)))
	q := &request{
		key: key, fingerprint: hex.EncodeToString(sum[:16]),
		step: step, operation: operation,
	}
	if err := json.Unmarshal(text, &q.body); err != nil {
		return nil, fmt.Errorf("read body: %w", err)
	}
	if fence := r.Header.Get("Fencing-Token"); fence != "" {
		if q.fence, err = strconv.ParseInt(fence, 10, 64); err != nil {
			return nil, errors.New("the Fencing-Token must be a number")
		}
	}
	return q, q.check()
}

func (q *request) check() (err error) {
	if q.amount, err = decimal.Parse(q.body.Amount); err != nil {
		return errors.New("amount: must be a decimal number in a string")
	}
	callback, err := url.Parse(q.body.CallbackURL)
	for _, rule := range []struct {
		good bool
		text string
	}{
		{q.key != "" && len(q.key) <= maxKey, "Idempotency-Key: must have 1 to 255 characters"},
		{q.body.OrderID != "", "orderId: must not be empty"},
		{q.body.Step == q.step, "step: must be that of the path"},
		{q.body.Operation == q.operation, "operation: must be that of the path"},
		{q.body.Generation >= 0, "generation: must not be negative"},
		{!strings.ContainsAny(q.body.Amount, "+-eE"), "amount: must be digits and a point"},
		{q.operation != operationUndo || q.body.UndoKey != "", "undoKey: must be the Idempotency-Key of the do"},
		{q.operation != operationRefund || q.body.RefundID != "", "refundId: must not be empty"},
		{q.operation != operationRefund || q.amount.IsPos(), "amount: must be more than zero"},
		{q.operation != operationRefund || q.body.ChargeKey != "", "chargeKey: must be the Idempotency-Key of the charge"},
		{q.operation != operationUndo || q.body.UndoKey != q.key, "undoKey: must not be the Idempotency-Key of the undo"},
		{q.body.CallbackURL == "" || err == nil && (callback.Scheme == "http" || callback.Scheme == "https"), "callbackUrl: must be an http or https URL"},
	} {
		if !rule.good {
			return errors.New(rule.text)
		}
	}
	return nil
}
