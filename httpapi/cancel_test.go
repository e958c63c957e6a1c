package httpapi

import (
	"slices"
	"strings"
	"testing"
)

func (b *bundle) cancel(t testing.TB, id, body string, header ...string) answer {
	t.Helper()
	return b.call(t, "POST /api/orders/"+id+"/cancel", body, header...)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	t.Run("undoes a held order, and says who asked", func(t *testing.T) {
		t.Parallel()
		b.held(t, "stuck", nil)
		if before := b.get(t, "/api/orders/stuck").decoded(t); !slices.Equal(before.AllowedActions, []string{"cancel", "retry"}) {
			t.Error(before.AllowedActions)
		}
		o := b.cancel(t, "stuck", `{"onBehalfOf":"eve","reason":"changed her mind","more":[]}`).wantStatus(t, 200)
		if o.Status != "canceled" || o.StopRequested != "cancel" || len(o.AllowedActions) != 0 {
			t.Errorf("%+v", o)
		}
		found := false
		if newest := b.get(t, "/api/orders/stuck/transitions?sort=newest&before=3&limit=1").wantStatus(t, 200).Transitions; len(newest) != 1 || newest[0].Seq != 2 {
			t.Errorf("%+v", newest)
		}
		for _, row := range b.get(t, "/api/orders/stuck/transitions").wantStatus(t, 200).Transitions {
			found = found || row.Verb == "cancel" && row.Actor == "local" && row.OnBehalfOf == "eve" && row.Reason == "changed her mind" && *row.From == row.To
		}
		if !found {
			t.Error("the history does not say who asked")
		}
		if n := b.count(t, `SELECT count(*) FROM books.access_log WHERE event = 'cancel' AND subject = 'stuck' AND actor = 'local' AND on_behalf_of = 'eve'`); n != 1 {
			t.Errorf("%d rows in the access log", n)
		}
	})
	t.Run("answers the same request again with what it did", func(t *testing.T) {
		t.Parallel()
		b.held(t, "twice", nil)
		for range 2 {
			if o := b.cancel(t, "twice", `{"requestId":"r1"}`).wantStatus(t, 200); o.Status != "canceled" {
				t.Errorf("%+v", o)
			}
		}
		b.cancel(t, "twice", `{"requestId":"r2"}`).wantProblem(t, 409, "not_applicable")
	})
	t.Run("of an order that is final is 409 with what applies", func(t *testing.T) {
		t.Parallel()
		b.process(t, ask("done")).wantStatus(t, 200)
		for _, header := range []string{"", "*"} {
			a := b.cancel(t, "done", "", "If-Match", header)
			if p := a.wantProblem(t, 409, "not_applicable"); p.Order == nil || p.Order.Status != "completed" || p.Detail == "" {
				t.Error(a.body)
			}
		}
		b.call(t, "POST /api/orders/done/cancel?dryRun=true", "").wantProblem(t, 409, "not_applicable")
	})
	t.Run("as a dry run says how the order would be, and does nothing", func(t *testing.T) {
		t.Parallel()
		b.held(t, "dry", nil)
		before := b.get(t, "/api/orders/dry").body
		a := b.call(t, "POST /api/orders/dry/cancel?dryRun=true", "")
		is, would := b.get(t, "/api/orders/dry").decoded(t), a.wantStatus(t, 200)
		if would.Hold != "" || would.StopRequested != "cancel" || would.Seq != is.Seq || would.Status != is.Status || !strings.Contains(a.body, `"dryRun":true`) ||
			a.header.Get("ETag") != entityTag(int32(is.Seq)) || b.get(t, "/api/orders/dry").body != before {
			t.Errorf("%v %s", a.header, a.body)
		}
		b.call(t, "POST /api/orders/dry/cancel?dryRun=perhaps", "").wantProblem(t, 422, "invalid_parameter")
	})
}

func TestCancelUnderConditions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	t.Run("of another version is 412", func(t *testing.T) {
		t.Parallel()
		b.held(t, "versioned", nil)
		for _, header := range []string{`"7"`, `W/"1"`, `1`, `"1`, `"x"`, `"01"`, `"99999999999999"`} {
			b.cancel(t, "versioned", "", "If-Match", header).wantProblem(t, 412, "precondition_failed")
		}
		p := b.cancel(t, "versioned", "", "If-Match", `"1", "2"`).wantProblem(t, 422, "invalid_parameter")
		if p.Errors[0].Header != "If-Match" {
			t.Error(p.Errors)
		}
		tag := b.get(t, "/api/orders/versioned").header.Get("ETag")
		if o := b.cancel(t, "versioned", "{}", "If-Match", tag).wantStatus(t, 200); o.Status != "canceled" {
			t.Errorf("%+v", o)
		}
	})
	t.Run("of an order that another replica drives is 202 at the limit", func(t *testing.T) {
		t.Parallel()
		b.elsewhere(t, "theirs")
		a := b.cancel(t, "theirs", "", "Prefer", "wait=3")
		if o := a.wantStatus(t, 202); o.StopRequested != "cancel" || a.header.Get("Location") != "/api/orders/theirs" {
			t.Error(a)
		}
	})
	t.Run("with a body that is not valid does nothing", func(t *testing.T) {
		t.Parallel()
		b.held(t, "safe", nil)
		b.cancel(t, "safe", `{"onBehalfOf":""}`).wantProblem(t, 422, "invalid_input")
		b.cancel(t, "safe", `{"reason":7,"requestId":"a\u0000"}`).wantProblem(t, 422, "invalid_input")
		b.cancel(t, "safe", `{"onBehalfOf":"a","onBehalfOf":"b"}`).wantProblem(t, 400, "malformed_json")
		b.cancel(t, "safe", `x`).wantProblem(t, 400, "malformed_json")
		if o := b.get(t, "/api/orders/safe").decoded(t); o.StopRequested != "" {
			t.Errorf("%+v", o)
		}
	})
}
