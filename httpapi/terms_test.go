package httpapi

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"pawl/engine"
)

func TestDecodeTerms(t *testing.T) {
	t.Parallel()
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	text := func(at time.Time) string { return at.Format(`"2006-01-02T15:04:05.999999Z07:00"`) }
	t.Run("are read", func(t *testing.T) {
		t.Parallel()
		in, _, err := decodeInput([]byte(`{"orderId":"o","amount":1,"item":"i","customerId":"é","paymentMethod":"pm_1","concurrencyKey":"k","reservationTtl":31536000,
			"startAt":`+text(at)+`,"completeBy":`+text(at.Add(time.Hour).In(time.FixedZone("", 5*3600)))+`}`), dollars, time.Now)
		want := engine.Terms{CustomerID: "é", PaymentMethod: "pm_1", ConcurrencyKey: "k", ReservationTTL: 365 * 24 * time.Hour, StartAt: at, CompleteBy: at.Add(time.Hour)}
		if err != nil || in.Terms != want {
			t.Errorf("%+v, %v", in.Terms, err)
		}
	})
	t.Run("a start that is over is one", func(t *testing.T) {
		t.Parallel()
		if in, _, err := decodeInput([]byte(body("startAt", `"2020-02-29T00:00:00-12:00"`)), dollars, time.Now); err != nil || in.StartAt.Year() != 2020 {
			t.Errorf("%s, %v", in.StartAt, err)
		}
	})
	for _, c := range []struct{ name, value, fault string }{
		{"customerId", `""`, "empty"}, {"customerId", `1`, "wrong_type"}, {"customerId", `"` + strings.Repeat("é", 256) + `"`, "too_long"},
		{"customerId", `"a\u0000"`, "control_character"}, {"paymentMethod", `"` + strings.Repeat("x", 256) + `"`, "too_long"},
		{"paymentMethod", `{}`, "wrong_type"}, {"concurrencyKey", `""`, "empty"}, {"concurrencyKey", `null`, "wrong_type"},
		{"reservationTtl", `0`, "out_of_range"}, {"reservationTtl", `31536001`, "out_of_range"}, {"reservationTtl", `1.5`, "not_integer"},
		{"reservationTtl", `"60"`, "wrong_type"},
		{"startAt", `"tomorrow"`, "not_time"}, {"startAt", `"2026-01-02T03:04:05"`, "not_time"}, {"startAt", `"2026-01-02"`, "not_time"},
		{"startAt", `1767323045`, "wrong_type"}, {"startAt", `"2026-13-02T03:04:05Z"`, "not_time"}, {"startAt", `"2026-01-02T03:04:05,5Z"`, "not_time"},
		{"startAt", `"2026-01-02t03:04:05+24:00"`, "not_time"}, {"startAt", `"0001-01-01T00:00:00Z"`, "not_time"},
		{"startAt", text(time.Now().Add(366 * 24 * time.Hour)), "out_of_range"},
		{"completeBy", `"2026-01-02"`, "not_time"}, {"completeBy", `"2020-01-02T03:04:05Z"`, "in_the_past"},
		{"completeBy", text(at) + `,"startAt":` + text(at), "out_of_range"},
	} {
		t.Run(fmt.Sprintf("%s %.20s is refused", c.name, c.value), func(t *testing.T) {
			t.Parallel()
			_, _, err := decodeInput([]byte(body(c.name, c.value)), dollars, time.Now)
			status, faults := faultsOf(t, err)
			if want := "/" + c.name + " " + c.fault; status != 422 || len(faults) != 1 || faults[0] != want {
				t.Errorf("%d %q, want %q", status, faults, want)
			}
		})
	}
}

// A caller may ask again after the deadline how his order ended.
func TestDeadlineThatIsOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	late := `{"orderId":"o","amount":"1.00","item":"i","completeBy":"2020-01-01T00:00:00Z"}`
	p := b.process(t, late).wantProblem(t, 422, "invalid_input")
	if len(p.Errors) != 1 || p.Errors[0].Code != "in_the_past" {
		t.Errorf("%+v", p.Errors)
	}
	b.process(t, strings.Replace(late, "2020", strconv.Itoa(time.Now().Year()+1), 1)).wantStatus(t, 200)
	b.exec(t, `UPDATE orders SET complete_by = '2020-01-01T00:00:00Z'`)
	if o := b.process(t, late).wantStatus(t, 200); o.Status != "completed" {
		t.Errorf("%+v", o)
	}
	b.process(t, strings.Replace(late, "1.00", "2", 1)).wantProblem(t, 409, "order_conflict")
	b.process(t, strings.Replace(late, `"i"`, `""`, 1)).wantProblem(t, 422, "invalid_input")
}

func TestTermsAreShownButThePaymentMethod(t *testing.T) {
	t.Parallel()
	b := setup(t)
	start, deadline := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond), time.Now().Add(2*time.Hour).UTC().Truncate(time.Microsecond)
	in := fmt.Sprintf(`{"orderId":"o","amount":1,"item":"i","customerId":"me","paymentMethod":"pm_s3cret","startAt":%q,"completeBy":%q}`,
		start.Format(time.RFC3339Nano), deadline.Format(time.RFC3339Nano))
	a := b.process(t, in)
	if o := a.wantStatus(t, 202); o.Hold != "scheduled" || a.header.Get("Retry-After") != "3600" {
		t.Errorf("%+v, again after %s", o, a.header.Get("Retry-After"))
	}
	for _, shown := range []string{`"customerId":"me"`, `"startAt":"` + start.Format(time.RFC3339Nano), `"completeBy":"` + deadline.Format(time.RFC3339Nano),
		`"resumesAt":"` + start.Format(time.RFC3339Nano)} {
		if !strings.Contains(a.body, shown) {
			t.Errorf("%s is not in %s", shown, a.body)
		}
	}
	other := b.process(t, strings.NewReplacer("pm_s3cret", "pm_0ther", `"me"`, `"you"`).Replace(in))
	p := other.wantProblem(t, 409, "order_conflict")
	if len(p.Errors) != 2 || p.Errors[0].Pointer != "/customerId" || *p.Errors[0].Stored != "me" || p.Errors[1].Pointer != "/paymentMethod" {
		t.Errorf("%+v", p.Errors)
	}
	for _, text := range []string{a.body, other.body, b.get(t, "/api/orders/o").body, b.get(t, "/api/orders").body, b.get(t, "/api/orders/o/transitions").body} {
		if strings.Contains(text, "s3cret") || strings.Contains(text, "0ther") {
			t.Errorf("the payment method is shown: %s", text)
		}
	}
}
