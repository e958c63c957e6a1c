package console

import (
	"cmp"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"pawl/client"
)

// TestCounts: a number may be larger only where the API stopped counting.
func TestCounts(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		count(7): "7", count(999): "999", count(int64(10_000)): "10,000", count(1_234_567): "1,234,567",
		upTo(9_999): "9,999", upTo(countedTo): "10,000+", atLeast(5_000, true): "5,000+",
	} {
		if got != want {
			t.Errorf("%s instead of %s", got, want)
		}
	}
}

// TestHeaderNamesThePerson by the address that people know, and says in the title who that is in the history.
func TestHeaderNamesThePerson(t *testing.T) {
	t.Parallel()
	v := &visit{console: &console{assets: newAssets()}, r: httptest.NewRequestWithContext(t.Context(), "GET", "/console", nil)}
	for _, c := range []struct {
		me   client.Caller
		want string
	}{
		{client.Caller{Name: "token:maria", Roles: []string{"read"}}, `<span title="Your roles: read"><bdi>token:maria</bdi></span>`},
		{client.Caller{Name: "oidc:https://id.example.com#u-17", Email: "maria@example.com", Roles: []string{"read"}},
			`<span title="oidc:https://id.example.com#u-17. Your roles: read"><bdi>maria@example.com</bdi></span>`},
	} {
		w := httptest.NewRecorder()
		v.w, v.me = w, &c.me
		if err := v.show("problem", page{Data: client.Problem{}}); err != nil || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%v, want %s in %s", err, c.want, w.Body)
		}
	}
}

// TestSentencesOfVerbs: whatever is asked of orders, and what came of it, reads as English.
func TestSentencesOfVerbs(t *testing.T) {
	t.Parallel()
	var said []string
	for _, a := range verbs {
		said = append(said, cmp.Or(a.confirm, a.Label)+". "+a.asked)
		if m := a.Many; m != nil {
			said = append(said, m.Label+" all. "+m.Label+" 3 orders? 3 orders "+m.Done+". None of these orders can be "+m.Done+".")
		}
	}
	if want := []string{
		"Approve. The order is approved.",
		"Approve all. Approve 3 orders? 3 orders approved. None of these orders can be approved.",
		"Reject. The order is rejected.",
		"Reject all. Reject 3 orders? 3 orders rejected. None of these orders can be rejected.",
		"Retry. The order tries again.",
		"Retry all. Retry 3 orders? 3 orders retried. None of these orders can be retried.",
		"Say what became of the step. What became of the step is recorded.",
		"Say what became of the step for all. Say what became of the step for 3 orders? 3 orders given a result. None of these orders can be given a result.",
		"Resume. The order goes on.",
		"Resume all. Resume 3 orders? 3 orders resumed. None of these orders can be resumed.",
		"Pause. The order will pause.",
		"Pause all. Pause 3 orders? 3 orders paused. None of these orders can be paused.",
		"Cancel the order. The order is being canceled.",
		"Cancel all. Cancel 3 orders? 3 orders canceled. None of these orders can be canceled.",
		"Refund. The refund is requested.",
	}; !slices.Equal(said, want) {
		t.Errorf("%q", said)
	}
}
