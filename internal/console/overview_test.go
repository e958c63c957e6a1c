package console_test

import (
	"html"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pawl/client"
	"pawl/internal/access"
)

func TestOverview(t *testing.T) {
	t.Parallel()
	s := setup(t)
	host := strings.TrimPrefix(s.url, "http://")
	s.get(t, "/console").want(t, 200, "The service is open.", "There are no orders yet.", "curl "+host, "Nothing of it in the last hour.", "has called no provider")
	s.process(t, client.ProcessBody{OrderID: "done", Amount: "5", Item: "lamp"})
	s.process(t, client.ProcessBody{OrderID: `<b>"big`, Amount: "600", Item: "lamp"})
	shows := func() bool { // what is shown may be a second old
		return strings.Contains(s.get(t, "/console").body, "1 orders are completed")
	}
	eventually(t, "the orders are shown", shows)
	s.get(t, "/console").want(t, 200, "1 orders are pending", `href="/console/orders?q=status%3Apending"`, "<strong class=\"bad\">1</strong> need a person",
		`href="/console/order?id=%3Cb%3E%22big"`, `<bdi>&lt;b&gt;&#34;big</bdi>`).lacks(t, "There are no orders yet.", `<b>"big`)
	name, value := s.token(t, "warehouse", access.Stock)
	s.get(t, "/console", name, value).want(t, 200, "With your roles you see no overview").lacks(t, "machine", "is open")
}

func TestErrors(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.get(t, "/console/errors").want(t, 200, "No order has failed")
	if _, err := s.api.SetInventory(t.Context(), "gone", &client.SetInventoryParams{IfNoneMatch: "*"}, client.SetInventoryBody{OnHand: 0, Reason: "sold"}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"first", `<i>second`} {
		if o := s.process(t, client.ProcessBody{OrderID: id, Amount: "5", Item: "gone"}); o.Status != client.StatusFailed {
			t.Fatalf("%+v", o)
		}
	}
	eventually(t, "both are shown", func() bool { return strings.Contains(s.get(t, "/console/errors").body, "List the 2 orders") })
	bulk := "/console/bulk?" + url.Values{"verb": {"retry"}, "status": {"failed"}, "failureStep": {"reserve"}, "failureCode": {"out_of_stock"}}.Encode()
	list := "/console/orders?" + url.Values{"q": {`status:failed step:reserve code:"out_of_stock"`}}.Encode()
	escaped := strings.NewReplacer("&", "&amp;", "+", "&#43;").Replace
	s.get(t, "/console/errors").want(t, 200, "out_of_stock", `<bdi>&lt;i&gt;second</bdi>`, `href="`+escaped(bulk)+`"`, `href="`+escaped(list)+`"`)
	name, value := s.token(t, "reader", access.Read)
	s.get(t, "/console/errors", name, value).want(t, 200, "out_of_stock").lacks(t, "Retry all")
	name, value = s.token(t, "shop", access.Submit)
	s.get(t, "/console/errors", name, value).want(t, 403, "needs the role read")
}

// TestErrorGroupsAreExact: the button of a group is about its orders, and not about those whose reason goes on where its own ends.
func TestErrorGroupsAreExact(t *testing.T) {
	t.Parallel()
	s := setup(t)
	for id, reason := range map[string]string{
		"a": "non_retryable: insufficient", "b": "non_retryable: insufficient_funds", "c": "non_retryable: insufficient: of card 2",
		"d": "retry_after: later", "e": "retry_after_all", "f": "23505: charges_pkey",
	} {
		s.plant(t, "attention", reason, id)
	}
	s.plant(t, "attention", "outcome_unknown: charge", "never retried as it is")
	page := s.get(t, "/console/errors").want(t, 200, "outcome_unknown")
	var groups []string
	for _, match := range regexp.MustCompile(`href="([^"]+)">Retry all of these`).FindAllStringSubmatch(page.body, -1) {
		ids := s.get(t, html.UnescapeString(match[1])).want(t, 200).form()["id"]
		slices.Sort(ids)
		groups = append(groups, strings.Join(ids, " "))
	}
	slices.Sort(groups)
	if got := strings.Join(groups, ", "); got != "a c, b, d, e, f" {
		t.Errorf("the groups are %s", got)
	}
	s.get(t, "/console/orders?q=reason:retry_after").want(t, 200, "<bdi>d</bdi>").lacks(t, "<bdi>e</bdi>")
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !holds(); {
		if time.Now().After(limit) {
			t.Fatal("in vain: " + what)
		}
	}
}

func TestBooks(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.process(t, client.ProcessBody{OrderID: "../1 <b>", Amount: "6", Item: "lamp"})
	before := s.get(t, "/console/books").want(t, 200, "has proved nothing", "Prove the books now")
	s.prove(t).want(t, 200, "The books are right", "14 checks hold", "status:completed", ">6<").lacks(t, "The books are wrong")
	s.listen(t, before.live(t)).poked(t) // though it listens late

	s.sql(t, `SET session_replication_role = replica; UPDATE charges SET amount = 7; UPDATE inventory SET sold = 3; RESET session_replication_role`)
	s.prove(t).want(t, 200, "The books are wrong", `/console/order?id=..%2f1%20%3cb%3e`, "<bdi>../1 &lt;b&gt;</bdi>", "/console/item?item=lamp", "charged another amount").lacks(t, "The books are right", "<b>")
}

// prove has the books proved, and returns the page of the report.
func (s *service) prove(t *testing.T) shown {
	t.Helper()
	s.post(t, "/console/books", nil).want(t, 303)
	for deadline := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
		if state, err := s.api.GetVerification(t.Context()); err != nil || state.State == client.VerificationStateDone {
			return s.get(t, "/console/books")
		}
		if time.Now().After(deadline) {
			t.Fatal("the proof has no end")
		}
	}
}
