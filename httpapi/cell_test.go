package httpapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pawl/engine"
	"pawl/internal/cell"
	"pawl/test/assert"
)

// TestOtherCell: a request about an order of another cell is refused before anything is read; here, there is nothing to
// read from. The hash of order-123 begins with 3b, that of a with ca.
func TestOtherCell(t *testing.T) {
	t.Parallel()
	first := &bundle{api: New(nil, Config{Cell: cell.Cell{Number: 0, Of: 2}})}
	refused := 0
	for _, op := range theServer().documented {
		if !namesOrder(op.Path) || strings.Contains(op.Path, "{token}") {
			continue
		}
		body := strings.ReplaceAll(string(examples()[op.OperationID].Body), "order-123", "a")
		target := strings.NewReplacer("{orderId}", "a", "{verb}", "cancel").Replace(op.Path)
		if target == bulkPath+"cancel" {
			body = `{"ids":["order-123","a"],"requestId":"r"}`
		}
		a := first.call(t, op.Method+" "+target, body)
		a.wantProblem(t, http.StatusMisdirectedRequest, "other_cell")
		assert.Contains(t, a.body, `"cell":"1/2"`, target)
		refused++
	}
	assert.True(t, refused >= 10, refused, "operations name orders")
	first.call(t, "POST /api/bulk/refund", `{"refunds":[{"orderId":"a"}],"reason":"r","requestId":"r"}`).wantProblem(t, 421, "other_cell")
	r := httptest.NewRequestWithContext(t.Context(), "POST", processPath, strings.NewReader(ask("a")+"\n"))
	r.Header.Set("Content-Type", ndjson)
	assert.Contains(t, send(t, first.api, r).body, `"code":"other_cell"`)

	second := setupWith(t, engine.Config{Lease: lease}, Config{ResponseTimeout: patience, Cell: cell.Cell{Number: 1, Of: 2}})
	second.process(t, ask("a")).wantStatus(t, http.StatusOK)
	second.get(t, "/api/orders/a").wantStatus(t, http.StatusOK)
	second.process(t, ask("order-123")).wantProblem(t, 421, "other_cell")
	assert.Equal(t, second.count(t, "SELECT count(*) FROM orders"), 1)
}

// TestCallbackOfOtherCell: the first characters of a token say to which cell it belongs.
func TestCallbackOfOtherCell(t *testing.T) {
	t.Parallel()
	b, path := withProvider(t)
	b.process(t, ask("a"), "Prefer", "wait=0")
	callback := path() // ends in the token of order a, of cell 1/2
	_, token, _ := strings.Cut(callback, "/callbacks/")
	if token[0] < 'q' && token[0] > '7' { // by this, a proxy sends it there
		t.Errorf("token %s", token)
	}
	for number, want := range map[int]int{0: http.StatusMisdirectedRequest, 1: http.StatusOK} {
		b.api = New(b.engine, Config{Cell: cell.Cell{Number: number, Of: 2}})
		b.call(t, "POST "+callback, `{"outcome":"done"}`).wantStatus(t, want)
		b.call(t, fmt.Sprint("POST ", strings.Replace(callback, token, "aa"+token[2:], 1)), `{"outcome":"done"}`).
			wantStatus(t, map[int]int{0: http.StatusNotFound, 1: http.StatusMisdirectedRequest}[number])
	}
}
