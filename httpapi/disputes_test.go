package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"pawl/internal/access"
	"pawl/test/assert"
)

// TestDisputes: each state of a dispute is recorded once, shown, told and counted, and moves nothing.
func TestDisputes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.number(t)
	b.process(t, `{"orderId":"o","amount":10,"item":"widget"}`).wantStatus(t, 200)
	b.waitsFor(t, "attention", "charging", "uncharged")
	record := func(id, body string) answer { return b.call(t, "POST /api/orders/"+id+"/disputes", body) }
	for range 2 {
		record("o", `{"reference":"dp_1","state":"opened","amount":"4.50","reason":"fraudulent","at":"2026-11-01T00:00:00Z"}`).wantStatus(t, http.StatusOK)
	}
	record("o", `{"reference":"dp_2","state":"opened","amount":10}`).wantStatus(t, http.StatusOK)
	dry := b.call(t, "POST /api/orders/o/disputes?dryRun=true", `{"reference":"dp_1","state":"lost","amount":"4.50"}`).wantStatus(t, http.StatusOK)
	a := record("o", `{"reference":"dp_1","state":"won","amount":"4.50"}`)
	done := a.wantStatus(t, http.StatusOK)
	assert.True(t, done.Status == "completed" && done.Seq == dry.Seq+1, a.body)
	var shown struct{ Disputes []dispute }
	assert.NoError(t, json.Unmarshal([]byte(a.body), &shown))
	var states []string
	for _, d := range shown.Disputes {
		states = append(states, d.Reference+" "+d.State+" "+d.Amount+d.Reason)
	}
	assert.Equal(t, strings.Join(states, ", "), "dp_1 opened 4.50fraudulent, dp_2 opened 10.00, dp_1 won 4.50")
	p := record("o", `{"reference":"dp_1","state":"won","amount":"4.51"}`).wantProblem(t, http.StatusUnprocessableEntity, "idempotency_key_reused")
	assert.True(t, len(p.Errors) == 1 && p.Errors[0].Pointer == "/amount", p.Errors)
	record("uncharged", `{"reference":"dp_1","state":"won","amount":"1"}`).wantProblem(t, http.StatusConflict, "not_applicable")
	record("none", `{"reference":"dp_1","state":"won","amount":"1"}`).wantProblem(t, http.StatusNotFound, "not_found")
	for body, pointer := range map[string]string{
		`{"state":"won","amount":"1"}`: "/reference", `{"reference":"d","state":"wonn","amount":"1"}`: "/state", `{"reference":"d","state":"won"}`: "/amount",
		`{"reference":"d","state":"won","amount":"1.001"}`: "/amount", `{"reference":"d","state":"won","amount":0}`: "/amount",
	} {
		p := record("o", body).wantProblem(t, http.StatusUnprocessableEntity, "invalid_input")
		assert.True(t, len(p.Errors) == 1 && p.Errors[0].Pointer == pointer, body, p.Errors)
	}
	assert.Equal(t, b.found(t, "term=dp_2"), "o disputeReference")
	o := b.get(t, "/api/overview")
	assert.Contains(t, o.body, `"disputes":1,`)
	eventually(t, "the disputes are events", func() bool {
		page := b.eventsAt(t, "?order=o&type=order.dispute_opened,order.dispute_won")
		return strings.Join(typesOf(t, page.Events), " ") == "order.dispute_opened order.dispute_opened order.dispute_won"
	})
	assert.Equal(t, b.count(t, `SELECT count(*) FROM books.disputes WHERE order_id = 'o'`), 3, "facts")
	_, err := b.Pool.Exec(t.Context(), `UPDATE pawl.disputes SET amount = 1`)
	assert.True(t, err != nil, "a fact was changed")
}

func TestDisputesNeedTheRole(t *testing.T) {
	t.Parallel()
	b, tokens := withTokens(t, map[string]access.Roles{"shop": {access.Submit}, "desk": {access.Operate, access.Submit}})
	b.call(t, "POST /api/orders/process", ask("o"), "Authorization", tokens["desk"]).wantStatus(t, http.StatusOK)
	const body = `{"reference":"dp_1","state":"opened","amount":"1"}`
	b.call(t, "POST /api/orders/o/disputes", body, "Authorization", tokens["shop"]).wantProblem(t, http.StatusForbidden, "forbidden")
	b.call(t, "POST /api/orders/o/disputes", body, "Authorization", tokens["desk"]).wantStatus(t, http.StatusOK)
}
