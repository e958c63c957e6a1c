package httpapi

import (
	"time"

	"pawl/fsm"
	"pawl/internal/books"
	"pawl/internal/orders"
	"pawl/internal/policy"
)

// example is one request for an operation and what may come back. What is answered is made by the types that make the
// answers, so it can't be out of date.
type example struct {
	Query    string // beside the path
	Header   string // a header that it can't do without: name, colon, value
	Body     string // in JSON
	Answer   any    // with 200
	Accepted any    // with 202
	Problem  problemCode
}

// examples are by the id of the operation. Each operation has one.
var examples = map[string]example{
	"processOrder": {
		Body:   `{"orderId":"order-123","amount":"99.99","item":"widget"}`,
		Answer: exampleOrder(completed), Accepted: exampleOrder(waiting), Problem: "order_conflict",
	},
	"getOrder":        {Answer: exampleOrder(completed), Problem: "not_found"},
	"listOrders":      {Query: "?hold=attention&limit=10", Answer: orderPage{Orders: []order{exampleOrder(stuck)}}, Problem: "invalid_parameter"},
	"listTransitions": {Answer: exampleHistory(), Problem: "not_found"},
	"listCalls":       {Answer: exampleCalls(), Problem: "not_found"},

	"cancelOrder":  {Body: person, Answer: exampleOrder(canceled), Accepted: exampleOrder(waiting), Problem: "not_applicable"},
	"retryOrder":   {Body: person, Answer: exampleOrder(completed), Accepted: exampleOrder(waiting), Problem: "still_undoing"},
	"pauseOrder":   {Body: person, Answer: exampleOrder(completed), Accepted: exampleOrder(paused), Problem: "not_applicable"},
	"resumeOrder":  {Body: person, Answer: exampleOrder(completed), Accepted: exampleOrder(waiting), Problem: "not_applicable"},
	"approveOrder": {Body: person, Answer: exampleOrder(completed), Accepted: exampleOrder(waiting), Problem: "not_applicable"},
	"rejectOrder":  {Body: person, Answer: exampleOrder(canceled), Accepted: exampleOrder(waiting), Problem: "not_applicable"},
	"settleStepOfOrder": {
		Body:   `{"step":"charge","outcome":"done","reference":"ch_77","onBehalfOf":"maria@shop.example","reason":"seen in the dashboard","requestId":"ticket-4711"}`,
		Answer: exampleOrder(completed), Accepted: exampleOrder(waiting), Problem: "busy",
	},
	"refundOrder": {
		Body:   `{"amount":"12.50","onBehalfOf":"maria@shop.example","reason":"one is broken","requestId":"ticket-4712"}`,
		Answer: exampleOrder(refunded), Accepted: exampleOrder(refundOwed), Problem: "refund_too_large",
	},

	"cancelOrders":  {Body: people, Answer: exampleBulk, Problem: "invalid_input"},
	"retryOrders":   {Body: people, Query: "?dryRun=true", Answer: exampleDryRun(), Problem: "invalid_input"},
	"pauseOrders":   {Body: people, Answer: exampleBulk, Problem: "invalid_input"},
	"resumeOrders":  {Body: people, Answer: exampleBulk, Problem: "invalid_input"},
	"approveOrders": {Body: people, Answer: exampleBulk, Problem: "invalid_input"},
	"rejectOrders":  {Body: people, Answer: exampleBulk, Problem: "invalid_input"},
	"settleStepOfOrders": {
		Body:   `{"ids":["order-123","order-124"],"step":"charge","outcome":"refused","onBehalfOf":"maria@shop.example","reason":"the provider lost them"}`,
		Answer: exampleBulk, Problem: "invalid_input",
	},

	"answerStep":      {Body: `{"outcome":"done","reference":"ch_77"}`, Answer: receipt{Accepted: true}, Problem: "not_found"},
	"takeStripeEvent": {Body: `{"type":"payment_intent.succeeded"}`, Answer: receipt{Accepted: true}, Problem: "bad_signature"},

	"listInventory": {Answer: itemPage{Items: []item{exampleItem}}, Problem: "invalid_parameter"},
	"getInventory":  {Answer: exampleItem, Problem: "not_found"},
	"setInventory": {
		Header: "If-None-Match: *", Body: `{"onHand":12,"onBehalfOf":"maria@shop.example","reason":"the first count","requestId":"count-1"}`,
		Answer: exampleItem, Problem: "precondition_failed",
	},
	"adjustInventory": {
		Body:   `{"change":-2,"onBehalfOf":"maria@shop.example","reason":"broken in transit","requestId":"claim-17"}`,
		Answer: exampleItem, Problem: "stock_too_low",
	},
	"listStockMovements": {Query: "?limit=10", Answer: exampleMovements(), Problem: "not_found"},

	"listEvents": {Query: "?type=order.completed&wait=20s", Answer: exampleEvents(), Problem: "cursor_expired"},

	"listWebhookEndpoints": {Answer: webhookEndpoints{[]webhookEndpoint{exampleEndpoint(nothing)}}, Problem: "invalid_parameter"},
	"createWebhookEndpoint": {
		Body:   `{"url":"https://shop.example/pawl","description":"the shop","types":["order.completed","order.failed"],"requestId":"endpoint-1"}`,
		Answer: exampleEndpoint(secretShown), Problem: "too_many_endpoints",
	},
	"getWebhookEndpoint": {Answer: exampleEndpoint(nothing), Problem: "not_found"},
	"changeWebhookEndpoint": {
		Header: `If-Match: "1"`, Body: `{"url":"https://shop.example/pawl","description":"the shop","types":["order.*"],"requestId":"endpoint-2"}`,
		Answer: exampleEndpoint(changed), Problem: "precondition_failed",
	},
	"rotateWebhookSecret":    {Body: `{"overlapSeconds":86400,"reason":"once a year","requestId":"endpoint-3"}`, Answer: exampleEndpoint(rotated), Problem: "not_found"},
	"disableWebhookEndpoint": {Body: `{"reason":"the shop moves","requestId":"endpoint-4"}`, Answer: exampleEndpoint(disabled), Problem: "not_found"},
	"enableWebhookEndpoint":  {Body: `{"from":"stopped","requestId":"endpoint-5"}`, Answer: exampleEndpoint(nothing), Problem: "not_found"},
	"testWebhookEndpoint": {
		Answer:  testOutcome{Delivered: true, EventID: "evt_test_4xq7m2kdtnfv6hbj", At: exampleTime, Status: 204, LatencyMs: 23},
		Problem: "not_found",
	},
	"listDeliveriesOfOrder": {Query: "?limit=10", Answer: deliveriesOfOrder{[]delivery{exampleDelivery(listed)}}, Problem: "not_found"},
	"listDeliveries":        {Query: "?state=exhausted&limit=10", Answer: deliveryPage{Deliveries: []delivery{exampleDelivery(listed)}}, Problem: "not_found"},
	"getDelivery":           {Answer: exampleDelivery(exhausted), Problem: "not_found"},
	"resendDelivery":        {Body: `{"reason":"the shop was down","requestId":"endpoint-6"}`, Answer: exampleDelivery(resent), Problem: "not_found"},
	"skipDelivery":          {Body: `{"reason":"entered by hand","requestId":"endpoint-7"}`, Answer: exampleDelivery(skipped), Problem: "delivery_finished"},
	"recoverDeliveries":     {Body: `{"since":"2026-11-20T00:00:00Z","requestId":"endpoint-8"}`, Answer: recovery{Recovered: 17}, Problem: "not_found"},
	"deleteWebhookEndpoint": {Problem: "not_found"},

	"getOverview":     {Answer: exampleOverview(), Problem: "unavailable"},
	"getActivity":     {Answer: exampleActivity(), Problem: "internal"},
	"listErrorGroups": {Answer: exampleErrorGroups(), Problem: "unavailable"},

	"getCaller": {Answer: exampleCaller(), Problem: "tls_required"},

	"listPolicies": {Query: "?limit=10", Answer: examplePolicies(), Problem: "invalid_parameter"},
	"getPolicy":    {Answer: examplePolicy(), Problem: "not_found"},
	"storePolicy": {
		Body: `{"source":"completeWithin: 48h\n"}`, Query: "?dryRun=true", Problem: "invalid_policy",
		Answer: storedPolicy{Created: true, Steps: executorsOf(exampleVersion.Policy), DryRun: true},
	},
	"activatePolicy": {Header: `If-Match: "1"`, Body: `{"reason":"the deadline was agreed"}`, Answer: examplePolicy(), Problem: "precondition_failed"},

	"startVerification": {Accepted: exampleVerification(books.VerificationState{Running: true}), Problem: "stopping"},
	"getVerification":   {Answer: exampleVerification(books.VerificationState{Done: 1025, Report: &exampleReport, ReportedAt: exampleStep}), Problem: "unavailable"},

	"health": {Answer: map[string]string{"status": "ok"}, Problem: "unavailable"},
	"livez":  {Answer: map[string]string{"status": "ok"}, Problem: "internal"},
}

const (
	person = `{"onBehalfOf":"maria@shop.example","reason":"the customer called","requestId":"ticket-4711"}`
	people = `{"ids":["order-123","order-124"],"onBehalfOf":"maria@shop.example","requestId":"ticket-4711"}`
)

var (
	exampleTime = time.Date(2026, 11, 20, 9, 30, 0, 118000000, time.UTC)
	exampleStep = exampleTime.Add(4 * time.Millisecond)
	exampleItem = itemOf(&orders.Stock{Item: "widget", Tracked: true, OnHand: 12, Reserved: 2})
	exampleBulk = bulkOutcome{Matched: 2, Applied: 1, Results: []bulkResult{
		{OrderID: "order-123", Applied: true, Status: state(fsm.Charging)},
		{OrderID: "order-124", Code: "not_found", Detail: `There is no order "order-124".`},
	}}
)

// exampleErrors are what problems come from that say more than their kind does.
func exampleErrors() map[problemCode]error {
	done := exampleRow(completed)
	return map[problemCode]error{
		"order_conflict": &orders.Conflict{Order: done, Differences: []orders.Difference{{Pointer: "/amount", Stored: "99.99", Sent: "100"}}},
		"not_applicable": &orders.NotApplicable{Verb: orders.Cancel, Code: orders.RefusedState, Order: done},
		"invalid_policy": policy.Problems{{Line: 2, Column: 12, Path: "charge.executor", Text: "want ledger, http, stripe or simulator"}},
		"stock_too_low":  &orders.StockTooLow{Item: orders.Stock{Item: "widget", Reserved: 2}},
		"invalid_input": newProblem("invalid_input", "", fieldError{
			Pointer: "/amount", Code: tooManyDigits, Detail: "must have at most 2 digits after the decimal point"}),
		"invalid_parameter": invalidParameter("limit", "invalid", "expected number <= 200"),
	}
}
