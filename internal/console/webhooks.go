package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"pawl/client"
)

func (v *visit) showEndpoints() error {
	list, err := v.api.ListWebhookEndpoints(v.r.Context())
	if err != nil {
		return err
	}
	return v.show("webhooks", page{Title: "Webhooks", Data: list.Endpoints})
}

// endpointPage is an endpoint with a page of its deliveries.
type endpointPage struct {
	*client.WebhookEndpoint
	Tasks      []task
	Deliveries []client.Delivery
	Problem    *client.Problem // with the filter
	States     []string
	Exhausted  bool   // something was given up
	Next       string // the URL of the next page; empty on the last one
}

var deliveryStates = []string{
	string(client.DeliveryStatePending), string(client.DeliveryStateDelivered), string(client.DeliveryStateExhausted), string(client.DeliveryStateSkipped),
}

func (v *visit) showEndpoint() error {
	ctx, id := v.r.Context(), v.query("id")
	endpoint, err := v.api.GetWebhookEndpoint(ctx, id)
	if err != nil {
		return err
	}
	p := endpointPage{WebhookEndpoint: endpoint, Tasks: v.offered(v.endpointTasks(endpoint)...), States: deliveryStates}
	list, err := v.api.ListDeliveries(ctx, id, &client.ListDeliveriesParams{
		State: client.ListDeliveriesParamsState(v.query("state")), OrderID: v.query("orderId"), Item: v.query("item"), Cursor: v.query("cursor")})
	if p.Problem = refusedInput(err); p.Problem != nil {
		list = &client.DeliveryPage{}
	} else if err != nil {
		return err
	}
	p.Deliveries, p.Next = list.Deliveries, v.behind(list.NextCursor)
	given, err := v.api.ListDeliveries(ctx, id, &client.ListDeliveriesParams{State: client.ListDeliveriesParamsStateExhausted, Limit: 1})
	if err != nil {
		return err
	}
	p.Exhausted = len(given.Deliveries) > 0
	return v.show("webhook", page{Title: "Webhook endpoint " + id, Data: p})
}

// with is the URL of the page with another value of a parameter.
func (v *visit) with(name, value string) string {
	query := v.r.URL.Query()
	query.Set(name, value)
	return address(v.r.URL.Path, query)
}

// behind is the URL of the page behind a cursor; empty, as that of the last page is: there is none.
func (v *visit) behind(cursor string) string {
	if cursor == "" {
		return ""
	}
	return v.with("cursor", cursor)
}

// endpointURL is the page of an endpoint, or of a task that it is asked for.
func endpointURL(task, id string) string {
	return address("/console/webhook"+task, url.Values{"id": {id}})
}

func (v *visit) doEndpoint() error {
	if v.r.URL.Path == "/console/webhook/new" {
		return v.perform(v.newEndpoint())
	}
	endpoint, err := v.api.GetWebhookEndpoint(v.r.Context(), v.query("id"))
	if err != nil {
		return err
	}
	return v.perform(v.endpointTasks(endpoint)...)
}

// deliveryPage is a delivery with what can be done about it.
type deliveryPage struct {
	*client.Delivery
	Endpoint string
	Tasks    []task
}

func (v *visit) delivery() (*deliveryPage, error) {
	no, err := strconv.ParseInt(v.query("delivery"), 10, 64)
	if err != nil {
		return nil, errNoPage
	}
	p := &deliveryPage{Endpoint: v.query("endpoint")}
	p.Delivery, err = v.api.GetDelivery(v.r.Context(), p.Endpoint, no)
	return p, err
}

func (v *visit) showDelivery() error {
	p, err := v.delivery()
	if err != nil {
		return err
	}
	p.Tasks = v.offered(v.deliveryTasks(p)...)
	return v.show("delivery", page{Title: "Delivery " + strconv.FormatInt(p.Delivery.Delivery, 10), Data: p})
}

func (v *visit) doDelivery() error {
	p, err := v.delivery()
	if err != nil {
		return err
	}
	return v.perform(v.deliveryTasks(p)...)
}

// url is the page of a delivery, or of a task that it is asked for.
func (p *deliveryPage) url(task string) string {
	return address("/console/delivery"+task, url.Values{"endpoint": {p.Endpoint}, "delivery": {strconv.FormatInt(p.Delivery.Delivery, 10)}})
}

func (v *visit) deliveryTasks(p *deliveryPage) []task {
	no := p.Delivery.Delivery
	done := v.backTo(p.url(""))
	finished := p.State != client.DeliveryStatePending && p.State != client.DeliveryStateExhausted
	return []task{{
		Label: "Send it again", Link: p.url("/resend"), operation: "resendDelivery",
		asks: confirmation{Heading: "Send the delivery again?", Button: "Send it again", Back: p.url(""), Fields: []field{whyField},
			Notes: []string{"As if it was new, with the same id: a receiver that has it already can tell. Those behind it of the same order or item wait for it."}},
		do: func(form url.Values) error {
			return done(v.api.ResendDelivery(v.r.Context(), p.Endpoint, no, nil, client.VerbBody{Reason: form.Get("reason"), RequestID: form.Get("requestId")}))
		},
	}, {
		Label: "Skip it", Link: p.url("/skip"), operation: "skipDelivery", hidden: finished,
		asks: confirmation{Heading: "Skip the delivery?", Button: "Skip it", Danger: true, Back: p.url(""), Fields: []field{needed(whyField)},
			Notes: []string{"It is not sent any more, and those behind it of the same order or item go on. The receiver misses an event."}},
		do: func(form url.Values) error {
			return done(v.api.SkipDelivery(v.r.Context(), p.Endpoint, no, nil, client.SkipBody{Reason: form.Get("reason"), RequestID: form.Get("requestId")}))
		},
	}}
}

// whyField is the field of a form that asks why.
var whyField = field{Name: "reason", Label: "Why", Help: "It is kept, with your name."}

func needed(f field) field {
	f.Required = true
	return f
}

// newEndpoint makes an endpoint. Its secret is in no other answer, so the page that shows it is the answer to the form; if that is
// sent again, the API knows the request, and answers with the same secret.
func (v *visit) newEndpoint() task {
	return task{
		Link: "/console/webhook/new", operation: "createWebhookEndpoint",
		asks: confirmation{Heading: "New webhook endpoint", Button: "Make it", Back: "/console/webhooks", Fields: endpointFields(&client.WebhookEndpoint{}),
			Notes: []string{"Every event from now on is posted to the URL, until it answers with 2xx: those of an order in order."}},
		do: func(form url.Values) error {
			made, err := v.api.CreateWebhookEndpoint(v.r.Context(), nil, endpointBody(form))
			if err != nil {
				return err
			}
			return v.tellSecret("The endpoint is made", made)
		},
	}
}

func (v *visit) tellSecret(heading string, e *client.WebhookEndpoint) error {
	return v.tell(told{Heading: heading, Text: e.Secret, Back: endpointURL("", e.ID),
		Notes: []string{"Give this secret to the receiver, which checks the signatures of deliveries with it. It is not shown again."}})
}

func endpointFields(e *client.WebhookEndpoint) []field {
	return []field{
		{Name: "url", Label: "URL", Type: "url", Value: e.URL, Required: true, Help: "Where events are posted to: https. Whoever may read sees it, so no secret belongs into it."},
		{Name: "description", Label: "What it is for", Value: e.Description},
		{Name: "types", Label: "Types of events", Type: "textarea", Value: strings.Join(e.Types, "\n"), Help: "One in a line, such as order.completed, or order.* for all that begin so. Empty: all."},
		whyField,
	}
}

func endpointBody(form url.Values) client.WebhookEndpointBody {
	return client.WebhookEndpointBody{
		URL: form.Get("url"), Description: form.Get("description"), Types: strings.Fields(form.Get("types")),
		Reason: form.Get("reason"), RequestID: form.Get("requestId"),
	}
}

// endpointTasks are what people do with an endpoint, in the order in which its page offers them.
func (v *visit) endpointTasks(e *client.WebhookEndpoint) []task {
	return []task{
		v.testEndpoint(e), v.enableEndpoint(e), v.recoverDeliveries(e), v.changeEndpoint(e), v.rotateSecret(e), v.disableEndpoint(e), v.deleteEndpoint(e),
	}
}

func (v *visit) testEndpoint(e *client.WebhookEndpoint) task {
	return task{
		Label: "Send a test event", Link: endpointURL("/test", e.ID), operation: "testWebhookEndpoint",
		asks: confirmation{Heading: "Send a test event?", Button: "Send it", Back: endpointURL("", e.ID),
			Notes: []string{"It is of the type webhook_endpoint.test, signed like all others, and sent to " + e.URL + " at once. Nothing of it is kept."}},
		do: func(url.Values) error {
			out, err := v.api.TestWebhookEndpoint(v.r.Context(), e.ID)
			if err != nil {
				return err
			}
			said := told{Heading: "The test event was taken", Text: out.Answer, Back: endpointURL("", e.ID)}
			if !out.Delivered {
				said.Heading = "The test event was not taken"
			}
			if out.Error != "" {
				said.Notes = append(said.Notes, "There was no answer: "+out.Error)
			} else {
				said.Notes = append(said.Notes, fmt.Sprintf("It was answered with %d %s after %d ms.", out.Status, http.StatusText(int(out.Status)), out.LatencyMs))
			}
			return v.tell(said)
		},
	}
}

func (v *visit) changeEndpoint(e *client.WebhookEndpoint) task {
	return task{
		Label: "Change", Link: endpointURL("/change", e.ID), operation: "changeWebhookEndpoint",
		asks: confirmation{Heading: "Change the endpoint", Button: "Change it", Back: endpointURL("", e.ID), Fields: endpointFields(e),
			Hidden: map[string]string{"version": fmt.Sprint(e.Version)},
			Notes:  []string{"What was not delivered yet goes to the new URL. The types count for events that no deliveries were made of yet."}},
		changes: func(form url.Values) ([]change, error) {
			then := endpointBody(form)
			return different(change{"URL", e.URL, then.URL}, change{"What it is for", e.Description, then.Description},
				change{"Types of events", typesText(e.Types), typesText(then.Types)}), nil
		},
		do: func(form url.Values) error {
			params := client.ChangeWebhookEndpointParams{IfMatch: `"` + form.Get("version") + `"`}
			return v.backTo(endpointURL("", e.ID))(v.api.ChangeWebhookEndpoint(v.r.Context(), e.ID, &params, endpointBody(form)))
		},
	}
}

func typesText(types []string) string {
	if len(types) == 0 {
		return "all"
	}
	return strings.Join(types, ", ")
}

// overlaps are how long the secret before counts, too, as people choose it.
var overlaps = []struct {
	text    string
	seconds int
}{{"a day", 86400}, {"an hour", 3600}, {"a week", 7 * 86400}, {"not at all: others know it", 0}}

func (v *visit) rotateSecret(e *client.WebhookEndpoint) task {
	overlap := field{Name: "overlap", Label: "The secret before is good for", Type: "select", Help: "Until then deliveries have two signatures, so that the receiver can change over when it likes."}
	for _, o := range overlaps {
		overlap.Options = append(overlap.Options, o.text)
	}
	return task{
		Label: "Rotate the secret", Link: endpointURL("/rotate", e.ID), operation: "rotateWebhookSecret",
		asks: confirmation{Heading: "Give the endpoint another secret?", Button: "Rotate the secret", Back: endpointURL("", e.ID), Fields: []field{overlap, whyField},
			Notes: []string{"The next page shows the new one, once."}},
		do: func(form url.Values) error {
			body := client.RotateSecretBody{Reason: form.Get("reason"), RequestID: form.Get("requestId")}
			for _, o := range overlaps {
				if o.text == form.Get("overlap") {
					body.OverlapSeconds = new(o.seconds)
				}
			}
			rotated, err := v.api.RotateWebhookSecret(v.r.Context(), e.ID, nil, body)
			if err != nil {
				return err
			}
			return v.tellSecret("The endpoint has another secret", rotated)
		},
	}
}

const fromNow = "only what happens from now on"

func (v *visit) enableEndpoint(e *client.WebhookEndpoint) task {
	from := field{Name: "from", Label: "It gets", Type: "select", Options: []string{"everything since it was disabled", fromNow}}
	return task{
		Label: "Enable", Link: endpointURL("/enable", e.ID), operation: "enableWebhookEndpoint", hidden: e.State != client.WebhookEndpointStateDisabled,
		asks: confirmation{Heading: "Send to the endpoint again?", Button: "Enable it", Back: endpointURL("", e.ID), Fields: []field{from, whyField},
			Notes: []string{"Everything is as far as the feed still has it. With only what happens from now on, what is not finished is skipped."}},
		do: func(form url.Values) error {
			body := client.EnableBody{From: client.EnableBodyFromStopped, Reason: form.Get("reason"), RequestID: form.Get("requestId")}
			if form.Get("from") == fromNow {
				body.From = client.EnableBodyFromNow
			}
			return v.backTo(endpointURL("", e.ID))(v.api.EnableWebhookEndpoint(v.r.Context(), e.ID, nil, body))
		},
	}
}

func (v *visit) disableEndpoint(e *client.WebhookEndpoint) task {
	return task{
		Label: "Disable", Link: endpointURL("/disable", e.ID), operation: "disableWebhookEndpoint", hidden: e.State == client.WebhookEndpointStateDisabled,
		asks: confirmation{Heading: "Send nothing to the endpoint for a while?", Button: "Disable it", Back: endpointURL("", e.ID), Fields: []field{whyField},
			Notes: []string{"Events are kept for it as long as the feed keeps them."}},
		do: func(form url.Values) error {
			body := client.VerbBody{Reason: form.Get("reason"), RequestID: form.Get("requestId")}
			return v.backTo(endpointURL("", e.ID))(v.api.DisableWebhookEndpoint(v.r.Context(), e.ID, nil, body))
		},
	}
}

func (v *visit) deleteEndpoint(e *client.WebhookEndpoint) task {
	return task{
		Label: "Delete", Link: endpointURL("/delete", e.ID), operation: "deleteWebhookEndpoint",
		asks: confirmation{Heading: "Delete the endpoint?", Button: "Delete it", Danger: true, Back: endpointURL("", e.ID), Hidden: map[string]string{"version": fmt.Sprint(e.Version)},
			Changes: []change{{"URL", e.URL, "nothing is sent to it"}},
			Notes:   []string{"Its deliveries are forgotten, and it can't be brought back. To stop for a while, disable it."}},
		do: func(form url.Values) error {
			params := client.DeleteWebhookEndpointParams{IfMatch: `"` + form.Get("version") + `"`}
			return v.backTo("/console/webhooks")(nil, v.api.DeleteWebhookEndpoint(v.r.Context(), e.ID, &params))
		},
	}
}

// minutes is how browsers write a time that a person has entered.
const minutes = "2006-01-02T15:04"

func (v *visit) recoverDeliveries(e *client.WebhookEndpoint) task {
	since := field{Name: "since", Label: "Tried last at this time or later (UTC)", Type: "datetime-local", Required: true, Value: time.Now().UTC().Add(-24 * time.Hour).Format(minutes)}
	return task{
		Label: "Recover", Link: endpointURL("/recover", e.ID), operation: "recoverDeliveries",
		asks: confirmation{Heading: "Send again what was given up?", Button: "Send it again", Back: endpointURL("", e.ID), Fields: []field{since, whyField},
			Notes: []string{"All deliveries that failed ten times are sent as if they were new, the oldest first; 10,000 at most."}},
		do: func(form url.Values) error {
			since, err := time.Parse(minutes, form.Get("since"))
			if err != nil {
				return unusable("The time must be like 2026-11-22T15:04.")
			}
			out, err := v.api.RecoverDeliveries(v.r.Context(), e.ID, nil, client.RecoverBody{Since: since, Reason: form.Get("reason"), RequestID: form.Get("requestId")})
			if err != nil {
				return err
			}
			said := told{Heading: "1 delivery is sent again", Back: endpointURL("", e.ID)}
			if out.Recovered != 1 {
				said.Heading = count(out.Recovered) + " deliveries are sent again"
			}
			if out.More {
				said.Notes = []string{"There may be more: recover again."}
			}
			return v.tell(said)
		},
	}
}
