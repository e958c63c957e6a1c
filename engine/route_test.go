package engine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/provider"
	"pawl/test/assert"
)

// routesAt is a policy whose charge has routes at the endpoint, each with what is said of it.
func routesAt(routes ...string) (policy string) {
	policy = "charge:\n"
	for _, route := range routes {
		name, says, _ := strings.Cut(route, ": ")
		if says != "" {
			says = ", " + says
		}
		policy += fmt.Sprintf("- {name: %s, executor: http, url: ENDPOINT/%s/do, undoUrl: ENDPOINT/%s/undo, refundUrl: ENDPOINT/%s/refund, timeout: 60s, "+
			"retry: {initial: 1ms, cap: 1ms}%s}\n", name, name, name, name, says)
	}
	return policy
}

// asksFor checks which calls the endpoint got, in their order.
func asksFor(want ...string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		s.provider.mu.Lock()
		defer s.provider.mu.Unlock()
		var calls []string
		for _, c := range s.provider.calls {
			calls = append(calls, fmt.Sprintf("%s %d", c.call, c.Generation))
		}
		assert.Equal(t, calls, want)
	}
}

const declined = "fallback: [card_declined]"

func TestRoutes(t *testing.T) {
	t.Parallel()
	two := routesAt("a: "+declined, "b")
	onRoute := func(want string) act { return shows(want, `SELECT coalesce(route, '') FROM orders`) }
	play(t, []scene{
		{"the first route whose condition holds charges", with(routesAt("a: currency: JPY", "b: 'paymentMethod': pm_b", "c")), acts{
			admits(func(in *engine.Input) { in.PaymentMethod = "pm_b" }), is("completed"), onRoute("b"), asksFor("b/do 0"),
			shows("b", `SELECT route FROM books.charges`), proven}},
		{"an order that waits keeps its route", with(routesAt("a: currency: JPY", "b") + "approval: [{}]\n"), acts{
			processes("pending approval"), onRoute("b"), does(asked(orders.Approve), "completed"), asksFor("b/do 0"), proven}},
		{"a certain refusal falls back", with(two), acts{
			says("a/do: refused card_declined"), processes("completed"), onRoute("b"), asksFor("a/do 0", "a/undo 0", "b/do 1"),
			shows("card_declined: next route b", `SELECT reason FROM transitions WHERE verb = 'fallback'`),
			shows("a do 0, a undo 0, b do 1", `SELECT string_agg(concat_ws(' ', route, operation, generation), ', ' ORDER BY call) FROM books.step_calls`),
			standing("ch_1"), proven}},
		{"another code", with(routesAt("a: fallback: [other, http_429]", "b")), acts{
			says("a/do: refused http_429"), processes("completed"), onRoute("b"), proven}},
		{"another refusal does not", with(two), acts{
			says("a/do: refused stolen_card"), processes("failed: stolen_card"), onRoute("a"), asksFor("a/do 0"), proven}},
		{"nor one after a call in doubt", with(two), acts{
			says("a/do: lost; refused card_declined"), processes("failed: card_declined"), onRoute("a"),
			shows(0, `SELECT generation FROM orders`), standing(), proven}},
		{"nor one after a call that was cut", with(two), acts{
			says("a/do: cut; refused card_declined"), processes("failed: card_declined"), onRoute("a"), shows(0, `SELECT generation FROM orders`), proven}},
		{"one after a call that certainly did nothing does", with(two), acts{
			says("a/do: not done; refused card_declined"), processes("completed"), onRoute("b"), proven}},
		{"a route that does not fit is passed over", with(routesAt("a: "+declined, "b: currency: JPY", "c")), acts{
			says("a/do: refused card_declined"), processes("completed"), onRoute("c"), proven}},
		{"the last refusal ends it, and a retry begins with the first route", with(two), acts{
			says("a/do: refused card_declined; done", "b/do: refused card_declined"), processes("failed: card_declined"), onRoute("b"),
			asksFor("a/do 0", "a/undo 0", "b/do 1"), does(asked(orders.Retry), "completed"), onRoute("a"),
			asksFor("a/do 0", "a/undo 0", "b/do 1", "b/undo 1", "a/do 2"), proven}},
		{"a retry under another policy begins with its first route", with(two), acts{
			says("a/do: refused card_declined", "b/do: refused card_declined"), processes("failed: card_declined"),
			uses(routesAt("c: currency: JPY", "d")),
			does(engine.Request{Verb: orders.Retry, OrderID: "order", Actor: "ann", Reason: "a test", ActivePolicy: true}, "completed"), onRoute("d"),
			asksFor("a/do 0", "a/undo 0", "b/do 1", "b/undo 1", "d/do 2"), proven}},
		{"the undo goes to the route that charged", with(two + atEndpoint("", "reserve")), acts{
			says("a/do: refused card_declined", "reserve/do: refused sold_out"), processes("failed: sold_out"), onRoute("b"),
			asksFor("a/do 0", "a/undo 0", "b/do 1", "reserve/do 1", "b/undo 1"), standing(), proven}},
		{"a refund goes to the route that charged", with(two), acts{
			says("a/do: refused card_declined"), processes("completed"),
			does(engine.Request{Verb: orders.Refund, OrderID: "order", Actor: "ann", RequestID: "r", ChargeOperation: &engine.ChargeOperation{}}, "completed"),
			comes(true, `SELECT state = 'done' FROM charge_operations`), asksFor("a/do 0", "a/undo 0", "b/do 1", "b/refund 1")}},
		{"an order that was charged keeps its route under another policy", with(two + atEndpoint(", retry: {nonRetryable: [http_500]}", "reserve")), acts{
			says("a/do: refused card_declined", "reserve/do: error"), processes("reserving attention: non_retryable: http_500"),
			uses(routesAt("a: currency: JPY", "b: currency: JPY", "c") + atEndpoint("", "reserve")), says("reserve/do: done"),
			does(engine.Request{Verb: orders.Retry, OrderID: "order", Actor: "ann", Reason: "a test", ActivePolicy: true}, "completed"), onRoute("b"), proven}},
		{"which must charge at the same place", with(two + atEndpoint(", retry: {nonRetryable: [http_500]}", "reserve")), acts{
			says("a/do: refused card_declined", "reserve/do: error"), processes("reserving attention: non_retryable: http_500"),
			uses(routesAt("a") + atEndpoint("", "reserve")),
			refuses(engine.Request{Verb: orders.Retry, OrderID: "order", Actor: "ann", Reason: "a test", ActivePolicy: true}, orders.RefusedPolicySwitch)}},
		{"a refusal by callback falls back, and what it says later is undone there", with(two), acts{
			says("a/do: waiting"), admits(), is("charging callback"), func(t *testing.T, s *shop) {
				t.Helper()
				answer := func(ctx context.Context, token string, said engine.CallbackResult) {
					assert.NoError(t, assert.Err(s.engine.Answer(ctx, token, said)))
				}
				token := s.provider.token(t, "a")
				s.provider.says("b/do: waiting")
				answer(t.Context(), token, engine.CallbackResult{Outcome: "refused", CallbackText: provider.CallbackText{Code: "card_declined"}})
				eventually(t, "b is asked", s.answers(t, true, `SELECT route = 'b' AND hold = 'callback' FROM orders`))
				answer(t.Context(), token, engine.CallbackResult{Outcome: "done", CallbackText: provider.CallbackText{Reference: "late"}})
				undoneLate(t, s)
				answer(t.Context(), s.provider.token(t, "b"), engine.CallbackResult{Outcome: "done", CallbackText: provider.CallbackText{Reference: "ch_b"}})
			}, is("completed"), onRoute("b"), shows("a", `SELECT string_agg(DISTINCT route, ',') FROM step_calls WHERE operation = 'undo'`), proven}},
		{"a refusal that a person records ends it", with(two), acts{
			says("a/do: waiting"), admits(), is("charging callback"),
			does(func() engine.Request {
				q := settled(fsm.Charge, engine.SettledRefused, "")
				q.Settle.Code = "card_declined"
				return q
			}(), "failed: card_declined"), onRoute("a"), proven}},
	})
}
