package console

import (
	"cmp"
	"slices"
	"testing"
)

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
