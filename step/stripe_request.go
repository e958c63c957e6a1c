package step

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"

	"github.com/stripe/stripe-go/v85"

	"pawl/policy"
)

// maxStripeAnswer is how many bytes of an answer of Stripe are read. A payment intent with
// its charge has some thousand.
const maxStripeAnswer = 512 << 10

// stripeAPI makes requests to Stripe, each exactly once: retries are the engine's, and it
// counts them.
type stripeAPI struct {
	secret   policy.Secret
	backends *stripe.Backends
}

func newStripeAPI(s *policy.Step) (*stripeAPI, error) {
	config := &stripe.BackendConfig{
		HTTPClient: &http.Client{
			Transport:     stripeTransport{newTransport(s.InFlight)},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull}, // it would log whole answers
		MaxNetworkRetries: stripe.Int64(0),
		EnableTelemetry:   stripe.Bool(false),
	}
	if s.URL != "" {
		if _, err := parseURL(s.URL); err != nil {
			return nil, err
		}
		config.URL = stripe.String(s.URL)
	}
	return &stripeAPI{s.Secret, stripe.NewBackendsWithConfig(config)}, nil
}

// stripeTransport bounds what is read of an answer, which the library reads to its end,
// and gives the length of a request, which the library does not know.
type stripeTransport struct{ base *http.Transport }

func (t stripeTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.GetBody != nil {
		body, err := request.GetBody()
		if err != nil {
			return nil, err
		}
		length, err := io.Copy(io.Discard, body)
		if err != nil {
			return nil, err
		}
		request = request.WithContext(request.Context()) // a copy: a RoundTripper must not change its argument
		request.ContentLength = length
	}
	response, err := t.base.RoundTrip(request)
	if err == nil {
		response.Body = http.MaxBytesReader(nil, response.Body, maxStripeAnswer)
	}
	return response, err
}

// stripeReply is what came of one request.
type stripeReply struct {
	answer
	fault    *stripe.Error // what Stripe says is wrong
	replayed bool          // the stored answer to the first request with this key; what it says of a state may be old
	failed   Result        // nil if the request was answered with what was asked for; Refused if Stripe will never do it for this key
	intent   *stripe.PaymentIntent
	refund   *stripe.Refund
}

// refused is the refusal of Stripe to do what was asked for, nil if there is none.
func (r *stripeReply) refused() *Refused {
	if refused, ok := r.failed.(Refused); ok {
		return &refused
	}
	return nil
}

// send makes one request and sees to it that its answer is one.
func (a *stripeAPI) send(ctx context.Context, c *Call, request func(context.Context, *stripe.Client, *stripeReply) error) stripeReply {
	secret, err := a.secret.Read()
	if err != nil {
		return stripeReply{failed: unsent("secret_unusable", err)}
	}
	var sent atomic.Int32
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Add(1) }, // before the first byte
	})
	r := stripeReply{answer: answer{withheld: []string{secret, c.PaymentMethod}}}
	err = request(ctx, stripe.NewClient(secret, stripe.WithBackends(a.backends)), &r)
	r.sent = sent.Load()
	if err != nil {
		r.err, r.ctxErr = err, ctx.Err()
	}
	if errors.As(err, &r.fault) {
		r.took(r.fault.LastResponse)
	}
	r.failed = r.failure()
	return r
}

func (r *stripeReply) took(response *stripe.APIResponse) {
	if response != nil {
		r.status, r.header = response.StatusCode, response.Header
		r.replayed = response.Header.Get("Idempotent-Replayed") == "true"
	}
}

func (r *stripeReply) tookIntent(intent *stripe.PaymentIntent, err error) error {
	if err != nil {
		return err
	}
	r.took(intent.LastResponse)
	if intent.ID == "" || intent.Object != "payment_intent" {
		return errors.New("the answer is not a payment intent")
	}
	r.intent = intent
	return nil
}

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
		if c.CustomerID != "" {
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
