package provider

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/stripe/stripe-go/v85"
)

// stripeParams has what the requests of an operation have in common. An operation without
// a key gets a random one from the library.
func stripeParams(c *Call, op Operation) stripe.Params {
	if op == "" {
		return stripe.Params{}
	}
	return stripe.Params{IdempotencyKey: stripe.String(c.Key(op))}
}

// stripeMetadata is how we find back from an object of Stripe's to our order.
func stripeMetadata(c *Call) map[string]string {
	return map[string]string{
		"pawl_installation": c.Installation.String(),
		"pawl_order":        c.OrderID,
		"pawl_generation":   strconv.Itoa(int(c.Generation)),
		"pawl_item":         c.Item,
	}
}

// create makes the payment intent of a call, or is answered with the one that was made.
// Its parameters are a function of what does not change between attempts: Stripe compares
// them. Without redirects an intent can be confirmed without an address to return to.
func (a *stripeAPI) create(ctx context.Context, c *Call, charge stripeOrder) stripeReply {
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *stripeReply) error {
		params := &stripe.PaymentIntentCreateParams{
			Params:        stripeParams(c, Create),
			Amount:        stripe.Int64(charge.units),
			Currency:      stripe.String(charge.currency),
			PaymentMethod: stripe.String(c.PaymentMethod),
			CaptureMethod: stripe.String(charge.captureMethod),
			Metadata:      stripeMetadata(c),
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
func (a *stripeAPI) confirm(ctx context.Context, c *Call, id string) stripeReply {
	return again(func(op Operation) stripeReply {
		return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *stripeReply) error {
			return r.tookIntent(client.V1PaymentIntents.Confirm(ctx, id, &stripe.PaymentIntentConfirmParams{Params: stripeParams(c, op)}))
		})
	}, Confirm, (*stripeReply).stumbled)
}

func (a *stripeAPI) capture(ctx context.Context, c *Call, id string) stripeReply {
	return again(func(op Operation) stripeReply {
		return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *stripeReply) error {
			return r.tookIntent(client.V1PaymentIntents.Capture(ctx, id, &stripe.PaymentIntentCaptureParams{Params: stripeParams(c, op)}))
		})
	}, Capture, (*stripeReply).stumbled)
}

// read returns an intent as it is now, with its charge, which knows of refunds.
func (a *stripeAPI) read(ctx context.Context, c *Call, id string) stripeReply {
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *stripeReply) error {
		params := &stripe.PaymentIntentRetrieveParams{}
		params.AddExpand("latest_charge")
		return r.tookIntent(client.V1PaymentIntents.Retrieve(ctx, id, params))
	})
}

// cancel sees to it that an intent is never confirmed or captured.
func (a *stripeAPI) cancel(ctx context.Context, c *Call, id string) stripeReply {
	return again(func(op Operation) stripeReply {
		return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *stripeReply) error {
			intent, err := client.V1PaymentIntents.Cancel(ctx, id, &stripe.PaymentIntentCancelParams{Params: stripeParams(c, op)})
			if err = r.tookIntent(intent, err); err == nil && intent.Status != stripe.PaymentIntentStatusCanceled {
				return errors.New("the answer is not a canceled payment intent")
			}
			return err
		})
	}, Cancel, (*stripeReply).stale)
}

// giveBack refunds what is left of a charge.
func (a *stripeAPI) giveBack(ctx context.Context, c *Call, id string) stripeReply {
	return again(func(op Operation) stripeReply {
		return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *stripeReply) error {
			refund, err := client.V1Refunds.Create(ctx, &stripe.RefundCreateParams{
				Params: stripeParams(c, op), PaymentIntent: stripe.String(id), Metadata: stripeMetadata(c),
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
	}, Refund, (*stripeReply).stale)
}

// again sends a request with another key when the stored answer to its own is of no use.
// Only for what Stripe itself does at most once per intent: to charge it, to capture it, to
// cancel it, or to refund all that is left. A canceled intent can be neither charged nor
// captured, with whatever key.
func again(request func(Operation) stripeReply, op Operation, useless func(*stripeReply) bool) stripeReply {
	r := request(op)
	if useless(&r) {
		return request("")
	}
	return r
}

// stale is the refusal of an earlier request with the same key, which stands for a day even
// if its cause has gone: the intent was processing, the account was empty.
func (r *stripeReply) stale() bool { return r.replayed && r.refused() != nil }

// stumbled is that an earlier request went wrong inside Stripe, which its key will be told
// for a day whatever it did.
func (r *stripeReply) stumbled() bool {
	return r.replayed && r.status >= http.StatusInternalServerError
}
