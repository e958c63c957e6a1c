package stripe

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/stripe/stripe-go/v85"

	"pawl/provider"
)

// paramsOf has what the requests of an operation have in common. An operation without
// a key gets a random one from the library.
func paramsOf(c *provider.Call, op provider.Operation) stripe.Params {
	if op == "" {
		return stripe.Params{}
	}
	return stripe.Params{IdempotencyKey: stripe.String(c.Key(op))}
}

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
// Its parameters are a function of what does not change between calls: Stripe compares
// them. Without redirects an intent can be confirmed without an address to return to.
func (a *api) create(ctx context.Context, c *provider.Call, m money) reply {
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
		params := &stripe.PaymentIntentCreateParams{
			Params:        paramsOf(c, opCreate),
			Amount:        stripe.Int64(m.units),
			Currency:      stripe.String(m.currency),
			PaymentMethod: stripe.String(c.PaymentMethod),
			CaptureMethod: stripe.String(m.captureMethod),
			Metadata:      metadataOf(c),
			AutomaticPaymentMethods: &stripe.PaymentIntentCreateAutomaticPaymentMethodsParams{
				Enabled: stripe.Bool(true), AllowRedirects: stripe.String("never"),
			},
		}
		if strings.HasPrefix(c.CustomerID, "cus_") { // the shop may have names of its own for its customers
			params.Customer = stripe.String(c.CustomerID)
		}
		return r.tookIntent(client.V1PaymentIntents.Create(ctx, params))
	})
}

// confirm has an intent charged, or authorized. That it was declined is final.
func (a *api) confirm(ctx context.Context, c *provider.Call, id string) reply {
	return again(func(op provider.Operation) reply {
		return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
			return r.tookIntent(client.V1PaymentIntents.Confirm(ctx, id, &stripe.PaymentIntentConfirmParams{Params: paramsOf(c, op)}))
		})
	}, opConfirm, (*reply).stumbled)
}

func (a *api) capture(ctx context.Context, c *provider.Call, id string) reply {
	return again(func(op provider.Operation) reply {
		return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
			return r.tookIntent(client.V1PaymentIntents.Capture(ctx, id, &stripe.PaymentIntentCaptureParams{Params: paramsOf(c, op)}))
		})
	}, opCapture, (*reply).stumbled)
}

// read returns an intent as it is now, with its charge, which knows of refunds.
func (a *api) read(ctx context.Context, c *provider.Call, id string) reply {
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
		params := &stripe.PaymentIntentRetrieveParams{}
		params.AddExpand("latest_charge")
		return r.tookIntent(client.V1PaymentIntents.Retrieve(ctx, id, params))
	})
}

// cancel sees to it that an intent is never confirmed or captured.
func (a *api) cancel(ctx context.Context, c *provider.Call, id string) reply {
	return again(func(op provider.Operation) reply {
		return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
			intent, err := client.V1PaymentIntents.Cancel(ctx, id, &stripe.PaymentIntentCancelParams{Params: paramsOf(c, op)})
			if err = r.tookIntent(intent, err); err == nil && intent.Status != stripe.PaymentIntentStatusCanceled {
				return errors.New("the answer is not a canceled payment intent")
			}
			return err
		})
	}, opCancel, (*reply).stale)
}

// giveBack refunds what is left of an intent.
func (a *api) giveBack(ctx context.Context, c *provider.Call, id string) reply {
	return again(func(op provider.Operation) reply {
		return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
			refund, err := client.V1Refunds.Create(ctx, &stripe.RefundCreateParams{
				Params: paramsOf(c, op), PaymentIntent: stripe.String(id), Metadata: metadataOf(c),
			})
			if err != nil {
				return err
			}
			r.took(refund.LastResponse)
			if refund.ID == "" || refund.Object != "refund" {
				return errors.New("the answer is not a refund")
			}
			r.refund = refund
			return nil
		})
	}, opRefund, (*reply).stale)
}

// again sends a request with another key when the stored answer to its own is of no use.
// Only for what Stripe itself does at most once per intent: to charge it, to capture it, to
// cancel it, or to refund all that is left. A canceled intent can be neither charged nor
// captured, with whatever key.
func again(request func(provider.Operation) reply, op provider.Operation, useless func(*reply) bool) reply {
	r := request(op)
	if useless(&r) {
		return request("")
	}
	return r
}

// stale is the refusal of an earlier request with the same key, which stands for a day even
// if its cause has gone: the intent was processing, the account was empty.
func (r *reply) stale() bool { return r.replayed && r.refused() != nil }

// stumbled is that an earlier request went wrong inside Stripe, which its key will be told
// for a day whatever it did.
func (r *reply) stumbled() bool {
	return r.replayed && r.Status >= http.StatusInternalServerError
}
