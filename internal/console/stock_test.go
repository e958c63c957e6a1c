package console_test

import (
	"testing"

	"pawl/client"
)

func TestStock(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.get(t, "/console/stock").want(t, 200, "There are no items yet")
	const item = `?item=%2e%2e%2f%3Cb%3E`
	s.get(t, "/console/item"+item).want(t, 200, "Nobody has ordered this item", "<bdi>../&lt;b&gt;</bdi>", ">Set after a count<")

	seen := s.do(t, "/console/item/set"+item, "onHand", "12", "reason", "the first\u202e count").want(t, 200, "What will change", "not tracked", "<bdi>12</bdi>")
	s.post(t, "/console/item/set"+item, seen.fill()).want(t, 303)
	s.post(t, "/console/item/set"+item, seen.fill()).want(t, 303) // a double click
	s.get(t, "/console/item"+item).want(t, 200, "<strong>12</strong> on hand", "&#43;12", `the first\u202e count`)
	seen = s.do(t, "/console/item/adjust"+item, "change", "-2", "reason", "broken").want(t, 200, "<bdi>10</bdi>")
	s.post(t, "/console/item/adjust"+item, seen.fill()).want(t, 303)
	var onHand, movements int
	s.scan(t, `SELECT i.on_hand, (SELECT count(*) FROM stock_movements) FROM inventory AS i`, &onHand, &movements)
	if onHand != 10 || movements != 2 {
		t.Errorf("%d on hand after %d movements", onHand, movements)
	}
	s.do(t, "/console/item/adjust"+item, "change", "many", "reason", "r").want(t, 422, "whole number", `value="many"`)
	seen = s.do(t, "/console/item/adjust"+item, "change", "-11", "reason", "broken").want(t, 200)
	s.post(t, "/console/item/adjust"+item, seen.fill()).want(t, 409, "The units on hand cannot be fewer than those reserved")
	counted := s.do(t, "/console/item/set"+item, "onHand", "9").want(t, 200)
	if _, err := s.api.AdjustInventory(t.Context(), "../<b>", nil, client.AdjustInventoryBody{Change: 5, Reason: "found"}); err != nil {
		t.Fatal(err)
	}
	s.post(t, "/console/item/set"+item, counted.fill()).want(t, 412, "The resource has changed: the condition in If-Match or If-None-Match was not met", "on the shelf")
	s.do(t, "/console/item/set"+item, "onHand", "15").want(t, 422, "Nothing would change.")

	// A long history is read from its end.
	s.sql(t, `INSERT INTO stock_movements (item, version, kind, change, on_hand, sold, actor, request_id) SELECT 'lamp', n, 'adjustment', 1, n, 0, 'ann', 'request-' || n FROM generate_series(1, 120) AS n`)
	s.sql(t, `INSERT INTO inventory (item, on_hand, tracked, version) SELECT 'item ' || n, n, true, 1 FROM generate_series(1, 60) AS n UNION ALL SELECT 'lamp', 120, true, 120`)
	last := s.get(t, "/console/item?item=lamp").want(t, 200, "request-120", "before=71").lacks(t, "request-70<", ">Newest<")
	s.get(t, "/console/item?item=lamp&before=71").want(t, 200, "request-70<", "before=21", ">Newest<").lacks(t, "request-71<")
	s.get(t, "/console/item?item=lamp&before=21").want(t, 200, "request-1<").lacks(t, `rel="next"`)
	if len(last.body) > 60_000 {
		t.Errorf("a page of %d bytes", len(last.body))
	}
	s.get(t, "/console/stock").want(t, 200, "Next page", "item=..%2f%3cb%3e").lacks(t, ">lamp<")
}
