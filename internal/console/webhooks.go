package console

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
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
	Tasks      []*task
	Deliveries []client.Delivery
	Problem    *client.Problem // with the filter
	States     []string
	Shown      string // the state of the deliveries that are shown; empty: any
	Exhausted  bool   // some deliveries are exhausted
	Next       string // the URL of the next page
}

// failing is the filter for pending deliveries that were tried.
const failing = "failing"

// deliveryState is the state of a delivery, as far as people tell them apart.
func deliveryState(d client.Delivery) string {
	if d.State == client.DeliveryStatePending && d.Attempts > 0 {
		return failing
	}
	return string(d.State)
}

var deliveryStates = []string{
	string(client.DeliveryStatePending), failing, string(client.DeliveryStateDelivered),
	string(client.DeliveryStateExhausted), string(client.DeliveryStateSkipped),
}

func (v *visit) showEndpoint() error {
	ctx, id := v.r.Context(), v.query("id")
	endpoint, err := v.api.GetWebhookEndpoint(ctx, id)
	if err != nil {
		return err
	}
	p := endpointPage{WebhookEndpoint: endpoint, States: deliveryStates, Shown: v.query("state")}
	if endpoint.Failures > 0 && !v.r.URL.Query().Has("state") { // what has failed comes first
		p.Shown = failing
	}
	list, err := v.api.ListDeliveries(ctx, id, client.ListDeliveriesParams{
		State: client.ListDeliveriesParamsState(p.Shown), OrderID: v.query("orderId"),
		Item: v.query("item"), Cursor: v.query("cursor")})
	if p.Problem = refusedInput(err); p.Problem != nil {
		list = &client.DeliveryPage{}
	} else if err != nil {
		return err
	}
	p.Deliveries, p.Next = list.Deliveries, v.nextPage(list.NextCursor)
	exhausted := client.ListDeliveriesParams{State: client.ListDeliveriesParamsStateExhausted, Limit: 1}
	if list, err = v.api.ListDeliveries(ctx, id, exhausted); err != nil {
		return err
	}
	p.Exhausted = len(list.Deliveries) > 0
	p.Tasks = slices.DeleteFunc(v.offered(v.endpointTasks(endpoint)), func(t *task) bool { return t.Name == "recover" && !p.Exhausted })
	return v.show("webhook", page{Title: "Webhook endpoint " + id, Data: p})
}

// doEndpoint serves the tasks of an endpoint, and the creation of one.
func (v *visit) doEndpoint() error {
	if v.r.PathValue("task") == "new" {
		return v.perform([]*task{v.newEndpoint()})
	}
	endpoint, err := v.api.GetWebhookEndpoint(v.r.Context(), v.query("id"))
	if err != nil {
		return err
	}
	return v.perform(v.endpointTasks(endpoint))
}

// exhausted says which deliveries of an endpoint are exhausted now, as a preview.
func (v *visit) exhausted(id string) ([]change, []string, error) {
	const most = 200
	list, err := v.api.ListDeliveries(v.r.Context(), id, client.ListDeliveriesParams{State: client.ListDeliveriesParamsStateExhausted, Limit: most})
	if err != nil || len(list.Deliveries) == 0 {
		return nil, []string{"No delivery is exhausted now. Pending ones are sent by themselves."}, err
	}
	return nil, []string{fmt.Sprintf("Exhausted now: %s. The newest was created %s.", atLeast(int64(len(list.Deliveries)), list.NextCursor != ""),
		distance(time.Since(list.Deliveries[0].CreatedAt)))}, nil
}

// newEndpoint creates an endpoint. Only the answer to its form has the secret. If the form is sent again, the API
// answers with the same secret.
func (v *visit) newEndpoint() *task {
	return &task{
		Name: "new", operation: "createWebhookEndpoint",
		Heading: "New webhook endpoint", Button: "Create endpoint", Back: "/console/webhooks",
		Notes: []string{"Pawl sends events from now on to the URL, as a signed POST with JSON. The receiver answers with 2xx within 15 seconds. " +
			"Otherwise Pawl sends the event again, for three days, and disables the endpoint if it accepts none for five days. Events of an order come one after the other.",
			"The next page shows the secret of the signatures, once, and can send a test event."},
		fields: append(endpointFields(&client.WebhookEndpoint{}), whyField),
		do: func(form url.Values) error {
			body, err := endpointBody(form)
			if err != nil {
				return err
			}
			made, err := v.api.CreateWebhookEndpoint(v.r.Context(), body)
			return v.tellSecret("The endpoint is created", made, err, "From now on, "+form.Get("url")+" gets events. Types: "+typesText(body.Types)+".")
		},
	}
}

func (v *visit) tellSecret(heading string, e *client.WebhookEndpoint, err error, notes ...string) error {
	if err != nil {
		return err
	}
	r := result{Heading: heading, Text: e.Secret, Back: endpointURL(e.ID),
		Notes: append(notes, "Give its secret to the receiver now. It is not shown again:")}
	if v.may("testWebhookEndpoint") { // the same form again: its answer has the same secret
		r.Again, r.Button = v.r.PostForm, "Send a test event"
	}
	if v.r.PostForm.Has("again") {
		if r.Test, err = v.api.TestWebhookEndpoint(v.r.Context(), e.ID); err != nil {
			return err
		}
	}
	return v.tell(r)
}

func endpointURL(id string) string { return address("/console/webhook", url.Values{"id": {id}}) }

// commonTypes are the event types that a form offers, besides those that the endpoint has.
const commonTypes = "order.* order.completed order.failed order.canceled order.needs_attention order.awaiting_approval " +
	"order.refund_done order.refund_failed order.dispute_opened order.dispute_won order.dispute_lost stock.* stock.set"

var typeWords = map[string]string{
	"order.*":         "all changes of orders",
	"order.completed": "charged, reserved and confirmed", "order.failed": "refused; what was done is undone",
	"order.canceled": "stopped; what was done is undone", "order.needs_attention": "waits for a person", "order.awaiting_approval": "waits for approval",
	"order.refund_done": "the money went back", "order.refund_failed": "the money did not go back",
	"order.dispute_opened": "the customer's bank asks for the money back", "order.dispute_won": "the money stays", "order.dispute_lost": "the money went back",
	"stock.*": "all of stock, except sales", "stock.set": "stock was counted",
}

func endpointFields(e *client.WebhookEndpoint) []field {
	types, which := strings.Fields(commonTypes), "all"
	for _, name := range e.Types {
		if which = "some"; !slices.Contains(types, name) {
			types = append(types, name)
		}
	}
	return []field{
		{Name: "url", Label: "URL", Type: "url", Value: e.URL, Required: true,
			Help: "Where events are sent: https, or http on this machine or with --allow-private. " +
				"Everyone with the role read can see it, so do not put a secret in it."},
		{Name: "description", Label: "Description", Value: e.Description},
		{Name: "which", Label: "Which events", Type: "radio", Value: which, Options: []string{"all", "some"},
			Words: map[string]string{"all": capital(typesText(nil)), "some": "Only these types"},
			Help: "Tries and calls are left out: order.awaiting_retry, order.awaiting_permit, order.permit_granted, " +
				"order.step_called, order.step_answered, order.woken, order.taken_over, order.released. To get these, name them with pawl webhooks."},
		{Name: "types", Label: "Only these types", Type: "checkbox", Value: strings.Join(e.Types, "\n"), Options: types, Words: typeWords},
	}
}

// endpointBody is what a form says. All changes are all, whatever was ticked before that was chosen.
func endpointBody(form url.Values) (body client.WebhookEndpointBody, err error) {
	all, types := form.Get("which") == "all", strings.Fields(strings.Join(form["types"], " "))
	if all {
		types = nil
	} else if len(types) == 0 {
		err = unusable("Choose one type of events or more, or all changes.")
	}
	return client.WebhookEndpointBody{
		URL: form.Get("url"), Description: form.Get("description"), Types: types,
		Reason: form.Get("reason"), RequestID: form.Get("requestId"),
	}, err
}

func verbBody(form url.Values) client.VerbBody {
	return client.VerbBody{Reason: form.Get("reason"), RequestID: form.Get("requestId")}
}

// minutes is how browsers format a time.
const minutes = "2006-01-02T15:04"

// endpointTasks are the tasks of an endpoint, in the order of their buttons.
func (v *visit) endpointTasks(e *client.WebhookEndpoint) []*task {
	ctx, version := v.r.Context(), map[string]string{"version": fmt.Sprint(e.Version)}
	done := v.backTo(endpointURL(e.ID))
	disabled := e.State == client.WebhookEndpointStateDisabled
	return tasksOf("/console/webhook", url.Values{"id": {e.ID}},
		v.enableTask(e),
		&task{
			Name: "test", Label: "Send a test event", operation: "testWebhookEndpoint",
			Heading: "Send a test event?", Button: "Send it",
			Notes: []string{"It has the type webhook_endpoint.test, is signed like all others, and is sent to " + e.URL +
				" at once. It is not stored."},
			do: func(form url.Values) error {
				test, err := v.api.TestWebhookEndpoint(ctx, e.ID)
				if err != nil {
					return err
				}
				return v.tell(result{Heading: "Test event", Test: test, Again: form, Button: "Send it again", Back: endpointURL(e.ID)})
			},
		},
		&task{
			Name: "recover", Label: "Resend what was given up", operation: "recoverDeliveries",
			Heading: "Resend the deliveries that were given up?", Button: "Send them again",
			Notes: []string{"All deliveries that used up their attempts are sent as if they were new, oldest first; 10,000 at most."},
			fields: []field{{Name: "since", Label: "Last attempt at this time or later (UTC)", Type: "datetime-local", Required: true,
				Value: time.Now().UTC().Add(-24 * time.Hour).Format(minutes)}, whyField},
			preview: func(url.Values) ([]change, []string, error) { return v.exhausted(e.ID) },
			do:      func(form url.Values) error { return v.recoverDeliveries(e, form) },
		},
		&task{
			Name: "change", Label: "Change", operation: "changeWebhookEndpoint",
			Heading: "Change the endpoint", Button: "Change it",
			Notes:     []string{"Pending deliveries go to the new URL. The types apply to events that have no deliveries yet."},
			questions: endpointFields(e), fields: []field{whyField}, seen: version,
			preview: func(form url.Values) ([]change, []string, error) {
				then, err := endpointBody(form)
				if err != nil {
					return nil, nil, err
				}
				return previewOf(change{"URL", e.URL, then.URL}, change{"Description", e.Description, then.Description},
					change{"Event types", typesText(e.Types), typesText(then.Types)})
			},
			do: func(form url.Values) error {
				then, _ := endpointBody(form) // the preview has refused it if it is not right
				params := client.ChangeWebhookEndpointParams{IfMatch: strconv.Quote(form.Get("version"))}
				return done(v.api.ChangeWebhookEndpoint(ctx, e.ID, then, params))
			},
		},
		v.rotateTask(e),
		&task{
			Name: "disable", Label: "Disable", operation: "disableWebhookEndpoint", hidden: disabled,
			Heading: "Disable the endpoint?", Button: "Disable it",
			Notes:  []string{"Nothing is sent to it until it is enabled again. Its events are kept for as long as the feed keeps them."},
			fields: []field{whyField},
			do:     func(form url.Values) error { return done(v.api.DisableWebhookEndpoint(ctx, e.ID, verbBody(form))) },
		},
		&task{
			Name: "delete", Label: "Delete", operation: "deleteWebhookEndpoint", Danger: true,
			Heading: "Delete the endpoint " + visible(e.URL) + "?", Button: "Delete it",
			Notes: []string{"Its deliveries are deleted too. This can't be undone. To stop for a while, disable it."},
			seen:  version,
			do: func(form url.Values) error {
				params := client.DeleteWebhookEndpointParams{IfMatch: strconv.Quote(form.Get("version"))}
				return v.backTo("/console/webhooks")(nil, v.api.DeleteWebhookEndpoint(ctx, e.ID, params))
			},
		},
	)
}

func (v *visit) enableTask(e *client.WebhookEndpoint) *task {
	return &task{
		Name: "enable", Label: "Enable", operation: "enableWebhookEndpoint", hidden: e.State != client.WebhookEndpointStateDisabled,
		Heading: "Enable the endpoint?", Button: "Enable it",
		Notes: []string{"Events that are older than the feed keeps are not sent. With only new events, unfinished deliveries are skipped."},
		fields: []field{
			{Name: "from", Label: "It gets", Type: "select", Options: []string{"stopped", "now"},
				Words: map[string]string{"stopped": "all events since it was disabled", "now": "only new events"}}, whyField,
		},
		do: func(form url.Values) error {
			body := client.EnableBody{From: client.EnableBodyFrom(form.Get("from")), Reason: form.Get("reason"), RequestID: form.Get("requestId")}
			return v.backTo(endpointURL(e.ID))(v.api.EnableWebhookEndpoint(v.r.Context(), e.ID, body))
		},
	}
}

func (v *visit) rotateTask(e *client.WebhookEndpoint) *task {
	overlap := field{Name: "overlap", Label: "The previous secret is good for", Type: "select",
		Help:    "Until then, deliveries have two signatures, so that the receiver can switch.",
		Options: []string{"86400", "3600", "604800", "0"},
		Words:   map[string]string{"86400": "a day", "3600": "an hour", "604800": "a week", "0": "no time: it has leaked"}}
	return &task{
		Name: "rotate", Label: "Rotate the secret", operation: "rotateWebhookSecret",
		Heading: "Rotate the secret?", Button: "Rotate the secret",
		Notes:  []string{"The next page shows the new secret, once."},
		fields: []field{overlap, whyField},
		do: func(form url.Values) error {
			body := client.RotateSecretBody{Reason: form.Get("reason"), RequestID: form.Get("requestId")}
			if seconds, err := strconv.Atoi(form.Get("overlap")); err == nil { // not 0 without one: the receiver would reject everything
				body.OverlapSeconds = &seconds
			}
			rotated, err := v.api.RotateWebhookSecret(v.r.Context(), e.ID, body)
			return v.tellSecret("The endpoint has a new secret", rotated, err)
		},
	}
}

func typesText(types []string) string {
	return cmp.Or(strings.Join(types, ", "), "all changes of orders and of stock")
}

func (v *visit) recoverDeliveries(e *client.WebhookEndpoint, form url.Values) error {
	since, err := time.Parse(minutes, form.Get("since"))
	if err != nil {
		return unusable("The time must be like 2026-11-22T15:04.")
	}
	out, err := v.api.RecoverDeliveries(v.r.Context(), e.ID, client.RecoverBody{
		Since: since, Reason: form.Get("reason"), RequestID: form.Get("requestId")})
	if err != nil {
		return err
	}
	r := result{Heading: times(int(out.Recovered), "1 delivery is sent again", "deliveries are sent again"), Back: endpointURL(e.ID)}
	if out.More {
		r.Notes = []string{"There may be more: recover again."}
	}
	return v.tell(r)
}

type deliveryPage struct {
	*client.Delivery
	Endpoint string
	Tasks    []*task
}

func (v *visit) delivery() (*deliveryPage, error) {
	no, err := strconv.ParseInt(v.query("delivery"), 10, 64)
	if err != nil {
		return nil, errNoPage
	}
	p := &deliveryPage{Endpoint: v.query("endpoint")}
	if p.Delivery, err = v.api.GetDelivery(v.r.Context(), p.Endpoint, no); err == nil {
		p.Tasks = v.deliveryTasks(p)
	}
	return p, err
}

func (v *visit) showDelivery() error {
	p, err := v.delivery()
	if err != nil {
		return err
	}
	p.Tasks = v.offered(p.Tasks)
	return v.show("delivery", page{Title: "Delivery " + v.query("delivery"), Data: p})
}

func (v *visit) doDelivery() error {
	p, err := v.delivery()
	if err != nil {
		return err
	}
	return v.perform(p.Tasks)
}

func (v *visit) deliveryTasks(p *deliveryPage) []*task {
	ctx, no := v.r.Context(), p.Delivery.Delivery
	query := url.Values{"endpoint": {p.Endpoint}, "delivery": {strconv.FormatInt(no, 10)}}
	done := v.backTo(address("/console/delivery", query))
	return tasksOf("/console/delivery", query,
		&task{
			Name: "resend", Label: "Resend", operation: "resendDelivery",
			Heading: "Resend the delivery?", Button: "Resend it",
			Notes: []string{"It keeps its id, so a receiver that already has it can tell. " +
				"Later deliveries of the same order or item wait for it."},
			fields: []field{whyField},
			do:     func(form url.Values) error { return done(v.api.ResendDelivery(ctx, p.Endpoint, no, verbBody(form))) },
		},
		&task{
			Name: "skip", Label: "Skip", operation: "skipDelivery", Danger: true,
			hidden:  p.State != client.DeliveryStatePending && p.State != client.DeliveryStateExhausted,
			Heading: "Skip the delivery?", Button: "Skip it",
			Notes: []string{"It is not sent again, and later deliveries of the same order or item continue. " +
				"The receiver misses an event."},
			fields: []field{required(whyField)},
			do: func(form url.Values) error {
				return done(v.api.SkipDelivery(ctx, p.Endpoint, no, client.SkipBody(verbBody(form))))
			},
		},
	)
}
