package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/internal/provider/stripe"
	"pawl/internal/signing"
)

// CallbackResult is the answer of a provider by callback.
type CallbackResult struct {
	Outcome string // done, refused or not_done
	provider.CallbackText

	Header http.Header // of the request; with the exact body, for its signature
	Body   []byte
}

// Receipt says whether a callback was accepted.
type Receipt struct {
	Accepted bool   // as the answer of the step
	Reason   string // why not
}

// InvalidCallback is the error of a callback that can't be stored.
type InvalidCallback struct{ Reason string }

func (b *InvalidCallback) Error() string { return "can't be kept: " + b.Reason }

// Answer processes a provider's callback for a step that has a call. It may arrive before the call itself is answered,
// late, and more than once. If the order is waiting for it, this replica drives the order on. An effect that is absent
// or undone in the books is undone. Errors: orders.ErrNotFound for a token that is invalid, has expired, or belongs to
// a step without a call; ErrSignature if the policy requires one; *InvalidCallback; orders.ErrStopping;
// orders.ErrUnavailable.
func (e *Engine) Answer(ctx context.Context, token string, t CallbackResult) (Receipt, error) {
	if e.stopping.Load() {
		return Receipt{}, orders.ErrStopping
	}
	who, err := e.identify(ctx)
	if err != nil {
		return Receipt{}, orders.Unavailable("read installation", err)
	}
	of, ok := who.readToken(token)
	if !ok {
		return Receipt{}, &orders.NotFound{What: "callback"}
	}
	rows, err := orders.Read(ctx, e.Orders, e.query.AnswerTarget, db.AnswerTargetParams{
		OrderNo: of.orderNo, Generation: of.generation, Step: string(of.step)})
	if err != nil {
		return Receipt{}, orders.Unavailable("read the order of a callback", err)
	}
	if len(rows) == 0 || of.orderHash != hashOf(rows[0].Order.OrderID) || e.expired(of, &rows[0]) {
		return Receipt{}, &orders.NotFound{What: "callback"}
	}
	key := (&provider.Call{Installation: who.id, OrderID: rows[0].Order.OrderID, Step: of.step, Generation: of.generation}).Key(provider.Do)
	secret, err := e.checkSigned(of, &rows[0], key, &t)
	if err != nil {
		return Receipt{}, err
	}
	paymentMethod, err := e.paymentMethodOf(ctx, &rows[0].Order, of.generation)
	if err != nil {
		return Receipt{}, err
	}
	text, err := t.Storable(provider.NewSecrets(append(who.tokens(of), paymentMethod, secret)...))
	if err != nil {
		return Receipt{}, &InvalidCallback{err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	// An order must not be left claimed and without a driver when the caller disconnects.
	return detached(ctx, &e.core, func(ctx context.Context) (Receipt, error) { return e.store(ctx, of, t.Outcome, text) })
}

// checkSigned returns ErrSignature if a callback lacks the signature that the policy of the call requires, and
// otherwise the secret of the step, which is empty if there is none or it can't be read. The signed id must be the key
// of the call: one secret signs the callbacks of all orders, so that a callback could otherwise be replayed for another
// order.
func (e *Engine) checkSigned(of callbackTarget, row *db.AnswerTargetRow, key string, t *CallbackResult) (secret string, err error) {
	p, runs := e.policies.byVersion(row.CallPolicy)
	if !runs || p == nil {
		return "", fmt.Errorf("%w: this replica can't read the policy of the call", orders.ErrUnavailable)
	}
	how := p.Step(of.step, row.CallRoute)
	secret, unreadable := e.cfg.Bounds.ReadKey(how)
	if how.SignedCallbacks && (unreadable != nil || t.Header.Get("Webhook-Id") != key || signing.Verify(secret, t.Header, t.Body, e.now()) != nil) {
		return "", ErrSignature
	}
	return secret, nil
}

// store stores the answer, claims the order if it is waiting for it, and reads back what is stored: the first answer
// wins. A late effect is undone. Once a statement was sent, store continues even after ctx has ended.
func (e *Engine) store(ctx context.Context, of callbackTarget, outcome string, text provider.CallbackText) (Receipt, error) {
	stored, err := e.storeAnswer(ctx, of, outcome, text)
	if err != nil && pg.FaultOf(err) != pg.Unknown {
		return Receipt{}, orders.Unavailable("store an answer", err)
	}
	ctx = e.ctx // the outcome of the statement has to be known, even if the caller has disconnected
	kept, readErr := orders.Read(ctx, e.Orders, e.query.AnswerOf, db.AnswerOfParams{
		OrderNo: of.orderNo, Generation: of.generation, Step: string(of.step)})
	if readErr != nil {
		return Receipt{}, orders.Unavailable("store an answer", cmp.Or(err, readErr))
	}
	if !stored { // if the reply of the statement was lost, the order may be ours without a driver
		rows, err := e.readUntilKnown([]int64{of.orderNo}, true)
		if err != nil {
			return Receipt{}, orders.Unavailable("read order", err)
		}
		e.goOn("", rows)
	}
	same := kept.Outcome == outcome && kept.Reference == text.Reference && kept.Code == text.Code
	if err != nil && !same { // our answer may still replace the stored one, so the sender must retry
		return Receipt{}, orders.Unavailable("store an answer", err)
	}
	if outcome == "done" && !(same && kept.ConsumedAt != nil) { // a consumed answer is in the books
		if err := e.reportLate(ctx, of, lateEffect{"a callback", text.Reference}); err != nil {
			return Receipt{}, orders.Unavailable("store an answer", err) // the sender retries
		}
	}
	if stored || same {
		return Receipt{Accepted: true}, nil
	}
	e.log.Warn("differs from the first answer", "order_no", of.orderNo, "step", of.step, "first", kept.Outcome, "now", outcome)
	return Receipt{Reason: fmt.Sprintf("answered before: %s, by %s", kept.Outcome, kept.Source)}, nil
}

// answerLimit bounds the work for a callback. Senders time out at about this time.
const answerLimit = 10 * time.Second

// storeTries is how often a locked row is tried, for half a second each.
const storeTries = 20

// storeAnswer stores an answer and claims the order if it is waiting for it. It retries while the row is locked. It
// returns false if there was an answer before.
func (e *Engine) storeAnswer(ctx context.Context, of callbackTarget, outcome string, text provider.CallbackText) (stored bool, err error) {
	for try := 1; ; try++ {
		rows, err := e.query.AnswerStore(ctx, db.AnswerStoreParams{
			OrderNo: of.orderNo, Generation: of.generation, Step: string(of.step), Source: "callback", Outcome: outcome,
			Code: text.Code, Detail: text.Detail, Ref: text.Reference, Data: string(text.Data),
			WaitingIn: fsm.DoneIn(of.step), Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(),
		})
		switch {
		case pg.FaultOf(err) == pg.Busy && try < storeTries:
			continue // after half a second
		case err != nil:
			return false, err
		}
		e.goOn("", writtenOrders(rows))
		return len(rows) > 0, nil
	}
}

// ErrSignature is the error of an event or callback without a valid and recent signature.
var ErrSignature = errors.New("bad signature")

// StripeEvent uses an event of Stripe as a hint: an order or refund whose outcome at Stripe is unknown is looked up at
// once instead of later. The contents of the event are not trusted, and events about other orders have no effect. Only a
// dispute is recorded as the event reports it, because it moves nothing.
// payload is the exact body. Errors: ErrSignature, orders.ErrStopping, orders.ErrUnavailable.
func (e *Engine) StripeEvent(ctx context.Context, payload []byte, signature string) error {
	if e.stopping.Load() {
		return orders.ErrStopping
	}
	hint, secret, err := e.stripeHint(payload, signature)
	if errors.Is(err, stripe.ErrNotOurs) {
		return nil
	}
	if err != nil {
		return ErrSignature
	}
	if hint.Dispute != nil {
		return e.onDisputeEvent(ctx, hint.Dispute, secret)
	}
	who, err := e.identify(ctx)
	if err != nil {
		return orders.Unavailable("read installation", err)
	}
	if hint.Installation != who.id || !e.cfg.Cell.Has(hint.OrderID) {
		return nil
	}
	order, err := e.Orders.Get(ctx, hint.OrderID)
	if errors.Is(err, orders.ErrNotFound) {
		return nil
	}
	if err == nil && (hint.RefundID != "" || order.Status == fsm.Completed && orders.CapturedLater(&order)) {
		return e.onChargeEvent(ctx, &order, hint, secret)
	}
	if err != nil || !e.concerns(&order, hint, secret) {
		return err
	}
	rows, err := e.query.LeasesTake(ctx, db.LeasesTakeParams{OrderNos: []int64{order.OrderNo}, Hold: *order.Hold,
		Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds()})
	if err != nil {
		return orders.Unavailable("take up an order", err)
	}
	e.goOn("", writtenOrders(rows))
	return nil
}

// stripeHint verifies an event with the secrets of the recently active policies. Which secret is right depends on the
// order, which only the payload names.
func (e *Engine) stripeHint(payload []byte, signature string) (hint stripe.Hint, by policy.Secret, err error) {
	err = ErrSignature
	var notRead []string
	for _, name := range e.policies.webhookSecrets() {
		secret, unreadable := e.cfg.Bounds.ReadWebhookKey(name)
		if unreadable != nil {
			notRead = append(notRead, unreadable.Error())
			continue
		}
		hint, err = stripe.ReadEvent(payload, signature, secret, e.now())
		if err == nil || errors.Is(err, stripe.ErrNotOurs) {
			return hint, name, err
		}
	}
	e.badWebhooks.Do(func() { e.log.Warn("a webhook was refused", "error", err, "secrets_not_read", notRead) })
	return hint, "", err
}

// concerns reports whether a hint is about an order that waits for a retry or a callback at a Stripe step with an
// unknown effect. A signature is valid only for orders of the same account.
func (e *Engine) concerns(o *orders.Order, hint stripe.Hint, secret policy.Secret) bool {
	p, _ := e.policies.byVersion(o.Policy)
	return p != nil && stepFor(p, o, fsm.Charge).WebhookSecret == secret && stepFor(p, o, o.Status.Step()).Executor == policy.Stripe &&
		o.Generation == hint.Generation && o.InDoubtSince != nil &&
		orders.HeldFor(o, fsm.HoldCallback, fsm.HoldRetry)
}

// tokenLife is how long a token is valid after the last call of its step, once the order has left the step. It is
// longer than any callbackTimeout, because a late answer may be the only report of an effect.
const tokenLife = 31 * 24 * time.Hour

// expired reports whether a token has expired.
func (e *core) expired(of callbackTarget, row *db.AnswerTargetRow) bool {
	o := &row.Order
	stands := o.Generation == of.generation && o.Status == fsm.DoneIn(of.step)
	return !stands && e.now().Sub(row.CalledAt) > tokenLife
}
