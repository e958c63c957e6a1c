package console_test

import (
	"fmt"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pawl/client"
	"pawl/fsm"
	"pawl/internal/access"
	"pawl/test/assert"
)

const orderPath = "/console/order?id="

// TestVerbs asks each verb of an order: what would change is shown, nothing is done before it is confirmed, and it is done once.
func TestVerbs(t *testing.T) {
	t.Parallel()
	s := setup(t)
	for _, c := range []struct {
		verb, is, hold string
		answers        url.Values // to its questions
		shows, says    string     // of what would change
		leaves         client.Status
	}{
		{"cancel", "charging", "attention", nil, "<bdi>cancel</bdi>", "<li>The order ends canceled.", "canceled"},
		{"retry", "charging", "attention", nil, "<bdi>attention</bdi><td><bdi>–</bdi>", "<li>The charge of 9 USD is tried again now. It is made to the same card", "completed"},
		{"pause", "charging", "retry", nil, "<bdi>retry</bdi><td><bdi>paused</bdi>", "no money and no goods move", "charging"},
		{"resume", "charging", "paused", nil, "<bdi>paused</bdi><td><bdi>–</bdi>", "continues at the step charge", "completed"},
		{"approve", "pending", "approval", nil, "<bdi>approval</bdi><td><bdi>–</bdi>", "9 USD is charged, and 1 × i reserved", "completed"},
		{"reject", "pending", "approval", nil, "<bdi>rejected</bdi>", "Nothing was charged, and nothing will be.", "canceled"},
		{"refund", "completed", "", url.Values{"amount": {"4"}}, "<bdi>refund of 4.00 USD: done</bdi>", "<li>4.00 USD goes back to the customer, 5.00 USD can still be refunded.", "completed"},
	} {
		t.Run(c.verb, func(t *testing.T) {
			t.Parallel()
			id := "o-" + c.verb
			s.order(t, id, c.is, c.hold)
			path := "/console/order/" + c.verb + "?id=" + id
			s.get(t, orderPath+id).want(t, 200, `href="`+path+`"`)
			page := s.get(t, path)
			if c.answers != nil {
				page.want(t, 200, "Show what will change")
				page = s.get(t, path+"&preview=yes&"+page.fill("amount", c.answers.Get("amount")).Encode())
			}
			form := page.want(t, 200, "What will change", c.shows, c.says, `name="reason"`).fill("reason", "a test")
			for _, before := range []string{"!", ""} { // and then with the Back button
				done := s.post(t, path, form).want(t, 303)
				s.get(t, done.header.Get("Location")).want(t, 200, `role="status"`, "a test", before+"Nothing was done twice: this was requested before, on ", before+" UTC by local.")
			}
			s.count(t, 1, `SELECT count(*) FROM books.transitions WHERE reason = 'a test' AND verb = '`+c.verb+`' AND order_id = '`+id+`'`)
			s.are(t, c.leaves, id)
		})
	}
}

// are fails the test unless each order has the status.
func (s *service) are(t *testing.T, status client.Status, ids ...string) {
	t.Helper()
	for _, id := range ids {
		params := client.GetOrderParams{}
		if fsm.State(status).Final() {
			params.Wait = "20s"
		}
		order, err := s.api.GetOrder(t.Context(), id, params)
		assert.True(t, err == nil && order.Status == status, id, "is not", status, order, err)
	}
}

// TestAnOrderThatHasChanged is not touched by a form from before, whichever page the person had seen last.
func TestAnOrderThatHasChanged(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.order(t, "o", "charging", "retry")
	path := "/console/order/cancel?id=o"
	cancel, retry := s.get(t, path).want(t, 200, "!Everything that was done"), s.get(t, "/console/order/retry?id=o").want(t, 200, "<summary>Advanced: policy</summary>")
	looked := s.post(t, "/console/order/retry?id=o", retry.fill("policy", "active", "reason", "typed", "look", "yes")).
		want(t, 200, "<details open><summary>Advanced: policy", ">typed</textarea>", `value="active" selected`)
	assert.NoError(t, assert.Err(s.api.PauseOrder(t.Context(), "o", client.VerbBody{Reason: "somebody else"})))
	s.post(t, path, cancel.fill("reason", "a test")).want(t, 412, "has changed since you looked", "somebody else")
	const paused = "<strong>Asked to pause</strong> by <bdi>local</bdi>: <bdi>somebody else</bdi>"
	refused := s.post(t, path, cancel.fill("reason", "a test")).want(t, 412, `action="`+path+`&amp;since=1"`, "Look at it again", paused) // with what was typed
	s.post(t, path+"&since=1", refused.fill()).want(t, 200, ">a test</textarea>", "The order ends canceled", paused)
	s.post(t, "/console/order/retry?id=o", looked.fill("reason", "a test")).want(t, 412, "!Look at it again") // it can't be retried any more
	s.count(t, 1, `SELECT count(*) FROM orders WHERE stop_requested IS NULL AND hold = 'paused'`)
	s.get(t, "/console/order/approve?id=o").want(t, 409, "The order is still being charged, and is paused. Only an order that waits for approval can be approved.")
	s.sql(t, `SET session_replication_role = replica; UPDATE orders SET status = 'refunding', hold = 'attention', stop_requested = 'cancel', seq = 3;
		RESET session_replication_role`)
	s.sql(t, `INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb, actor, reason)
		SELECT order_no, 3, 'charging', 'charging', 0, 'cancel', 'token:eve', 'too late' FROM orders`)
	const canceled = "<bdi>token:eve</bdi> asked to cancel it <time"
	s.get(t, path).want(t, 409, " waits for a person: there is nothing to cancel", canceled, `href="/console/order/retry?id=o"`, "!/console/order/cancel")
	s.get(t, "/console/order/refund?id=o").want(t, 409, "The order is being undone, and needs a person. What was charged goes back once a retry of the undo succeeds.", canceled)
	s.get(t, orderPath+"o").want(t, 200, "</bdi> <span class=\"badge being canceled\">being canceled</span> <span class=\"badge attention\"", canceled, "The goods are not reserved. Somebody must decide", "!/console/order/cancel")
	s.post(t, "/console/bulk", url.Values{"verb": {"cancel"}, "id": {"o"}}).want(t, 200, "None of these orders can be canceled<", "he order is already being canceled, and needs a person")
	s.get(t, "/console/attention?hold=attention").want(t, 200, "/console/order/retry?id=o", "!/console/order/cancel", "The goods are not reserved. Only the charge is left to undo: Retry tries again.")
	s.get(t, "/console/order/process?id=o").want(t, 404)
}

// TestWrongForms are shown again, with what is wrong and what was typed.
func TestWrongForms(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.order(t, "o", "completed", "")
	s.get(t, "/console/order/refund?id=o").want(t, 200, "!into stock") // it is not tracked
	s.sql(t, `UPDATE inventory SET item = 'other'`)
	s.get(t, "/console/order/refund?id=o").want(t, 200, "!into stock") // a provider has it
	s.sql(t, `UPDATE inventory SET item = 'i', tracked = true, on_hand = 9`)
	const refund = "/console/order/refund?id=o&preview=yes"
	for form, want := range map[string]string{"amount=x": "wrong-amount", "all=yes&restock=some": "wrong-restock", "amount=1.234": "wrong-amount"} {
		s.get(t, refund+"&"+form).want(t, 422, "Show what will change", `aria-describedby="`+want+" help-", `value="`+form[strings.LastIndex(form, "=")+1:])
	}
	s.get(t, refund+"&amount=10").want(t, 409, "exceeds what is left of the charge", "9.00 USD can still be refunded.", `value="10" data-amount="9.00 USD" aria-invalid="true"`)
	s.post(t, "/console/order/refund?id=o", url.Values{"requestId": {"1"}, "seq": {"x"}, "person": {"local"}}).want(t, 404)
	s.post(t, "/console/order/refund?id=o", url.Values{"requestId": {"1"}, "person": {"local"}}).want(t, 404)
	header := s.token(t, "desk", access.Operate, access.Read, access.Delegate)
	s.get(t, refund, header...).want(t, 422, "How much goes back?", "Choose all that is left", "All that is left: 9.00 USD", `inputmode="decimal"`)
	s.get(t, refund+"&all=yes&amount=4", header...).want(t, 200, "9.00 USD goes back")
	preview := s.get(t, refund+"&amount=4", header...)
	change := s.post(t, refund+"&amount=4", preview.fill("reason", "a dent", "edit", "yes"), header...).want(t, 200, "Show what will change", `value="4"`, `name="reason" value="a dent"`, `method="POST"`) // the reason is in no URL
	s.post(t, refund+"&amount=4", change.fill("amount", "5"), header...).want(t, 200, "5.00 USD goes back", ">a dent</textarea>")
	s.get(t, refund+"&all=yes", header...).want(t, 200, "On behalf of", "9.00 USD goes back", "!<p>All that is left", ">Refund 9.00 USD</button>")
	s.count(t, 0, `SELECT count(*) FROM charge_operations`)
	s.order(t, "held", "charging", "attention")
	for path, first := range map[string]shown{
		"refund?id=o":    s.get(t, refund+"&amount=4", header...),
		"cancel?id=held": s.get(t, "/console/order/cancel?id=held", header...),
	} {
		long := strings.Repeat("long ", 201)
		again := s.post(t, "/console/order/"+path, first.fill("reason", long), header...).want(t, 422, "What will change", "reason ", long)
		s.post(t, "/console/order/"+path, again.fill("reason", "short"), header...).want(t, 303)
	}
	s.count(t, 1, `SELECT count(*) FROM charge_operations WHERE amount = 4`)
}

// TestCaptureAndVoid: a person captures a part of an authorization, and voids the rest.
func TestCaptureAndVoid(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.order(t, "o", "completed", "")
	s.process(t, client.ProcessBody{OrderID: "lines", Amount: "7", Lines: []client.LineInput{{Item: "cup", Quantity: new(2), Amount: "6"}, {Item: "tea", Amount: "1"}}})
	s.order(t, "all", "completed", "")
	s.sql(t, `UPDATE charges SET capture = 'later', executor = 'http'`)
	assert.NoError(t, assert.Err(s.api.CaptureOrder(t.Context(), "all", client.CaptureBody{Reason: "parcel"}, client.CaptureOrderParams{Prefer: "respond-async"})))
	s.get(t, "/console/order?id=all").want(t, 200, "capture 1<", "!voids the rest")
	s.sql(t, `UPDATE charge_operations SET state = 'done', finished_at = now()`)
	s.get(t, "/console/order?id=o").want(t, 200, "<strong>9.00</strong> USD authorized", "<strong>0.00</strong> captured", "<strong>9.00</strong> left to capture<", "<strong>0.00</strong> left to refund")
	shown := s.get(t, "/console/order/capture?id=o&preview=yes&amount=4").want(t, 200, "4.00 USD is captured, 5.00 USD can still be captured.")
	s.post(t, "/console/order/capture?id=o", shown.fill("reason", "parcel")).want(t, 303)
	s.count(t, 1, `SELECT count(*) FROM charge_operations WHERE kind = 'capture' AND amount = 4`)
	s.sql(t, `UPDATE charge_operations SET state = 'in_doubt', sent_at = now() WHERE state <> 'done'`)
	s.sql(t, `UPDATE charges SET capture_by = '2100-12-04'`)
	s.get(t, "/console/order?id=o").want(t, 200, "<bdi>parcel</bdi>", "Record the result of capture 1", "left to capture, until <time", ">4 Dec</time>")
	s.settle(t, "o&capture=1", "What happened to capture 1", "outcome", "done")
	s.get(t, "/console/order?id=o").want(t, 200, "<strong>4.00</strong> captured", "<strong>5.00</strong> left to capture", "!Record the result")
	shown = s.get(t, "/console/order/void?id=o").want(t, 200, "5.00 USD is voided")
	s.post(t, "/console/order/void?id=o", shown.fill("reason", "rest")).want(t, 303)
	s.count(t, 1, `SELECT count(*) FROM charge_operations WHERE kind = 'void' AND amount = 5`)
	s.sql(t, `UPDATE charge_operations SET state = 'in_doubt', sent_at = now() WHERE kind = 'void'`)
	s.settle(t, "o&void=2", "What happened to void 2", "outcome", "done")
	s.get(t, "/console/order?id=o").want(t, 200, "USD authorized, 5.00 voided", "<strong>0.00</strong> left to capture<", `row">void`, "!Record the result")
	s.sql(t, `SET session_replication_role = replica; UPDATE charge_operations SET code = 'authorization_expired', request_id = NULL WHERE kind = 'void'; RESET session_replication_role`)
	s.get(t, "/console/order?id=o&done=void").want(t, 200, "Nothing is left to capture: the authorization had ended.", "4.00 USD was captured, and no more can be: the authorization ended.", "USD authorized, 5.00 ended", "Authorization over, 5.00 USD of it not captured</strong> by <bdi>local</bdi>: No more can be captured.<", "<strong>0.00</strong> refunded")
	s.get(t, "/console/order/capture?id=o").want(t, 409, "All of what was authorized is captured or voided, or is about to be.")
	s.get(t, "/console/order/refund?id=all").want(t, 200)
	s.sql(t, `SET session_replication_role = replica; UPDATE charge_operations SET state = 'failed', code = 'authorization_expired' WHERE amount = 4; RESET session_replication_role`)
	s.get(t, orderPath+"o").want(t, 200, "completed</span> <small>not captured: the authorization ended</small>", "Nothing was captured, and nothing can be any more: the authorization ended.")
	failed := ordersOf(`status:completed step:capture code:"authorization_expired"`)
	s.get(t, "/console/errors").want(t, 200, "Failed captures", "The authorization has ended: ask the customer for a new order.", "<strong>1</strong> order (4.00 USD)", `href="`+strings.ReplaceAll(failed, "+", "&#43;")+`"`, "!again from the start")
	s.get(t, failed).want(t, 200, `role="status">1 order<`, ">Failed capture<", "<small>not captured: the authorization ended</small>", "<div>capture of 4.00: ", "<div>4.00 USD</div>")
	// By lines, and the rest is voided.
	s.get(t, "/console/order/refund?id=lines").want(t, 409, "Nothing is captured of what was authorized, so nothing can go back")
	const capture = "/console/order/capture?id=lines"
	s.get(t, capture).want(t, 200, "cup</label>", ">2 of 2<td>", "Void the rest")
	s.get(t, capture+"&preview=yes&line1=3").want(t, 422)
	s.get(t, capture+"&preview=yes&amount=8").want(t, 409, "7.00 USD can still be captured.")
	shown = s.get(t, capture+"&preview=yes&line1=1&final=yes").want(t, 200, "3.00 USD is captured. The rest is voided", "3.00 for 1 × cup = 3.00 USD.")
	s.post(t, capture, shown.fill("reason", "parcel")).want(t, 303)
	s.get(t, "/console/order?id=lines").want(t, 200, "capture 1 <small>voids the rest</small>", ">3.00<small>, 3.00 for 1 × <bdi>cup</bdi></small><", "<strong>0.00</strong> left to capture<")
}

// TestDisputesAndRefunds: an open dispute is seen before money goes back, and a refund on its way is one line and a total.
func TestDisputesAndRefunds(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.order(t, "o", "completed", "")
	dispute := func(reference string, state client.DisputeBodyState) {
		t.Helper()
		body := client.DisputeBody{Reference: reference, State: state, Amount: "5.50", Reason: map[bool]string{true: "fraudulent"}[state == client.DisputeBodyStateOpened]}
		assert.NoError(t, assert.Err(s.api.RecordDispute(t.Context(), "o", body)))
	}
	dispute("dp_1", client.DisputeBodyStateOpened)
	dispute("dp_2", client.DisputeBodyStateOpened)
	dispute("dp_2", client.DisputeBodyStateLost)
	const warns = "could pay the customer twice"
	s.get(t, orderPath+"o").want(t, 200, "A dispute of 5.50 USD is open", "<strong>5.50</strong> in an open dispute", "<strong>5.50</strong> lost in a dispute",
		"Charged 9.00 − lost in disputes 5.50 = <strong>kept 3.50 USD</strong>", ">Refund</a>", "<strong>5.50 USD was lost in a dispute</strong>: a refund of it would pay the customer twice", ", opened <time", "<strong>The dispute is lost, reported</strong> by <bdi>local", `!data-label="Reason:"><bdi></bdi>`, "(<bdi>dp_1</bdi>,", "!(<bdi>dp_2</bdi>,", `id="disputes"`)
	for _, page := range []string{"", "&preview=yes&amount=4"} {
		s.get(t, "/console/order/refund?id=o"+page).want(t, 200, "A dispute of 5.50 USD is open (dp_1)", warns, "A dispute of 5.50 USD was lost (dp_2)", "would pay the customer twice")
	}
	s.post(t, "/console/bulk", url.Values{"verb": {"refund"}, "id": {"o"}}).want(t, 200, "A dispute is open: a refund as well", "A dispute was lost: a refund as well")
	dispute("dp_1", client.DisputeBodyStateWon)
	s.get(t, orderPath+"o").want(t, 200, "!"+warns, `id="disputes"`)
	s.get(t, "/console/order/capture?id=o").want(t, 409, "It authorizes nothing: its whole amount was charged at once, and can only be refunded.", `href="/console/order/refund?id=o"`)
	s.get(t, "/console/order/refund?id=o").want(t, 200, "!"+warns, "Kept: 3.50 USD.", "!All that is left")

	refund := s.get(t, "/console/order/refund?id=o&preview=yes&amount=4").fill("reason", "dent <b>")
	shown := s.post(t, "/console/order/refund?id=o", refund).want(t, 303).header.Get("Location")
	s.get(t, shown).want(t, 200, `role="status">The refund is done.<`, "!still to go back")
	s.get(t, "/console/orders").want(t, 200, `9.00 USD<div class="soft">refunded 4.00</div>`)
	s.sql(t, `SET session_replication_role = replica; UPDATE charge_operations SET state = 'accepted'; UPDATE orders SET seq = seq + 2;
		RESET session_replication_role`)
	s.sql(t, `INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb, reason)
		SELECT o.order_no, o.seq - 1 + n, 'completed', 'completed', o.fence, (ARRAY['refund_sent', 'refund_accepted'])[1 + n],
			(ARRAY['refund 1', 'refund 1: accepted'])[1 + n] FROM orders AS o, generate_series(0, 1) AS n`)
	s.get(t, shown).want(t, 200, `role="status">The refund is requested.<`, "<strong>4.00</strong> still to go back", "<strong>−0.50</strong> kept<", "!left to refund", "!>Refund</a>",
		"<strong>Refund 1: 4.00 USD</strong> by <bdi>local</bdi>: <bdi>dent &lt;b&gt;</bdi>. Accepted.", "!tries")
}

// TestSettling: a person records the result of a step, of a refund, and of an undo that came too late.
func TestSettling(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.doubt(t, "step")
	s.settle(t, "step", "What happened to the charge", "outcome", "done", "reference", "ch_1").
		want(t, 200, "9 USD counts as charged. Nothing is sent to the provider for it: if it never happened, it never will. The order goes on with the reservation.")
	s.are(t, "completed", "step")
	s.get(t, orderPath+"step&done=step-result").want(t, 200, `role="status">Charge: recorded as done. The order is completed.<`)
	s.doubt(t, "undo")
	s.sql(t, `WITH o AS (UPDATE orders SET status = 'refunding', seq = 2, outcome = 'canceled', stop_requested = 'cancel', hold_reason = 'undo_refused: disputed' WHERE order_id = 'undo' RETURNING *)
		INSERT INTO charges (order_no, generation, currency, amount, executor, reference) SELECT order_no, 0, currency, amount, 'http', 'ch_2' FROM o`)
	s.get(t, "/console/attention?hold=attention&reason=undo_refused").want(t, 200, "A refusal does not go away", "!>in doubt<")
	s.sql(t, `UPDATE step_calls SET operation = 'undo', outcome = 'refused', code = 'disputed', finished_at = now() WHERE order_no = (SELECT order_no FROM orders WHERE order_id = 'undo')`)
	s.get(t, orderPath+"undo").want(t, 200, "!No result yet", "refuses the undo: disputed", "Somebody must decide: Record the step&#39;s result, once it is certain at the provider; Retry tries the undo of the charge again.",
		`class="button primary" href="/console/order/step-result?id=undo"`)
	s.get(t, "/console/order/step-result?id=undo&preview=yes&outcome=refused&code=dispute_lost").
		want(t, 200, "Only the code changes: disputed → dispute_lost; 9 USD is still to go back.")
	s.get(t, "/console/order/step-result?id=undo&preview=yes&outcome=refused&code=disputed").want(t, 200, "It counts as refused already: disputed; 9")
	s.get(t, "/console/order/step-result?id=undo").want(t, 200, "The last answer, ", " UTC: refused disputed.<")
	s.sql(t, `SET session_replication_role = replica; WITH o AS (UPDATE orders SET seq = 4, hold_reason = 'undo_refused: step_result: dispute_lost' WHERE order_id = 'undo' RETURNING order_no)
		INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb, actor, reason) SELECT order_no, v.* FROM o, (VALUES
			(3, 'refunding', 'refunding', 0, 'step-result', 'local', 'seen there'), (4, 'refunding', 'refunding', 0, 'attention', 'system', 'undo_refused: step_result: dispute_lost')) AS v; RESET session_replication_role`)
	told := s.get(t, orderPath+"undo&done=step-result").want(t, 200, "Needs a person: recorded by local as refused: dispute_lost<", "Undo of the charge: recorded as refused. Nothing was sent.", "<bdi>local</bdi> recorded <bdi>dispute_lost</bdi> ", "</time>: <bdi>refused disputed</bdi>.")
	assert.Equal(t, strings.Count(told.body, "Refused: dispute lost."), 1, "told once")
	s.get(t, orderPath+"undo&every=yes").want(t, 200, "recorded as refused, <bdi>dispute_lost</bdi>, by <bdi>local</bdi>: <bdi>seen there<", "<bdi>undo_refused: step_result: dispute_lost<")
	s.settle(t, "undo", "What happened to the undo of the charge", "outcome", "done", "reference", "rf_1").want(t, 200, "9 USD counts as given back", "The order ends canceled.", "!field by field")
	s.are(t, "canceled", "undo")
	s.get(t, orderPath+"undo&done=step-result").want(t, 200, "<strong>Undo of the charge: recorded as done</strong> by <bdi>local</bdi>: <bdi>seen there</bdi><",
		`role="status">Undo of the charge: recorded as done. The order has ended as canceled, and nothing is owed.<`, "and went back, as local recorded.")
	s.get(t, orderPath+"undo&every=yes").want(t, 200, "Undo of the charge: recorded as done", "seen there")

	s.order(t, "refund", "completed", "")
	s.sql(t, `UPDATE orders SET charge_operations = 1 WHERE order_id = 'refund'`)
	s.sql(t, `UPDATE charges SET executor = 'http' WHERE order_no = (SELECT order_no FROM orders WHERE order_id = 'refund')`)
	s.sql(t, `INSERT INTO charge_operations (order_no, generation, number, currency, amount, state, executor, request_id, sent_at, code, detail, due_at)
		SELECT order_no, 0, 1, 'USD', 5, 'in_doubt', 'http', 'r', now(), 'timeout', 'i/o timeout', now() + interval '5 minutes' FROM orders WHERE order_id = 'refund'`)
	s.get(t, orderPath+"refund").want(t, 200, "Record the result of refund 1", "<summary>the provider did not answer in time</summary><bdi>i/o timeout</bdi>", "The refund of 5 USD is not done yet", "Refund 1, 5 USD: the provider did not answer in time at the last try; the next try is <time data-due", "</time> at the latest", "still to go back 5 = <strong>kept 4.00 USD, once all has gone back<", `href="/console/order/retry?id=refund">Retry<`)
	s.get(t, orderPath+"refund&done=retry").want(t, 200, "It was tried again, and is not done yet: the next try is below.")
	s.get(t, "/console/orders").want(t, 200, "still to go back 5")
	s.get(t, "/console/order/refund?id=step").want(t, 200, "All that is left")
	s.doubt(t, "early")
	s.get(t, "/console/order/refund?id=early").want(t, 409, "Nothing was done to order", "Cancel it instead: what was charged, or may have been, goes back", `href="/console/order/cancel?id=early"`, "!All that is left")
	s.get(t, "/console/order/retry?id=refund").want(t, 200, "tried again now", "may be longer.", ">Retry</button>", "!Advanced: policy")
	s.sql(t, `UPDATE charge_operations SET code = 'outcome_unknown' WHERE number = 1`)
	s.get(t, orderPath+"refund").want(t, 200, "Somebody must look at the provider")
	s.settle(t, "refund&refund=1", "What happened to refund 1", "outcome", "refused", "code", "closed")
	o, err := s.api.GetOrder(t.Context(), "refund")
	assert.True(t, err == nil && o.Refunds[0].State == "failed" && o.Refunds[0].Code == "closed", o, err)
	s.get(t, orderPath+"refund").want(t, 200, "<strong>Refund 1: recorded as refused</strong> by <bdi>local</bdi>: <bdi>seen there</bdi>. Refused: closed.")

	s.order(t, "late", "completed", "")
	s.sql(t, `UPDATE orders SET policy = 1 WHERE order_id = 'late'`)
	s.sql(t, `INSERT INTO late_undos (order_no, generation, step, reason, due_at)
		SELECT order_no, 0, 'charge', 'a test', now() + interval '1 hour' FROM orders WHERE order_id = 'late'`)
	s.sql(t, `INSERT INTO step_calls (order_no, call, fence, generation, step, operation, started_at)
		SELECT order_no, -n, 0, 0, 'charge', 'undo', now() - (60 - n) * interval '1 s' FROM orders, generate_series(1, 60) AS n
		WHERE order_id = 'late'`)
	for page, links := range map[string]int{"": 1, "&aside=-50": 1, "&sort=oldest": 1} { // for the last try on the page
		shown := s.get(t, orderPath+"late"+page).want(t, 200, "charge undo")
		assert.Equal(t, strings.Count(shown.body, "Record that it was undone by hand"), links,
			page, "has links to settle the undo")
	}
	s.get(t, orderPath+"late").want(t, 200, "step=charge&amp;generation=0")
	s.sql(t, `SET session_replication_role = replica; UPDATE orders SET item = 'of-a-provider' WHERE order_id = 'late'; RESET session_replication_role`)
	s.get(t, "/console/order/refund?id=late").want(t, 200, "All that is left")
	s.settle(t, "late&step=charge&generation=0", "What happened to the undo of the charge in generation 0", "outcome", "done")
	s.count(t, 1, `SELECT count(*) FROM late_undos WHERE finished_at IS NOT NULL`)
	s.get(t, orderPath+"late").want(t, 200, "Result recorded by a person", "!Record that it was undone by hand")
}

// settle goes through the pages of step-result about something, which is the query of their URL, and returns the preview.
func (s *service) settle(t *testing.T, about, question string, answers ...string) shown {
	t.Helper()
	path := "/console/order/step-result?id=" + about
	first := s.get(t, path).want(t, 200, question, "Its id for "+strings.TrimPrefix(question, "What happened to ")+".", "<p>Order: ", `name="outcome" required`, "! selected>It")
	words := map[string]string{"done": "Done: it happened, or you did it by hand", "refused": "Refused: it did not happen; do not send it"}[answers[1]]
	page := s.get(t, "/console/order/step-result?"+first.fill(answers...).Encode()).want(t, 200, `name="reason"`, question+": "+words)
	s.post(t, path, page.fill("reason", "seen there")).want(t, 303)
	return page
}

// TestAnotherApprover: the submitter is not offered to approve, and told why if they try.
func TestAnotherApprover(t *testing.T) {
	t.Parallel()
	s := setupWith(t, "approval: [{approver: another, timeout: 24h, onTimeout: approve}]\n")
	own := s.token(t, "shop", access.Submit, access.Read, access.Approve)
	other := s.token(t, "maria", access.Read, access.Approve)
	shop, err := client.New(s.url, client.Options{Token: strings.TrimPrefix(own[1], "Bearer ")})
	assert.NoError(t, err)
	assert.NoError(t, assert.Err(shop.Process(t.Context(), client.ProcessBody{OrderID: "o", Amount: "9", Item: "i"})))
	for _, page := range []string{orderPath + "o", "/console/attention"} {
		s.get(t, page, own...).want(t, 200, ">Reject<", "it is approved <time", "!>Approve<")
		s.get(t, page, other...).want(t, 200, ">Reject<", ">Approve<")
	}
	s.get(t, orderPath+"o", own...).want(t, 200, "the policy requires an approver other than the submitter")
	s.get(t, "/console/attention", own...).want(t, 200, "You submitted it. The policy requires another person")
	reader := s.token(t, "reader", access.Read)
	s.get(t, "/console/attention", reader...).want(t, 200, "A person with the role <code>approve</code> decides about it.")
	s.get(t, "/console", reader...).want(t, 200, "No order needs you.", "needs a person with another role.", "by a person with the role approve")
	approve := "/console/order/approve?id=o"
	s.get(t, approve, own...).want(t, 403, "Nothing was done", "someone other than the submitter", "!Look at it again")
	s.post(t, approve, s.get(t, approve, other...).want(t, 200, "What will change").fill(), other...).want(t, 303)
	s.count(t, 1, `SELECT count(*) FROM books.transitions WHERE verb = 'approve' AND actor = 'token:maria'`)
}

// TestBulk: a dry run is shown first and does nothing, then each order has a result, and the form that is sent again does
// nothing twice.
func TestBulk(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "a", "b", "c")
	s.order(t, "done", "completed", "")
	s.get(t, "/console/bulk").want(t, 200, "Many orders", `<option value="cancel"`, `!<option value="step-result"`)

	look := s.post(t, "/console/bulk", url.Values{"verb": {"cancel"}, "ids": {"a,\r\n b \r\n\r\nb,done"}, "id": {"c", "<i>none"}})
	look.want(t, 200, "Cancel 3 orders?", "Left out: 2 orders", "&lt;i&gt;none", "not_applicable", "not_found", "!<i>none")
	s.are(t, "pending", "a", "b", "c")

	form := look.fill("confirm", "yes", "reason", "the shop is closed")
	assert.Equal(t, strings.Join(form["id"], " "), "c a b", "in the order given, as the dry run gives them stock")
	form["id"] = []string{"a", "b", "done"} // c was left out, and one has ended meanwhile
	form.Set("offered", "4")
	to := s.post(t, "/console/bulk", form).want(t, 303).header.Get("Location")
	s.post(t, "/console/bulk", form).want(t, 303)
	s.are(t, "canceled", "a", "b")
	first := s.get(t, to).want(t, 200, "<h1>Cancel 2 orders</h1>", "2 of 2 have ended", "<strong>2</strong> done: nothing stays charged", "1,200.00 USD", "Unchanged: 2 orders that the preview left out, 1 that was unticked.", "<strong>1</strong> refused, nothing was done<br><small>9.00 USD",
		"the shop is closed", `href="/console/order?id=done"`, "Try these again", "data-live")
	s.get(t, to+"&state=done").want(t, 200, `state=done" aria-current="true"`, "<bdi>a</bdi>")
	s.get(t, to+"&state=held").want(t, 200, "None of its orders is in this state", "!<bdi>a</bdi>")
	s.are(t, "pending", "c")
	request := form.Get("requestId")
	s.count(t, 2, `SELECT count(*) FROM books.transitions
		WHERE verb = 'cancel' AND reason = 'the shop is closed' AND request_id = '`+request+`'`)
	again := first.fill()
	assert.True(t, again.Get("id") == "done" && !again.Has("requestId") && !again.Has("confirm"), "the others are tried again with", again)
	s.post(t, "/console/bulk", again).want(t, 200, "None of these orders can be canceled<", `!name="confirm"`)
}

// TestBulkVerbs asks each verb of two orders that allow it and one that does not.
func TestBulkVerbs(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.order(t, "ended", "completed", "")
	for _, c := range []struct{ verb, is, hold, button, becomes, afterwards string }{
		{"retry", "charging", "attention", "Retry 2 orders", "completed", "<td>charge is tried again · 9 USD is charged<"},
		{"approve", "pending", "approval", "Approve 2 orders", "completed", "<strong>18 USD</strong> is charged."},
		{"reject", "pending", "approval", "Reject 2 orders", "canceled", `<td><span class="badge canceled">canceled</span> · 9 USD was never charged<`},
		{"pause", "charging", "retry", "Pause 2 orders", "charging", "<td>paused"},
		{"resume", "charging", "paused", "Resume 2 orders", "completed", "<td>continues at the charge"},
		{"cancel", "charging", "retry", "Cancel 2 orders", "canceled", `<strong>9 USD</strong> goes back to the customer if it was charged.</span> <span data-sum="was never charged"><strong>9 USD</strong>`},
		{"refund", "completed", "", "Refund 2 orders", "completed", `<td><span class="badge completed">completed</span> · 9.00 USD goes back<`},
	} {
		ids := []string{c.verb + "-1", c.verb + "-2"}
		for _, id := range ids {
			s.order(t, id, c.is, c.hold)
		}
		s.sql(t, `UPDATE orders SET in_doubt_since = now() WHERE order_id = 'cancel-1'`)
		form := url.Values{"verb": {c.verb}, "id": append(slices.Clone(ids), "ended")}
		if c.verb == "refund" {
			form["id"] = append(ids, "lacking") // the order that has ended can be refunded
		}
		page := s.post(t, "/console/bulk", form).want(t, 200, c.button+"?", strings.Replace(c.button, "2 orders", "<span data-ticked>2 orders</span></span></button>", 1), "Left out: 1 order", c.afterwards)
		s.post(t, "/console/bulk", page.fill("confirm", "yes", "reason", " ")).want(t, 200, `role="alert"`, "/console/")
		s.count(t, 0, `SELECT count(*) FROM books.transitions WHERE verb = '`+c.verb+`' AND actor = 'local'`)
		confirmed := page.fill("confirm", "yes", "reason", "seen by hand")
		follow := s.post(t, "/console/bulk", confirmed).want(t, 303).header.Get("Location")
		s.get(t, follow).want(t, 200, "<bdi>seen by hand</bdi>", ids[0], ids[1])
		s.are(t, client.Status(c.becomes), ids...)
		s.count(t, 2, `SELECT count(*) FROM books.transitions WHERE verb = '`+c.verb+`' AND reason = 'seen by hand' AND actor = 'local'`)
	}
}

// TestBulkOfASearch: a link has a search as the list does, and one that is not understood means no order.
func TestBulkOfASearch(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.wait(t, "a", "b")
	s.process(t, client.ProcessBody{OrderID: "other", Amount: "700", Item: "chair"})
	s.get(t, "/console/bulk?verb=approve&q=hold:approval+item:lamp+customer:ann+status:pending,charging+amount:<=650").
		want(t, 200, "Approve 2 orders?", `600.00 USD<td data-label="Item:"><bdi>1 × lamp</bdi><td data-label="Customer:"><bdi>`, "!other")
	s.are(t, "pending", "a", "b", "other")
	for _, link := range []string{"colour=red", "status=failed", "q=item:lamp&q=item:chair", "q=status:none", "q=", "q=colour:red+amount:x", "q=amount:x"} {
		s.get(t, "/console/bulk?verb=cancel&"+link).want(t, 422, "does not say which orders")
	}
	// All that a list shows, and the chosen ones, are links, too.
	all := s.get(t, "/console/bulk?id=a&verb=approve&all=item%3Alamp+hold%3Aapproval").want(t, 303).header.Get("Location")
	s.get(t, all).want(t, 200, "Approve 2 orders?", "<strong>1,200.00 USD</strong> is charged.", "!other")
	s.get(t, "/console/bulk?id=a&verb=approve").want(t, 200, "Approve 1 order?")
	s.get(t, "/console/bulk?verb=approve&q=ann+item:lamp").want(t, 200, "Approve 2 orders?")
	none := s.get(t, "/console/bulk?verb=approve&search=item%3Alamp").want(t, 303).header.Get("Location")
	s.get(t, none).want(t, 200, "Select orders in the list first.", `value="item:lamp"`)
	s.get(t, "/console/bulk?verb=cancel&q=item:none").want(t, 200, "Many orders")
}

// TestBulkOfMany: a thousand ids are the most; long ones need several requests; and a form with more costs no more.
func TestBulkOfMany(t *testing.T) {
	t.Parallel()
	s := setup(t)
	var ids []string
	for i := range 1000 {
		ids = append(ids, fmt.Sprintf("%0250d", i))
	}
	s.wait(t, ids[0], ids[999])
	pause := func(ids ...string) shown {
		return s.post(t, "/console/bulk", url.Values{"verb": {"pause"}, "ids": {strings.Join(ids, "\n")}})
	}
	pause(append(ids, "one more")...).want(t, 200, "At most 1,000 orders")
	form := pause(ids...).want(t, 200, "Pause 2 orders?", "Left out: 998 orders", "<td>paused").fill("confirm", "yes", "reason", "too many")
	form["id"] = ids
	s.get(t, s.post(t, "/console/bulk", form).want(t, 303).header.Get("Location")).want(t, 200, "Pause 2 orders", "<strong>998</strong> refused")
}

// TestLookingAgain: refused orders are tried again with what was chosen since, and nothing is done to them before that.
func TestLookingAgain(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.doubt(t, "a")
	s.doubt(t, "b")
	form := s.post(t, "/console/bulk", url.Values{"verb": {"retry"}, "id": {"a", "b"}}).
		want(t, 200, "None of these orders", "Show what will change").fill("policy", "active")
	s.post(t, "/console/bulk", form).want(t, 200, "Retry 2 orders?", `!name="refused"`)
	form.Set("confirm", "yes")
	s.post(t, "/console/bulk", form).want(t, 200, "Many orders")
	s.count(t, 0, `SELECT count(*) FROM books.transitions WHERE verb = 'retry'`)
}

// TestErrorGroupsAreExact: the button of a group is about its orders, and not about those whose reason only begins like it.
func TestErrorGroupsAreExact(t *testing.T) {
	t.Parallel()
	s := setup(t)
	for id, reason := range map[string]string{
		"a": "non_retryable: insufficient", "b": "non_retryable: insufficient_funds", "c": "non_retryable: insufficient: of card 2",
		"d": "retry_after: later", "e": "retry_after_all", "f": "23505: charges_pkey", "never retried": "outcome_unknown: charge",
	} {
		s.plant(t, "attention", reason, id)
	}
	page := s.get(t, "/console/errors").want(t, 200, "outcome_unknown")
	var groups []string
	for _, match := range regexp.MustCompile(`href="([^"]+)">Retry \d+ order`).FindAllStringSubmatch(page.body, -1) {
		ids := s.get(t, html.UnescapeString(match[1])).want(t, 200).fieldsOf()["id"]
		slices.Sort(ids)
		groups = append(groups, strings.Join(ids, " "))
	}
	slices.Sort(groups)
	assert.Equal(t, strings.Join(groups, ", "), "a c, b, d, e, f", "the groups")
	s.get(t, "/console/orders?q=reason:retry_after").want(t, 200, "<bdi>d</bdi>", "!<bdi>e</bdi>")
}
