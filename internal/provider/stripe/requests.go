package stripe

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/stripe/stripe-go/v85"

	"pawl/internal/provider"
)

// metadataOf is how we find back from an object of Stripe's to our order.
func metadataOf(c *provider.Call) map[string]string {
	return map[string]string{
		"pawl_installation": c.Installation.String(),
		"pawl_order":        c.OrderID,
		"pawl_generation":   strconv.Itoa(int(c.Generation)),
		"pawl_item":         c.Item,
	}
}

// create makes the payment intent of a call, or is answered with the one that was made.
func (a *api) create(ctx context.Context, c *provider.Call, params *stripe.PaymentIntentCreateParams) reply {
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
		return r.tookIntent(client.V1PaymentIntents.Create(ctx, params))
	})
}

// read returns an intent as it is now, with its charge, which knows of refunds.
func (a *api) read(ctx context.Context, c *provider.Call, id string) reply {
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
		params := &stripe.PaymentIntentRetrieveParams{}
		params.AddExpand("latest_charge")
		return r.tookIntent(client.V1PaymentIntents.Retrieve(ctx, id, params))
	})
}

// confirm has an intent charged, or authorized. That it was declined is final.
func (a *api) confirm(ctx context.Context, c *provider.Call, id string) reply {
	return a.again(ctx, c, repeatable{opConfirm, (*reply).stumbled}, func(ctx context.Context, client *stripe.Client, with stripe.Params, r *reply) error {
		return r.tookIntent(client.V1PaymentIntents.Confirm(ctx, id, &stripe.PaymentIntentConfirmParams{Params: with}))
	})
}

func (a *api) capture(ctx context.Context, c *provider.Call, id string) reply {
	return a.again(ctx, c, repeatable{opCapture, (*reply).stumbled}, func(ctx context.Context, client *stripe.Client, with stripe.Params, r *reply) error {
		return r.tookIntent(client.V1PaymentIntents.Capture(ctx, id, &stripe.PaymentIntentCaptureParams{Params: with}))
	})
}

// cancel sees to it that an intent is never confirmed or captured.
func (a *api) cancel(ctx context.Context, c *provider.Call, id string) reply {
	return a.again(ctx, c, repeatable{opCancel, (*reply).stale}, func(ctx context.Context, client *stripe.Client, with stripe.Params, r *reply) error {
		intent, err := client.V1PaymentIntents.Cancel(ctx, id, &stripe.PaymentIntentCancelParams{Params: with})
		if err = r.tookIntent(intent, err); err == nil && intent.Status != stripe.PaymentIntentStatusCanceled {
			return errors.New("the answer is not a canceled payment intent")
		}
		return err
	})
}

// giveBack refunds what is left of an intent.
func (a *api) giveBack(ctx context.Context, c *provider.Call, id string) reply {
	return a.again(ctx, c, repeatable{opRefund, (*reply).stale}, func(ctx context.Context, client *stripe.Client, with stripe.Params, r *reply) error {
		return r.tookRefund(client.V1Refunds.Create(ctx, &stripe.RefundCreateParams{Params: with, PaymentIntent: stripe.String(id), Metadata: metadataOf(c)}))
	})
}

// repeatable is a request that may be sent with another key, if the stored answer to its own is useless.
type repeatable struct {
	operation provider.Operation
	useless   func(*reply) bool
}

// again sends a request, and once more with another key, a random one of the library's, when the stored answer to its own is
// of no use. Only for what Stripe itself does at most once per intent: to charge it, to capture it, to
// cancel it, or to refund all that is left. A canceled intent can be neither charged nor
// captured, with whatever key.
func (a *api) again(ctx context.Context, c *provider.Call, once repeatable,
	request func(context.Context, *stripe.Client, stripe.Params, *reply) error) (r reply) {
	for _, with := range []stripe.Params{{IdempotencyKey: stripe.String(c.Key(once.operation))}, {}} {
		r = a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error { return request(ctx, client, with, r) })
		if !once.useless(&r) {
			break
		}
	}
	return r
}

// stale is the refusal of an earlier request with the same key, which stands for a day even
// if its cause has gone: the intent was processing, the account was empty.
func (r *reply) stale() bool { return r.replayed && r.refused() }

// stumbled is that an earlier request went wrong inside Stripe, which its key will be told
// for a day whatever it did.
func (r *reply) stumbled() bool {
	return r.replayed && r.Status >= http.StatusInternalServerError
}
