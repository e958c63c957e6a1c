package console_test

import (
	"fmt"
	"strings"
	"testing"

	"pawl/client"
)

// plant stores an order that is held while it is charged, as a replica leaves it.
func (s *service) plant(t *testing.T, hold, reason, orderID string) {
	t.Helper()
	if _, err := s.Pool.Exec(t.Context(), `WITH held AS (
			INSERT INTO orders (order_id, status, hold, hold_reason, fence, amount, currency, item, policy, calls, in_doubt_since)
			VALUES ($1, 'charging', $2::text, nullif($3::text, ''), 1, 5, 'USD', 'widget', 1, CASE WHEN $2::text = 'attention' THEN 7 END, CASE WHEN $2::text = 'attention' THEN now() END)
			RETURNING order_no), made AS (
			INSERT INTO step_calls (order_no, fence, call, generation, policy, step, operation, started_at, finished_at, outcome, code, detail, reference)
			SELECT order_no, 1, n, 0, 1, 'charge', 'do', now() - make_interval(mins => 8 - n), now(), 'unknown', 'timeout', 'no answer in time to try ' || n, 'ch_' || n
			FROM held, generate_series(1, 7) AS n WHERE $2::text = 'attention')
		INSERT INTO transitions (order_no, seq, from_status, to_status, fence) SELECT order_no, 1, 'pending', 'charging', 1 FROM held`, orderID, hold, reason); err != nil {
		t.Fatal(err)
	}
}

func TestAttention(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.get(t, "/console/attention").want(t, 200, "No order waits for a person.", `href="/console/runbook"`)
	for i := range 12 {
		s.plant(t, "attention", fmt.Sprintf("retries_exhausted: 37 calls in %d minutes, last timeout", 10+i), fmt.Sprintf("r%02d", i))
	}
	s.plant(t, "attention", "outcome_unknown: the provider may have <b>forgotten</b> the key", "u")
	s.plant(t, "attention", "23505: charges_pkey", "sql")
	s.process(t, client.ProcessBody{OrderID: "big", Amount: "600", Item: "lamp"})

	// The reason of the oldest order comes first, and with it its oldest orders.
	s.get(t, "/console/attention").want(t, 200,
		"<strong>12</strong> Retries are used up", "Nobody knows the outcome", "(23505)", "Waits for approval",
		"37 calls in 10 minutes", "no answer in time to try 7", "no answer in time to try 5", "ch_7", ">of 7<", "In doubt",
		"Don't: tell the customer", `href="/console/runbook#retries_exhausted"`)
}

func TestAttentionOfAReason(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.plant(t, "attention", "outcome_unknown: the provider may have <b>forgotten</b> the key", "u <i>&")
	s.process(t, client.ProcessBody{OrderID: "big", Amount: "600", Item: "lamp"})
	page := s.get(t, "/console/attention?hold=attention&reason=outcome_unknown").want(t, 200, "<bdi>u &lt;i&gt;&amp;</bdi>", "raise <code>keyRetention</code>").
		lacks(t, "<b>forgotten", "<i>&", ">Retry<", "<bdi>big</bdi>")
	if settle, cancel := strings.Index(page.body, ">Say what became of the step<"), strings.Index(page.body, ">Cancel<"); settle < 0 || cancel < settle {
		t.Error("what to try first does not come first")
	}
	if to := page.link(t, "Cancel all"); to != "/console/bulk?hold=attention&holdReason=outcome_unknown&sort=oldest&verb=cancel" {
		t.Error(to)
	}
	if to := page.link(t, "Cancel"); to != "/console/order/cancel?id=u+%3Ci%3E%26" {
		t.Error(to)
	}
	page = s.get(t, "/console/attention?hold=approval").want(t, 200, "<bdi>big</bdi>", "600", "the policy decides", ">Approve<", ">Reject<")
	if strings.Index(page.body, ">Approve<") > strings.Index(page.body, ">Reject<") {
		t.Error("reject comes first")
	}
	if _, err := s.api.ApproveOrder(t.Context(), "big", nil, client.VerbBody{}); err != nil {
		t.Fatal(err)
	}
	s.get(t, "/console/attention?hold=approval").want(t, 200, "No order waits for this any more")
	s.get(t, "/console/attention?hold=attention&reason=nothing+like+it").want(t, 200, "No order waits for this any more")
	s.get(t, "/console/runbook").want(t, 200, `id="retries_exhausted"`, "<table>")
}

// TestAttentionToWhatIsNew: among many orders that wait for one reason, another one is seen.
func TestAttentionToWhatIsNew(t *testing.T) {
	t.Parallel()
	s := setup(t)
	if _, err := s.Pool.Exec(t.Context(), `INSERT INTO orders (order_id, status, hold, hold_reason, fence, amount, currency, item)
		SELECT 'many-' || n, 'charging', 'attention', 'retry_after: later', 1, 5, 'USD', 'widget' FROM generate_series(1, 300) AS n`); err != nil {
		t.Fatal(err)
	}
	s.plant(t, "attention", "policy_unusable: no secret", "new")
	s.get(t, "/console/attention").want(t, 200, "<strong>199+</strong> The provider asks to wait", "<strong>1+</strong> The policy can&#39;t be used", "<bdi>many-1</bdi>")
	s.get(t, "/console/attention?hold=attention&reason=policy_unusable").want(t, 200, "<bdi>new</bdi>").lacks(t, "<bdi>many-1</bdi>")
}
