package stripe

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/stripe/stripe-go/v85"

	"pawl/internal/policy"
	"pawl/internal/provider"
)

// maxAnswer is how many bytes of an answer of Stripe are read. A payment intent with
// its charge has some thousand.
const maxAnswer = 512 << 10

// api makes requests to Stripe, each once: retries are the engine's, and it counts
// them. Only net/http sends a request again, with its key, when a kept connection is closed
// on it; that is counted too.
type api struct {
	how      policy.Step
	bounds   policy.Bounds
	backends *stripe.Backends
}

func newAPI(s *policy.Step, within policy.Bounds) *api {
	config := &stripe.BackendConfig{
		HTTPClient: &http.Client{
			Transport:     transport{provider.NewTransport(s.InFlight, within.AllowPrivate)},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull}, // it would log whole answers
		MaxNetworkRetries: stripe.Int64(0),
		EnableTelemetry:   stripe.Bool(false),
	}
	if s.URL != "" {
		config.URL = stripe.String(s.URL)
	}
	return &api{*s, within, stripe.NewBackendsWithConfig(config)}
}

// transport bounds what is read of an answer, which the library reads to its end,
// and gives the length of a request, which the library does not know.
type transport struct{ base *http.Transport }

func (t transport) RoundTrip(request *http.Request) (*http.Response, error) {
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
		response.Body = http.MaxBytesReader(nil, response.Body, maxAnswer)
	}
	return response, err
}

// reply is what came of one request.
type reply struct {
	provider.Exchange
	fault    *stripe.Error   // what Stripe says is wrong
	replayed bool            // the stored answer to the first request with this key; what it says of a state may be old
	failed   provider.Result // nil if the request was answered with what was asked for; Refused if Stripe will never do it for this key
	intent   *stripe.PaymentIntent
	refund   *stripe.Refund
}

// refused reports whether Stripe will never do what was asked for.
func (r *reply) refused() bool {
	_, refused := r.failed.(provider.Refused)
	return refused
}

// send makes one request and sees to it that its answer is one.
func (a *api) send(ctx context.Context, c *provider.Call, request func(context.Context, *stripe.Client, *reply) error) reply {
	secret, err := a.bounds.ReadKey(&a.how)
	if err != nil {
		return reply{failed: provider.Unsent("secret_unusable", err)}
	}
	withheld := []string{secret}
	if a.how.WebhookSecret != "" {
		hook, _ := a.bounds.ReadWebhookKey(a.how.WebhookSecret) // it is not needed here, and empty if it can't be read
		withheld = append(withheld, hook)
	}
	var r reply
	r.Perform(ctx, c, withheld, func(ctx context.Context) error {
		return request(ctx, stripe.NewClient(secret, stripe.WithBackends(a.backends)), &r)
	})
	if errors.As(r.Err, &r.fault) {
		r.took(r.fault.LastResponse)
	}
	r.failed = r.failure()
	return r
}

func (r *reply) took(response *stripe.APIResponse) {
	if response != nil {
		r.Status, r.Header = response.StatusCode, response.Header
		r.replayed = response.Header.Get("Idempotent-Replayed") == "true"
	}
}

func (r *reply) tookIntent(intent *stripe.PaymentIntent, err error) error {
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
