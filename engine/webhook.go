package engine

import (
	"context"
	"errors"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
	"pawl/policy"
	"pawl/provider/stripe"
)

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
		return e.heedRefund(ctx, &order, hint, secret)
	}
	if err != nil || !e.heeds(&order, hint, secret) {
		return err
	}
	rows, err := e.query.LeasesTake(ctx, db.LeasesTakeParams{OrderNos: []int64{order.OrderNo}, Hold: *order.Hold,
		Owner: e.owner, LeaseSeconds: e.cfg.Lease.Seconds()})
	if err != nil {
		return orders.Unavailable("take up an order", err)
	}
	if e.driveClaimed(writtenOrders(rows)) > 0 {
		e.watches.add(nil) // a caller of ours may wait for it
	}
	return nil
}

// stripeHint tries the secrets of the policies of late: which of them signed it is known when the order is, and that is
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

// heeds reports whether an order is to be taken up for a hint: it waits for a time or an
// answer, at a step of Stripe's whose effect is not known. A signature counts for the
// orders of the account it is of.
func (e *Engine) heeds(o *orders.Order, hint stripe.Hint, secret policy.Secret) bool {
	p, _ := e.policies.byVersion(o.Policy)
	return p != nil && p.Charge.WebhookSecret == secret && p.Step(o.Status.Step()).Executor == policy.Stripe &&
		o.Generation == hint.Generation && o.InDoubtSince != nil &&
		o.Hold != nil && (*o.Hold == fsm.HoldCallback || *o.Hold == fsm.HoldRetry)
}
