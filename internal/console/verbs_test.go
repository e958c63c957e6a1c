package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"pawl/client"
	"pawl/internal/access"
)

// TestVerbs asks each verb of an order: what would change is shown, nothing is done before it is confirmed, and it is done once.
func TestVerbs(t *testing.T) {
	t.Parallel()
	s := setup(t)
	for _, c := range []struct {
		verb, is, hold string
		decided        url.Values // what has to be known first
		shows          string     // of what would change
		leaves         string     // of the order, as JSON in the page
	}{
		{"cancel", "charging", "attention", nil, "<bdi>cancel</bdi>", "canceled"},
		{"retry", "charging", "attention", url.Values{"policy": {"pinned"}}, "<bdi>attention</bdi><td><bdi>–</bdi>", "completed"},
		{"pause", "charging", "retry", nil, "<bdi>retry</bdi><td><bdi>paused</bdi>", "charging"},
		{"resume", "charging", "paused", nil, "<bdi>paused</bdi><td><bdi>–</bdi>", "completed"},
		{"approve", "pending", "approval", nil, "<bdi>approval</bdi><td><bdi>–</bdi>", "completed"},
		{"reject", "pending", "approval", nil, "<bdi>rejected</bdi>", "canceled"},
		{"refund", "completed", "", url.Values{"amount": {"4"}}, "<bdi>4.00 USD: done</bdi>", "completed"},
	} {
		t.Run(c.verb, func(t *testing.T) {
			t.Parallel()
			id := "o-" + c.verb
			s.order(t, id, c.is, c.hold)
			path := "/console/order/" + c.verb + "?id=" + url.QueryEscape(id)
			s.get(t, orderPath+url.QueryEscape(id)).want(t, http.StatusOK, `href="`+path+`"`)
			page := s.get(t, path)
			if c.decided != nil {
				page.want(t, http.StatusOK, "Show what would change")
				page = s.post(t, path, c.decided)
			}
			page.want(t, http.StatusOK, "What will change", c.shows, `name="reason"`)
			asked := `SELECT count(*) FROM books.transitions WHERE reason = 'a test' AND verb = '` + c.verb + `' AND order_id = '` + id + `'`
			form := page.fieldsOf()
			form.Set("reason", "a test")
			for range 2 { // a double click
				done := s.post(t, path, form).want(t, http.StatusSeeOther)
				s.get(t, done.header.Get("Location")).want(t, http.StatusOK, `role="status"`, "a test")
			}
			s.count(t, 1, asked)
			order, err := s.api.GetOrder(t.Context(), id, &client.GetOrderParams{})
			if err != nil || string(order.Status) != c.leaves {
				t.Errorf("%+v, %v", order, err)
			}
		})
	}
}

// order stores one as it would be, or has one done.
func (s *service) order(t *testing.T, id, status, hold string) {
	t.Helper()
	if hold == "" {
		s.process(t, client.ProcessBody{OrderID: id, Amount: "9", Item: "i"})
		return
	}
	s.sql(t, `INSERT INTO orders (order_id, status, hold, hold_reason, amount, currency, item, due_at) VALUES ('`+id+`', '`+status+`', '`+hold+`', 'a test', 9, 'USD', 'i',
		CASE WHEN '`+hold+`' = 'retry' THEN now() + interval '1 hour' END)`)
	s.sql(t, `INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT order_no, 1, 'pending', '`+status+`', 0 FROM orders WHERE order_id = '`+id+`'`)
}

// TestAnOrderThatHasChanged is not touched by a form that was about it as it was before.
func TestAnOrderThatHasChanged(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.order(t, "o", "charging", "retry")
	path := "/console/order/cancel?id=o"
	form := s.get(t, path).want(t, http.StatusOK).fieldsOf()
	form.Set("reason", "a test")
	if _, err := s.api.PauseOrder(t.Context(), "o", nil, client.VerbBody{Reason: "somebody else"}); err != nil {
		t.Fatal(err)
	}
	s.post(t, path, form).want(t, http.StatusPreconditionFailed, "has changed since you looked", "somebody else", `href="`+path+`"`)
	s.count(t, 1, `SELECT count(*) FROM orders WHERE stop_requested IS NULL AND hold = 'paused'`)
	s.get(t, "/console/order/approve?id=o").want(t, http.StatusConflict, "is not allowed when the order is")
	s.get(t, "/console/order/process?id=o").want(t, http.StatusNotFound)
}

// TestWrongForms are shown again, with what is wrong.
func TestWrongForms(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.order(t, "o", "completed", "")
	for form, want := range map[string]string{"amount=x": "amount ", "restock=some": "restock ", "amount=1.234": "amount "} {
		values, _ := url.ParseQuery(form)
		s.post(t, "/console/order/refund?id=o", values).want(t, http.StatusOK, "Show what would change", want)
	}
	s.post(t, "/console/order/refund?id=o", url.Values{"amount": {"10"}}).want(t, http.StatusConflict, "The refund exceeds what is left of the charge")
	s.post(t, "/console/order/refund?id=o", url.Values{"requestId": {"1"}, "seq": {"x"}}).want(t, http.StatusNotFound)
	name, value := s.token(t, "desk", access.Operate, access.Read, access.Delegate)
	s.post(t, "/console/order/refund?id=o", nil, name, value).want(t, http.StatusOK, "On behalf of")
	s.post(t, "/console/order/refund?id=o", nil, name, value, "Sec-Fetch-Site", "cross-site").want(t, http.StatusForbidden)
	s.count(t, 0, `SELECT count(*) FROM refunds`)
	s.order(t, "held", "charging", "attention")
	for path, first := range map[string]shown{
		"refund?id=o":    s.post(t, "/console/order/refund?id=o", url.Values{"amount": {"4"}}, name, value),
		"cancel?id=held": s.get(t, "/console/order/cancel?id=held", name, value),
	} {
		form := first.fieldsOf()
		form.Set("reason", strings.Repeat("long ", 201))
		again := s.post(t, "/console/order/"+path, form, name, value).want(t, http.StatusOK, "What will change", "reason ", form.Get("reason"))
		form = again.fieldsOf()
		form.Set("reason", "short")
		s.post(t, "/console/order/"+path, form, name, value).want(t, http.StatusSeeOther)
	}
	s.count(t, 1, `SELECT count(*) FROM refunds WHERE amount = 4`)
}

// TestSettling: a person says what became of a step, of a refund, and of an undo that came too late.
func TestSettling(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.order(t, "step", "charging", "attention")
	s.sql(t, `UPDATE orders SET policy = 1, calls = 1, in_doubt_since = now(), hold_reason = 'outcome_unknown: asked' WHERE order_id = 'step'`)
	s.sql(t, `INSERT INTO step_calls (order_no, call, fence, generation, step, operation) SELECT order_no, 1, 0, 0, 'charge', 'do' FROM orders`)
	s.settle(t, "step", url.Values{"outcome": {"done"}, "reference": {"ch_1"}}, "What became of the charge")
	if o, err := s.api.GetOrder(t.Context(), "step", nil); err != nil || o.Status != "completed" {
		t.Errorf("%+v, %v", o, err)
	}
	s.order(t, "refund", "completed", "")
	s.sql(t, `UPDATE orders SET refunds = 1 WHERE order_id = 'refund'`)
	s.sql(t, `UPDATE charges SET executor = 'http' WHERE order_no = (SELECT order_no FROM orders WHERE order_id = 'refund')`)
	s.sql(t, `INSERT INTO refunds (order_no, generation, number, currency, amount, state, executor, request_id, sent_at)
		SELECT order_no, 0, 1, 'USD', 5, 'in_doubt', 'http', 'r', now() FROM orders WHERE order_id = 'refund'`)
	s.get(t, orderPath+"refund").want(t, http.StatusOK, "Say what became of refund 1")
	s.settle(t, "refund&refund=1", url.Values{"outcome": {"refused"}, "code": {"closed"}}, "What became of refund 1")
	if o, err := s.api.GetOrder(t.Context(), "refund", nil); err != nil || o.Refunds[0].State != "failed" || o.Refunds[0].Code != "closed" {
		t.Errorf("%+v, %v", o, err)
	}
	s.order(t, "late", "completed", "")
	s.sql(t, `UPDATE orders SET policy = 1 WHERE order_id = 'late'`)
	s.sql(t, `INSERT INTO late_undos (order_no, generation, step, reason, due_at) SELECT order_no, 0, 'charge', 'a test', now() + interval '1 hour' FROM orders WHERE order_id = 'late'`)
	s.sql(t, `INSERT INTO step_calls (order_no, call, fence, generation, step, operation, started_at)
		SELECT order_no, -n, 0, 0, 'charge', 'undo', now() - (60 - n) * interval '1 s' FROM orders, generate_series(1, 60) AS n WHERE order_id = 'late'`)
	for page, links := range map[string]int{"": 1, "&aside=-50": 0, "&sort=oldest": 0} { // the last try is on the first page
		shown := s.get(t, orderPath+"late"+page).want(t, http.StatusOK, "charge undo")
		if n := strings.Count(shown.body, "Say that it was undone by hand"); n != links {
			t.Errorf("%q has %d links to settle the undo, want %d", page, n, links)
		}
	}
	s.get(t, orderPath+"late").want(t, http.StatusOK, "step=charge&amp;generation=0")
	s.settle(t, "late&step=charge&generation=0", url.Values{"outcome": {"done"}}, "What became of the undo of the charge in generation 0")
	s.count(t, 1, `SELECT count(*) FROM late_undos WHERE finished_at IS NOT NULL`)
	s.get(t, orderPath+"late").want(t, http.StatusOK, "step-result").lacks(t, "Say that it was undone by hand")
}

// settle goes through the pages of step-result about something, which is the query of their URL.
func (s *service) settle(t *testing.T, about string, decided url.Values, question string) {
	t.Helper()
	path := "/console/order/step-result?id=" + about
	s.get(t, path).want(t, http.StatusOK, question, `name="outcome" required`).lacks(t, " selected>It")
	words := map[string]string{"done": "It happened (done)", "refused": "It did not happen, and never will (refused)"}[decided.Get("outcome")]
	page := s.post(t, path, decided).want(t, http.StatusOK, `name="reason"`, question+": "+words)
	form := page.fieldsOf()
	if form.Set("reason", "seen there"); strings.Contains(page.body, "preview") {
		t.Error(page.body)
	}
	s.post(t, path, form).want(t, http.StatusSeeOther)
}

// TestAnotherApprover: who may not approve an order is not offered to, and told why if he asks.
func TestAnotherApprover(t *testing.T) {
	t.Parallel()
	s := setupWith(t, "approval: [{approver: another}]\n")
	name, own := s.token(t, "shop", access.Submit, access.Read, access.Approve)
	_, other := s.token(t, "maria", access.Read, access.Approve)
	shop, err := client.New(s.url, client.Options{Token: strings.TrimPrefix(own, "Bearer ")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shop.Process(t.Context(), client.ProcessBody{OrderID: "o", Amount: "9", Item: "i"}); err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{orderPath + "o", "/console/attention"} {
		s.get(t, page, name, own).want(t, http.StatusOK, ">Reject<", "another_approver: the policy requires an approver other than the submitter").lacks(t, ">Approve<", ">Approve all<")
		s.get(t, page, name, other).want(t, http.StatusOK, ">Reject<", ">Approve<")
	}
	s.get(t, "/console/attention", name, other).want(t, http.StatusOK, ">Approve all<")
	approve := "/console/order/approve?id=o"
	s.get(t, approve, name, own).want(t, http.StatusForbidden, "Nothing was done", "someone other than the submitter").lacks(t, "Look at it as it is now")
	form := s.get(t, approve, name, other).want(t, http.StatusOK, "What will change").fieldsOf()
	s.post(t, approve, form, name, other).want(t, http.StatusSeeOther)
	s.count(t, 1, `SELECT count(*) FROM books.transitions WHERE verb = 'approve' AND actor = 'token:maria'`)
}
