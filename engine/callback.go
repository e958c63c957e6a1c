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

// CallbackResult is the answer of a provider that came by callback.
type CallbackResult struct {
	Outcome string // done, refused or not_done
	provider.CallbackText

	Header http.Header // of the request, and its body byte by byte: for its signature
	Body   []byte
}

// Receipt is what became of a callback.
type Receipt struct {
	Accepted bool   // it is the answer of the step
	Reason   string // why not
}

// InvalidCallback says what of a callback can't be kept.
type InvalidCallback struct{ Reason string }

func (b *InvalidCallback) Error() string { return "can't be kept: " + b.Reason }

// Answer takes the answer of a provider to a step that was called for. It may come before
// the call itself was answered, late, and more than once. An order that waits for it goes
// on, driven by this replica. An effect that the books say is absent or undone is undone.
// Errors: orders.ErrNotFound for a token that is not ours, has expired, or is of a step that was never called
// for; ErrSignature where the policy wants one; *InvalidCallback; orders.ErrStopping; orders.ErrUnavailable.
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
	rows, err := orders.Read(ctx, e.Orders, e.query.AnswerTarget, db.AnswerTargetParams{OrderNo: of.orderNo, Generation: of.generation, Step: string(of.step)})
	if err != nil {
		return Receipt{}, orders.Unavailable("read the order of a callback", err)
	}
	if len(rows) == 0 || of.orderHash != hashOf(rows[0].Order.OrderID) || e.expired(of, &rows[0]) {
		return Receipt{}, &orders.NotFound{What: "callback"}
	}
	key := (&provider.Call{Installation: who.id, OrderID: rows[0].Order.OrderID, Step: of.step, Generation: of.generation}).Key(provider.Do)
	secret, err := e.checkSigned(of, rows[0].CallPolicy, key, &t)
	if err != nil {
		return Receipt{}, err
	}
	paymentMethod, err := e.paymentMethodOf(ctx, &rows[0].Order, of.generation)
	if err != nil {
		return Receipt{}, err
	}
	text, err := t.Storable(provider.WithheldOf(append(who.tokens(of), paymentMethod, secret)...))
	if err != nil {
		return Receipt{}, &InvalidCallback{err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	// A caller who hangs up must not leave behind an order that was taken up and is not driven.
	return detached(ctx, &e.core, func(ctx context.Context) (Receipt, error) { return e.store(ctx, of, t.Outcome, text) })
}

// checkSigned returns ErrSignature for a callback that is not signed where the policy of the call wants it, else the
// secret of the step, empty where it has none that can be read. The id that is signed must be the key of the call: one
// secret signs the callbacks of all orders, and without the key, one of them could be sent again for another order.
func (e *Engine) checkSigned(of callbackTarget, version *int32, key string, t *CallbackResult) (secret string, err error) {
	p, runs := e.policies.byVersion(version)
	if !runs || p == nil {
		return "", fmt.Errorf("%w: this replica can't read the policy of the call", orders.ErrUnavailable)
	}
	how := p.Step(of.step)
	secret, unreadable := e.cfg.Bounds.ReadKey(how)
	if how.SignedCallbacks && (unreadable != nil || t.Header.Get("Webhook-Id") != key || signing.Verify(secret, t.Header, t.Body, e.now()) != nil) {
		return "", ErrSignature
	}
	return secret, nil
}

// store keeps the answer, takes up the order if it waits for it, and looks at what was kept: the first answer counts. An
// effect that is reported too late is undone. Once something was sent, it goes on when ctx has ended.
func (e *Engine) store(ctx context.Context, of callbackTarget, outcome string, text provider.CallbackText) (Receipt, error) {
	stored, err := e.storeAnswer(ctx, of, outcome, text)
	if err != nil && pg.FaultOf(err) != pg.Unknown {
		return Receipt{}, orders.Unavailable("store an answer", err)
	}
	ctx = e.ctx // what was sent has to be found out, even if the caller has gone
	kept, readErr := orders.Read(ctx, e.Orders, e.query.AnswerOf, db.AnswerOfParams{OrderNo: of.orderNo, Generation: of.generation, Step: string(of.step)})
	if readErr != nil {
		return Receipt{}, orders.Unavailable("store an answer", cmp.Or(err, readErr))
	}
	if !stored { // it may have been by a statement whose answer was lost: then the order is ours, and is not driven
		rows, err := e.readUntilKnown([]int64{of.orderNo}, true)
		if err != nil {
			return Receipt{}, orders.Unavailable("read order", err)
		}
		e.goOn("", rows)
	}
	same := kept.Outcome == outcome && kept.Reference == text.Reference && kept.Code == text.Code
	if err != nil && !same { // ours may still replace the one that is there: the sender has to send it again
		return Receipt{}, orders.Unavailable("store an answer", err)
	}
	if outcome == "done" && !(same && kept.ConsumedAt != nil) { // what was used is in the books
		if err := e.reportLate(ctx, of, lateEffect{"a callback", text.Reference}); err != nil {
			return Receipt{}, orders.Unavailable("store an answer", err) // it comes again
		}
	}
	if stored || same {
		return Receipt{Accepted: true}, nil
	}
	e.log.Warn("another answer than the first one", "order_no", of.orderNo, "step", of.step, "first", kept.Outcome, "now", outcome)
	return Receipt{Reason: fmt.Sprintf("answered before: %s, by %s", kept.Outcome, kept.Source)}, nil
}

// answerLimit bounds the work for a callback; the other side gives up about then.
const answerLimit = 10 * time.Second

// storeTries is how often a locked row is tried, half a second each.
const storeTries = 20

// storeAnswer stores an answer and takes the order up if it waits for it. It tries again
// while the row is locked. Not stored, without an error: it was answered before.
func (e *Engine) storeAnswer(ctx context.Context, of callbackTarget, outcome string, text provider.CallbackText) (stored bool, err error) {
	for try := 1; ; try++ {
		rows, err := e.query.AnswerStore(ctx, db.AnswerStoreParams{
			OrderNo: of.orderNo, Generation: of.generation, Step: string(of.step), Source: "callback", Outcome: outcome,
			Code: text.Code, Detail: text.Detail, Ref: text.Reference, Data: string(text.Data),
			WaitingIn: fsm.DoneIn(of.step), Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds(),
		})
		switch {
		case pg.FaultOf(err) == pg.Busy && try < storeTries:
			continue // it waited for the row half a second
		case err != nil:
			return false, err
		}
		e.goOn("", writtenOrders(rows))
		return len(rows) > 0, nil
	}
}

// ErrSignature: an event or a callback is not signed with the secret that its policy names, or not now.
var ErrSignature = errors.New("bad signature")

// StripeEvent takes an event of Stripe's as a hint: an order that waits at a step done by
// Stripe, and may have had its effect, asks Stripe at once instead of later. So does a refund. Nothing of the
// event itself is believed, and events about other orders do nothing. payload is the body
// byte by byte. Errors: ErrSignature, orders.ErrStopping, orders.ErrUnavailable.
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
	who, err := e.identify(ctx)
	if err != nil {
		return orders.Unavailable("read installation", err)
	}
	if hint.Installation != who.id {
		return nil
	}
	order, err := e.Orders.Get(ctx, hint.OrderID)
	if errors.Is(err, orders.ErrNotFound) {
		return nil
	}
	if err == nil && hint.RefundID != "" {
		return e.onRefundEvent(ctx, &order, hint, secret)
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

// stripeHint tries the secrets of the recently active policies: which of them signed it is known when the order is, and that is
// in the payload.
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

// concerns reports whether an order is to be taken up for a hint: it waits for a time or an
// answer, at a step of Stripe's whose effect is not known. A signature counts for the
// orders of the account it is of.
func (e *Engine) concerns(o *orders.Order, hint stripe.Hint, secret policy.Secret) bool {
	p, _ := e.policies.byVersion(o.Policy)
	return p != nil && p.Charge.WebhookSecret == secret && p.Step(o.Status.Step()).Executor == policy.Stripe &&
		o.Generation == hint.Generation && o.InDoubtSince != nil &&
		orders.HeldFor(o, fsm.HoldCallback, fsm.HoldRetry)
}

// tokenLife is how long a token holds after the last call of its step, once the order has left the step. It is longer than
// any callbackTimeout: until then an answer may come late, and may be all that tells of an effect.
const tokenLife = 31 * 24 * time.Hour

// expired reports whether a token has ended with its step.
func (e *core) expired(of callbackTarget, row *db.AnswerTargetRow) bool {
	o := &row.Order
	stands := o.Generation == of.generation && o.Status == fsm.DoneIn(of.step)
	return !stands && e.now().Sub(row.CalledAt) > tokenLife
}
