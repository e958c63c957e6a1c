package engine_test

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85/webhook"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/simulator"
)

// An order is refunded under the policy that it goes by, which may have the refundUrl that the one that charged it lacks.
func TestRefundGoesByThePolicyOfTheOrder(t *testing.T) {
	t.Parallel()
	const charge = "charge: {executor: http, url: SIM/charge, undoUrl: SIM/charge/undo"
	s := openShop(t, 1, quick)
	s.use(t, charge+"}\nreserve: {executor: http, url: 'http://127.0.0.1:1/', undoUrl: SIM/reserve/undo}")
	s.admit(t, request("o"))
	eventually(t, "reserving", func() bool { o := s.get(t, "o"); return o.Status == fsm.Reserving && o.Hold != nil })
	s.use(t, charge+", refundUrl: SIM/charge/refund}")
	eventually(t, "retried", func() bool { // it does not apply while the step is tried
		_, err := s.engine.Do(t.Context(), engine.Request{Verb: orders.Retry, OrderID: "o", ActivePolicy: true})
		return err == nil
	})
	s.refundsAre(t, s.asks(t, "a", ""), "1 done 99.99")
	s.given(t, "1 of 99.99")
}

// Of a refund that is done, nobody but its provider tells that the bank has returned it. Pawl asks until it has an answer, and
// takes no event of an order whose policy this process can't run.
func TestRefundThatIsReturnedIsHeardOf(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.stripe = true
	b := &bank{Server: &httptest.Server{URL: s.urls.Replace("SIM")}}
	s.useStripe(t, b, "}")
	if o := s.process(t, paid("o")); o.Status != fsm.Completed {
		t.Fatal(brief(o))
	}
	s.refundsAre(t, s.asks(t, "a", ""), "1 done 99.99")
	stop(t, s.engine)
	source := value[string](t, s.Pool, `SELECT source FROM policies`)
	write := `UPDATE policies SET source = $1, hash = sha256(convert_to($1, 'UTF8')) WHERE version = 1`
	s.exec(t, `ALTER TABLE policies DISABLE TRIGGER USER`)
	s.exec(t, write, "of: a newer release")
	s.engine = s.replica(t, s.cfg)
	s.engines = []*engine.Engine{s.engine}
	s.use(t, source+"\n")
	payload, header := refundEvent(t, s)
	if err := s.engine.StripeEvent(t.Context(), payload, header); !errors.Is(err, orders.ErrUnavailable) {
		t.Errorf("an event that can't be heeded: %v", err)
	}
	s.exec(t, `UPDATE refunds SET due_at = now()`) // another one has heeded it
	eventually(t, "tried", func() bool {
		return value[bool](t, s.Pool, `SELECT coalesce(code = 'policy_unusable', false) FROM refunds`)
	})
	if !value[bool](t, s.Pool, `SELECT due_at IS NOT NULL FROM refunds`) {
		t.Error("nobody asks any more")
	}
	if err := s.sim.Happen(text(s.get(t, "o").ChargeReference), simulator.RefundReturned, ""); err != nil {
		t.Fatal(err)
	}
	stop(t, s.engine)
	s.exec(t, write, source+" ")
	s.engine = s.replica(t, s.cfg)
	s.engines = []*engine.Engine{s.engine}
	s.exec(t, `UPDATE refunds SET due_at = now()`)
	s.untilRefunds(t, "1 failed")
}

// refundEvent is an event of refund "a" of order "o", signed.
func refundEvent(t *testing.T, s *shop) (payload []byte, header string) {
	t.Helper()
	payload = fmt.Appendf(nil, `{"object":"event","id":"evt_1","type":"refund.updated","data":{"object":{"object":"refund","id":"re_1","payment_intent":%q,
		"metadata":{"pawl_installation":%q,"pawl_order":"o","pawl_generation":"0","pawl_refund":"a"}}}}`,
		text(s.get(t, "o").ChargeReference), value[string](t, s.Pool, `SELECT id::text FROM installation`))
	return payload, webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: payload, Secret: "whsec_of_stripes_hook", Timestamp: time.Now()}).Header
}
