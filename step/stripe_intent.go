package step

import (
	"context"
	"errors"
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

func (a *stripeAPI) confirm(ctx context.Context, c *Call, id string) stripeReply {
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *stripeReply) error {
		return r.tookIntent(client.V1PaymentIntents.Confirm(ctx, id, &stripe.PaymentIntentConfirmParams{Params: stripeParams(c, Confirm)}))
	})
}

func (a *stripeAPI) capture(ctx context.Context, c *Call, id string) stripeReply {
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *stripeReply) error {
		return r.tookIntent(client.V1PaymentIntents.Capture(ctx, id, &stripe.PaymentIntentCaptureParams{Params: stripeParams(c, Capture)}))
	})
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
	}, Cancel)
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
	}, Refund)
}

// again sends a request with another key when it is answered with the stored refusal of an
// earlier one, which stands for a day even if its cause has gone: the intent was
// processing, the account was empty. Only for what Stripe itself does at most once per
// intent: to cancel it, or to refund all that is left.
func again(request func(Operation) stripeReply, op Operation) stripeReply {
	r := request(op)
	if r.replayed && r.refused() != nil {
		return request("")
	}
	return r
}
