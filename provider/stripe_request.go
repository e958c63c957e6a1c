package provider

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/stripe/stripe-go/v85"

	"pawl/policy"
)

// maxStripeAnswer is how many bytes of an answer of Stripe are read. A payment intent with
// its charge has some thousand.
const maxStripeAnswer = 512 << 10

// stripeAPI makes requests to Stripe, each once: retries are the engine's, and it counts
// them. Only net/http sends a request again, with its key, when a kept connection is closed
// on it; that is counted too.
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
		if _, err := policy.ParseURL(s.URL); err != nil {
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
	r.sent, r.received = sent.Load(), c.now()
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
