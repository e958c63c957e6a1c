package console_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"pawl/access"
	"pawl/client"
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

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !holds(); {
		if time.Now().After(limit) {
			t.Fatal("in vain: " + what)
		}
	}
}
