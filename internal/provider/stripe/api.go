package stripe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/stripe/stripe-go/v85"

	"pawl/internal/policy"
	"pawl/internal/provider"
)

// maxAnswer limits the bytes of an answer. A payment intent with its charge has some thousand.
const maxAnswer = 512 << 10

// api sends requests to Stripe, each once: the engine retries and counts. Only net/http repeats a request, with its
// key, if an idle connection is closed under it; that is counted, too.
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

// transport limits the size of an answer, which the library reads to its end, and sets the length of a request, which
// the library does not.
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

type reply struct {
	provider.Exchange
	fault    *stripe.Error   // the error in the answer
	replayed bool            // the stored answer to an earlier request with this key, whose state may be outdated
	failed   provider.Result // nil: the request succeeded; Refused: Stripe will never do it for this key
	intent   *stripe.PaymentIntent
	refund   *stripe.Refund
}

// refused reports whether Stripe will never do what was requested.
func (r *reply) refused() bool {
	_, refused := r.failed.(provider.Refused)
	return refused
}

// send sends a request and checks its answer.
func (a *api) send(ctx context.Context, c *provider.Call,
	request func(context.Context, *stripe.Client, *reply) error,
) reply {
	secret, err := a.bounds.ReadKey(&a.how)
	if err != nil {
		return reply{failed: provider.Unsent("secret_unusable", err)}
	}
	secrets := []string{secret}
	if a.how.WebhookSecret != "" {
		hook, _ := a.bounds.ReadWebhookKey(a.how.WebhookSecret) // only to mask it; empty on an error
		secrets = append(secrets, hook)
	}
	var r reply
	r.Perform(ctx, c, secrets, func(ctx context.Context) error {
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

// metadataOf identifies the order in objects of Stripe.
func metadataOf(c *provider.Call) map[string]string {
	data := map[string]string{
		"pawl_installation": c.Installation.String(),
		"pawl_order":        c.OrderID,
		"pawl_generation":   strconv.Itoa(int(c.Generation)),
	}
	if c.Lines == nil {
		data["pawl_item"] = c.Item
	}
	return data
}

// create creates the payment intent of a call, or returns the one that an earlier request created.
func (a *api) create(ctx context.Context, c *provider.Call, params *stripe.PaymentIntentCreateParams) reply {
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
		return r.tookIntent(client.V1PaymentIntents.Create(ctx, params))
	})
}

// read returns the current state of an intent, with its charge, which has the refunds.
func (a *api) read(ctx context.Context, c *provider.Call, id string) reply {
	return a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
		params := &stripe.PaymentIntentRetrieveParams{}
		params.AddExpand("latest_charge")
		return r.tookIntent(client.V1PaymentIntents.Retrieve(ctx, id, params))
	})
}

// confirm charges or authorizes an intent. A decline is final.
func (a *api) confirm(ctx context.Context, c *provider.Call, id string) reply {
	return a.again(ctx, c, repeatable{opConfirm, (*reply).stumbled},
		func(ctx context.Context, client *stripe.Client, with stripe.Params, r *reply) error {
			return r.tookIntent(client.V1PaymentIntents.Confirm(ctx, id, &stripe.PaymentIntentConfirmParams{Params: with}))
		})
}

func (a *api) capture(ctx context.Context, c *provider.Call, id string) reply {
	return a.again(ctx, c, repeatable{opCapture, (*reply).stumbled},
		func(ctx context.Context, client *stripe.Client, with stripe.Params, r *reply) error {
			return r.tookIntent(client.V1PaymentIntents.Capture(ctx, id, &stripe.PaymentIntentCaptureParams{Params: with}))
		})
}

// cancel cancels an intent, so that it can never be confirmed or captured. A void says why; an undo does not.
func (a *api) cancel(ctx context.Context, c *provider.Call, id string) reply {
	return a.again(ctx, c, repeatable{opCancel, (*reply).stale},
		func(ctx context.Context, client *stripe.Client, with stripe.Params, r *reply) error {
			params := &stripe.PaymentIntentCancelParams{Params: with}
			if c.OperationKind == provider.Void {
				params.CancellationReason = stripe.String(string(stripe.PaymentIntentCancellationReasonAbandoned))
			}
			intent, err := client.V1PaymentIntents.Cancel(ctx, id, params)
			if err = r.tookIntent(intent, err); err == nil && intent.Status != stripe.PaymentIntentStatusCanceled {
				return errors.New("the answer is not a canceled payment intent")
			}
			return err
		})
}

func (a *api) giveBack(ctx context.Context, c *provider.Call, id string) reply {
	return a.again(ctx, c, repeatable{opRefund, (*reply).stale},
		func(ctx context.Context, client *stripe.Client, with stripe.Params, r *reply) error {
			return r.tookRefund(client.V1Refunds.Create(ctx, &stripe.RefundCreateParams{
				Params: with, PaymentIntent: stripe.String(id), Metadata: metadataOf(c)}))
		})
}

// repeatable is a request that may be repeated with another key, if the stored answer to the first is useless.
type repeatable struct {
	operation provider.Operation
	useless   func(*reply) bool
}

// again sends a request, and if its stored answer is useless, once more with a random key of the library. Only for what
// Stripe does at most once per intent under any key: confirm, capture, cancel, or refund all that is left. A canceled
// intent can be neither confirmed nor captured.
func (a *api) again(ctx context.Context, c *provider.Call, once repeatable,
	request func(context.Context, *stripe.Client, stripe.Params, *reply) error,
) (r reply) {
	for _, with := range []stripe.Params{{IdempotencyKey: stripe.String(c.Key(once.operation))}, {}} {
		r = a.send(ctx, c, func(ctx context.Context, client *stripe.Client, r *reply) error {
			return request(ctx, client, with, r)
		})
		if !once.useless(&r) {
			break
		}
	}
	return r
}

// stale reports a stored refusal, which Stripe repeats for a day even if its cause is gone: the intent was processing,
// the account was empty.
func (r *reply) stale() bool { return r.replayed && r.refused() }

// stumbled reports a stored error inside Stripe, which it repeats for a day, whatever the request did.
func (r *reply) stumbled() bool {
	return r.replayed && r.Status >= http.StatusInternalServerError
}

// failure is the result of a request that did not succeed, by itself, or nil. It follows
// https://docs.stripe.com/api/errors and https://docs.stripe.com/error-low-level.
func (r *reply) failure() provider.Result {
	switch {
	case r.Err == nil:
		return nil
	case r.fault != nil:
		return r.faulty()
	case r.unreadable():
		return provider.Unknown{Code: "answer_unreadable", Detail: "the answer is not one of Stripe"}
	}
	return r.Lost()
}

// unreadable reports whether there was an answer, but not one of Stripe.
func (r *reply) unreadable() bool {
	var network net.Error // includes requests without an answer
	return r.Sent > 0 && r.Ended == nil && !errors.As(r.Err, &network) && !errors.Is(r.Err, io.ErrUnexpectedEOF)
}

func (r *reply) faulty() provider.Result {
	code, detail := r.Text(faultCode(r.fault)), r.Text(r.fault.Msg)
	switch {
	case r.Status == http.StatusTooManyRequests: // limits and locks come first
		return r.notDone(provider.Retry{Code: cmp.Or(code, "rate_limit"), Detail: detail, After: r.RetryAfter()})
	case r.Status == http.StatusUnauthorized || r.Status == http.StatusForbidden:
		return r.notDone(provider.Retry{Code: "unauthorized", Detail: detail, After: r.RetryAfter(), Counts: true})
	case r.fault.Type == stripe.ErrorTypeIdempotency: // the key belongs to other parameters
		return provider.Unknown{Code: code, Detail: detail, After: r.RetryAfter()}
	case r.Status == http.StatusBadRequest || r.Status == http.StatusPaymentRequired || r.Status == http.StatusNotFound:
		return provider.Refused{Code: cmp.Or(code, "refused"), Detail: detail}
	case r.Status >= http.StatusInternalServerError && r.replayed: // it failed halfway, and this key gets no other answer
		return provider.Refused{Code: cmp.Or(code, "http_"+strconv.Itoa(r.Status)), Detail: detail}
	}
	return provider.Unknown{Code: cmp.Or(code, "http_"+strconv.Itoa(r.Status)), Detail: detail, After: r.RetryAfter()}
}

// notDone is the result of a request that did nothing. If it was sent on several connections, the answer belongs to the
// last one, and an earlier one may have done it.
func (r *reply) notDone(retry provider.Retry) provider.Result {
	if r.Sent > 1 {
		return provider.InDoubt(retry)
	}
	return retry
}

// faultCode is the most specific code of an error: why the bank declined, or else that of Stripe.
func faultCode(fault *stripe.Error) string {
	return cmp.Or(string(fault.DeclineCode), string(fault.Code), string(fault.Type))
}

// refunded reports whether nothing is left of the money that was taken.
func refunded(intent *stripe.PaymentIntent) bool {
	return intent.LatestCharge != nil && intent.LatestCharge.Refunded
}

// declined says why an intent was not charged: by the error of the request, or by that of the last attempt to pay.
func (r *reply) declined(intent *stripe.PaymentIntent, otherwise string) provider.Refused {
	fault := r.fault
	if fault == nil || fault.Code == stripe.ErrorCodePaymentIntentUnexpectedState { // says what it has become, not why
		fault = intent.LastPaymentError
	}
	if fault == nil {
		return provider.Refused{Code: otherwise, Detail: r.Text(string(intent.CancellationReason))}
	}
	return provider.Refused{Code: r.Text(cmp.Or(faultCode(fault), otherwise)), Detail: r.Text(fault.Msg)}
}

// actionOf is what the customer must do: open a page, or use the client secret with Stripe's library in the browser.
func actionOf(intent *stripe.PaymentIntent) json.RawMessage {
	var action struct {
		Type         string `json:"type"`
		URL          string `json:"url,omitempty"`
		ClientSecret string `json:"clientSecret,omitempty"`
	}
	action.ClientSecret = intent.ClientSecret
	if next := intent.NextAction; next != nil {
		action.Type = string(next.Type)
		if next.RedirectToURL != nil {
			action.URL, action.ClientSecret = next.RedirectToURL.URL, ""
		}
	}
	text, _ := json.Marshal(action) // strings can always be encoded
	return text
}

// processing is the result while Stripe processes an intent: an event will say when it is done, or it must be looked up
// again.
func (a *api) processing(intent *stripe.PaymentIntent) provider.Result {
	if a.how.WebhookSecret != "" {
		return provider.Waiting{Reference: intent.ID}
	}
	return provider.Unknown{Code: provider.InProgress, Detail: "the payment is being processed", Reference: intent.ID}
}

// unexpected is the result of a state that no request here leads to.
func unexpected(intent *stripe.PaymentIntent) provider.Result {
	return provider.Unknown{Code: "unexpected_state", Detail: provider.Text("the payment intent is " + string(intent.Status))}
}
