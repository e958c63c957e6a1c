package console

import (
	"net/url"
	"strconv"

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
			return done(v.api.ResendDelivery(v.r.Context(), p.Endpoint, no, nil, client.AskBody{Reason: form.Get("reason"), RequestID: form.Get("requestId")}))
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
