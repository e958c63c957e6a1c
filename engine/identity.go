package engine

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider"
)

// identity is who we are to providers.
type identity struct {
	id     uuid.UUID
	secret []byte
}

// identify reads it once; it never changes.
func (e *Engine) identify(ctx context.Context) (*identity, error) {
	if known := e.identity.Load(); known != nil {
		return known, nil
	}
	row, err := db.Repeat(ctx, e.ctx, e.query.InstallationSecret)
	if err != nil {
		return nil, fmt.Errorf("read installation: %w", err)
	}
	e.identity.Store(&identity{row.ID, row.CallbackSecret})
	return e.identity.Load(), nil
}

// readIdentity reads it at the start, so that no forged token costs a read later.
func (e *Engine) readIdentity() {
	ctx, cancel := context.WithTimeout(e.ctx, 5*time.Second)
	defer cancel()
	if _, err := e.identify(ctx); err != nil {
		e.log.Warn("read who we are to providers", "error", err)
	}
}

// callOf is what the executor is told of a run's call.
func (e *Engine) callOf(ctx context.Context, r *run) (*provider.Call, error) {
	o, c := &r.order, r.call
	request, err := e.requestFor(ctx, o, c.step, c.generation)
	if err != nil {
		return nil, err
	}
	request.Number = c.number
	switch {
	case c.operation == provider.Undo:
		request.Reference = c.undoReference
		return request, nil
	case c.step == fsm.Reserve:
		request.Reference = or(o.ReserveReference)
	default:
		request.Reference = or(o.ChargeReference)
	}
	if request.Reference == "" && r.preflight != nil && c.pool.cfg.Executor == policy.Stripe { // to others a do is sent without one
		request.Reference = r.preflight.own.reference
	}
	return request, nil
}

// requestFor is what the executor is told of any call about a step of a generation of an order.
func (e *Engine) requestFor(ctx context.Context, o *orders.Order, of fsm.Step, generation int32) (*provider.Call, error) {
	who, err := e.identify(ctx)
	if err != nil {
		return nil, err
	}
	paymentMethod, err := e.paymentMethodOf(ctx, o, generation)
	if err != nil {
		return nil, err
	}
	target := newTarget(o.OrderNo, o.OrderID, generation, of)
	return &provider.Call{
		Installation: who.id, OrderID: o.OrderID, Step: of, Generation: generation,
		Amount: o.Amount, Currency: o.Currency, Item: o.Item, Quantity: o.Quantity, Metadata: o.Metadata,
		CustomerID: or(o.CustomerID), PaymentMethod: paymentMethod, Fence: o.Fence, Clock: e.now,
		CallbackURL: e.cfg.PublicURL + "/api/callbacks/" + who.token(target), Tokens: who.tokens(target),
	}, nil
}

// paymentMethodOf is what a generation of an order is charged with. A retry may have brought another one since, and
// providers compare what they are sent under the key of an earlier generation.
func (e *Engine) paymentMethodOf(ctx context.Context, o *orders.Order, generation int32) (string, error) {
	if generation >= o.Generation {
		return or(o.PaymentMethod), nil
	}
	return e.storedPaymentMethod(ctx, o.OrderNo, generation)
}

func (e *Engine) storedPaymentMethod(ctx context.Context, orderNo int64, generation int32) (string, error) {
	was, err := orders.Read(ctx, e.Orders, e.query.PaymentMethodOf, db.PaymentMethodOfParams{OrderNo: orderNo, Generation: generation})
	if err != nil {
		return "", orders.Unavailable("read payment method", err)
	}
	return was, nil
}

// A token is what a provider completes a step with: the number of the order, a hash of its id, the generation, the step,
// and a code over them that only this installation can make. It needs no row to be known by, and is the same on every
// call, as the body it is sent in must be. So a forged token is known before anything is read. The hash is there
// because in a database that was restored the same number may be another order's.
const (
	tokenFields = 8 + tokenHash + 4 + 1
	tokenHash   = 8
	tokenCode   = 16
)

var tokenText = base32.StdEncoding.WithPadding(base32.NoPadding)

// callbackTarget is what a token is for.
type callbackTarget struct {
	orderNo    int64
	orderHash  [tokenHash]byte
	generation int32
	step       fsm.Step
}

func newTarget(orderNo int64, orderID string, generation int32, of fsm.Step) callbackTarget {
	return callbackTarget{orderNo, hashOf(orderID), generation, of}
}

func hashOf(orderID string) (hash [tokenHash]byte) {
	sum := sha256.Sum256([]byte(orderID))
	copy(hash[:], sum[:])
	return hash
}

// token makes the token of a step. It is 60 lower-case letters and digits.
func (who *identity) token(t callbackTarget) string {
	fields := make([]byte, 0, tokenFields+tokenCode)
	fields = binary.BigEndian.AppendUint64(fields, uint64(t.orderNo))
	fields = append(fields, t.orderHash[:]...)
	fields = binary.BigEndian.AppendUint32(fields, uint32(t.generation))
	fields = append(fields, byte(slices.Index(fsm.Steps(), t.step)))
	return strings.ToLower(tokenText.EncodeToString(append(fields, who.code(fields)...)))
}

// tokens are those of all steps.
func (who *identity) tokens(t callbackTarget) (all []string) {
	for _, t.step = range fsm.Steps() {
		all = append(all, who.token(t))
	}
	return all
}

func (who *identity) code(fields []byte) []byte {
	mac := hmac.New(sha256.New, who.secret)
	mac.Write([]byte("callback"))
	mac.Write(fields)
	return mac.Sum(nil)[:tokenCode]
}

// readToken says what a token is for; false: it is none of ours. The comparison takes a time that tells nothing of the
// right code.
func (who *identity) readToken(token string) (t callbackTarget, ok bool) {
	data, err := tokenText.DecodeString(strings.ToUpper(token))
	if err != nil || len(data) != tokenFields+tokenCode {
		return t, false
	}
	of := int(data[tokenFields-1])
	if of >= len(fsm.Steps()) {
		return t, false
	}
	t = callbackTarget{orderNo: int64(binary.BigEndian.Uint64(data)), step: fsm.Steps()[of],
		generation: int32(binary.BigEndian.Uint32(data[8+tokenHash:]))}
	copy(t.orderHash[:], data[8:])
	return t, hmac.Equal([]byte(token), []byte(who.token(t)))
}

// tokenLife is how long a token holds after the last call of its step, once the order has left the step. It is longer than
// any callbackTimeout: until then an answer may come late, and may be all that tells of an effect.
const tokenLife = 31 * 24 * time.Hour

// expired reports whether a token has ended with its step.
func (e *Engine) expired(of callbackTarget, row *db.AnswerTargetRow) bool {
	o := &row.Order
	stands := o.Generation == of.generation && o.Status == fsm.DoneIn(of.step)
	return !stands && e.now().Sub(row.CalledAt) > tokenLife
}
