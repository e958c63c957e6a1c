package console_test

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"pawl/client"
	"pawl/internal/access"
)

// wait places orders that wait for an approval.
func (s *service) wait(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		s.process(t, client.ProcessBody{OrderID: id, Amount: "600", Item: "lamp", CustomerID: "ann"})
	}
}

// are fails the test unless each order has the status.
func (s *service) are(t *testing.T, status client.Status, ids ...string) {
	t.Helper()
	for _, id := range ids {
		params := &client.GetOrderParams{}
		if status == "canceled" {
			params.Wait = "20s"
		}
		order, err := s.api.GetOrder(t.Context(), id, params)
		if err != nil {
			t.Fatal(err)
		}
		if order.Status != status {
			t.Errorf("%s is %s, want %s", id, order.Status, status)
		}
	}
}

var (
	hiddenField = regexp.MustCompile(`<input type="hidden" name="(\w+)" value="([^"]*)"`)
	checkedID   = regexp.MustCompile(`<input type="checkbox" name="id" value="([^"]*)" checked`)
)

// form is what the form of a page would send as it is.
func (p shown) form() url.Values {
	form := url.Values{}
	for _, match := range hiddenField.FindAllStringSubmatch(p.body, -1) {
		form.Add(match[1], match[2])
	}
	for _, match := range checkedID.FindAllStringSubmatch(p.body, -1) {
		form.Add("id", match[1])
	}
	return form
}

// TestBulk: a dry run is shown first and does nothing, then each order has a result, and the form that is sent again does
// nothing twice.
func TestBulk(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "a", "b", "c")
	s.process(t, client.ProcessBody{OrderID: "done", Amount: "6", Item: "lamp"})
	s.get(t, "/console/bulk").want(t, 200, "Many orders", `<option value="cancel"`, `<option value="step-result"`)

	look := s.post(t, "/console/bulk", url.Values{"verb": {"cancel"}, "ids": {"a\r\n b \r\n\r\nb\r\ndone"}, "id": {"c", "<i>none"}})
	look.want(t, 200, "Cancel 3 orders?", "Not possible for 2", "&lt;i&gt;none", "not_applicable", "not_found").lacks(t, "<i>none")
	s.are(t, "pending", "a", "b", "c")

	form := look.form()
	if got := strings.Join(form["id"], " "); got != "c a b" {
		t.Errorf("offered are %s", got)
	}
	form["id"] = []string{"a", "b", "done"} // c was left out, and one has ended meanwhile
	form.Set("confirm", "yes")
	form.Set("reason", "the shop is closed")
	first := s.post(t, "/console/bulk", form).want(t, 200, "2 orders canceled, 1 not", `href="/console/order?id=done"`, "Look at these again")
	if failed, done := strings.Index(first.body, "Not done"), strings.Index(first.body, `id="done"`); failed < 0 || failed > done {
		t.Error("failures are not first")
	}
	s.post(t, "/console/bulk", form).want(t, 200, "2 orders canceled, 1 not")
	s.are(t, "canceled", "a", "b")
	s.are(t, "pending", "c")
	rows := 0
	if err := s.Pool.QueryRow(t.Context(), `SELECT count(*) FROM books.transitions WHERE verb = 'cancel' AND reason = 'the shop is closed' AND request_id = $1`, form.Get("requestId")).Scan(&rows); err != nil || rows != 2 {
		t.Errorf("%d rows of history, %v", rows, err)
	}
	again := first.form()
	if again.Get("requestId") != form.Get("requestId") || again.Get("id") != "done" || again.Get("reason") != "the shop is closed" || again.Get("confirm") != "" {
		t.Errorf("the others are tried again with %v", again)
	}
	s.post(t, "/console/bulk", again).want(t, 200, "Not possible for 1", "There is nothing to do").lacks(t, `name="confirm"`)
}

// TestBulkOfAFilter: a link names a filter as the API does, and one that says less than was meant is no link.
func TestBulkOfAFilter(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "a", "b")
	s.process(t, client.ProcessBody{OrderID: "other", Amount: "700", Item: "chair"})
	s.get(t, "/console/bulk?verb=approve&hold=approval&item=lamp&customerId=ann&status=pending,charging&amountTo=650&sort=oldest").
		want(t, 200, "Approve 2 orders?", `600.00 USD<td><bdi>lamp</bdi>`).lacks(t, "other")
	s.are(t, "pending", "a", "b", "other")
	for _, link := range []string{"verb=cancel&colour=red", "verb=cancel&sort=oldest", "verb=cancel&status=", "verb=cancel&createdFrom=yesterday", "verb=cancel&limit=3"} {
		s.get(t, "/console/bulk?"+link).want(t, 422, "does not say which orders")
	}
	s.get(t, "/console/bulk?verb=cancel&status=none").want(t, 422)
	s.get(t, "/console/bulk?verb=cancel&item=none").want(t, 200, "Many orders")
}

// TestBulkOfMany: a thousand ids are the most, and long ones need several requests.
func TestBulkOfMany(t *testing.T) {
	t.Parallel()
	s := setup(t)
	var ids []string
	for i := range 1000 {
		ids = append(ids, fmt.Sprintf("%0250d", i))
	}
	s.wait(t, ids[0], ids[999])
	s.post(t, "/console/bulk", url.Values{"verb": {"pause"}, "ids": {strings.Join(append(ids, "one more"), "\n")}}).want(t, 200, "1,000 are the most")
	look := s.post(t, "/console/bulk", url.Values{"verb": {"pause"}, "ids": {strings.Join(ids, "\n")}}).want(t, 200, "Pause 2 orders?", "Not possible for 998")
	form := look.form()
	form["id"], form["confirm"] = ids, []string{"yes"}
	s.post(t, "/console/bulk", form).want(t, 200, "2 orders paused, 998 not")
}

// TestBulkByRoles: what the API would refuse is not offered, and refused all the same.
func TestBulkByRoles(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "a")
	name, value := s.token(t, "approver", access.Read, access.Approve)
	_, reader := s.token(t, "reader", access.Read)
	s.get(t, "/console/bulk", name, value).want(t, 200, `<option value="approve"`, `<option value="reject"`).lacks(t, `<option value="cancel"`)
	s.get(t, "/console/bulk", name, reader).want(t, 200, "You may ask nothing of orders.").lacks(t, "<option")
	cancel := url.Values{"verb": {"cancel"}, "id": {"a"}, "confirm": {"yes"}}
	s.post(t, "/console/bulk", cancel, name, value).want(t, 200, "Many orders")
	s.post(t, "/console/bulk", url.Values{"verb": {"approve"}, "id": {"a"}, "confirm": {"yes"}}, name, value).want(t, 200, "1 order approved")
}

// TestSettlingManyAsksFirst: a verb that needs to know more asks before it tries.
func TestSettlingManyAsksFirst(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "a")
	s.post(t, "/console/bulk", url.Values{"verb": {"step-result"}, "id": {"a"}}).want(t, 200, "Say what became of the step for 1 order<", `name="outcome" required`,
		`<option value="not_done">It did not happen, and is tried again (not done)</option>`, "See what would be done").lacks(t, `name="confirm"`)
	s.post(t, "/console/bulk", url.Values{"verb": {"step-result"}, "id": {"a"}, "step": {"charge"}, "outcome": {"done"}, "reason": {"seen"}}).
		want(t, 200, "Not possible for 1", "not_applicable")
	s.post(t, "/console/bulk", url.Values{"verb": {"step-result"}, "id": {"a"}, "step": {"charge"}, "outcome": {"maybe"}, "reason": {"seen"}}).
		want(t, 200, `role="alert"`, "/outcome", "must be one of")
}

// TestLookingAgain: what was refused is tried again with what was chosen since, and is no part of what is done before that.
func TestLookingAgain(t *testing.T) {
	t.Parallel()
	s := setup(t)
	for _, id := range []string{"a", "b"} {
		s.order(t, id, "charging", "attention")
	}
	s.sql(t, `UPDATE orders SET policy = 1, calls = 1, in_doubt_since = now(), hold_reason = 'outcome_unknown: asked'`)
	s.sql(t, `INSERT INTO step_calls (order_no, call, fence, generation, step, operation) SELECT order_no, 1, 0, 0, 'charge', 'do' FROM orders`)
	form := s.post(t, "/console/bulk", url.Values{"verb": {"retry"}, "id": {"a", "b"}}).want(t, 200, "Not possible for 2", "Look again").form()
	form.Set("policy", "active")
	s.post(t, "/console/bulk", form).want(t, 200, "Retry 2 orders?").lacks(t, `name="refused"`)
	form.Set("confirm", "yes")
	s.post(t, "/console/bulk", form).want(t, 200, "Many orders")
	s.count(t, 0, `SELECT count(*) FROM books.transitions WHERE verb = 'retry'`)
}
