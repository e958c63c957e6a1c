package policy_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/test/assert"
)

// problems parses what must be refused and returns what is said of it, a line each.
func problems(t *testing.T, source string) policy.Problems {
	t.Helper()
	p, err := policy.Parse([]byte(source))
	var all policy.Problems
	assert.Require(t, p == nil && errors.As(err, &all) && len(all) != 0, source, "is a policy", p, "error", err)
	return all
}

// refusals are sources with the one problem each must be refused for.
var refusals = []struct {
	name, source, says string
}{
	// what is no policy
	{"nothing", "", "line 1, column 1: the policy is empty"},
	{"a comment alone", "# charge:\n", "line 1, column 1: the policy is empty"},
	{"a document without a value", "---\n", "line 2, column 1: has no value; remove the key, or set a mapping with the keys charge, "},
	{"a list", "- charge\n", "line 1, column 1: must be a mapping with the keys charge, reserve, "},
	{"a second document", "{}\n---\n{}\n", "line 2, column 1: must be one YAML document"},
	{"a second document that is none", "{}\n---\ncharge: [\n", "line 4, column 1: not YAML: "},
	{"no YAML, from its place on", "charge:\n  executor: http\n\tundoUrl: x\n", "line 3, column 1: not YAML: "},
	{"an open quote", "charge:\n  executor: \"http\n", "not YAML: found unexpected end of stream"},
	{"Latin-1", "charge:\n  url: \xe9\n", "line 2, column 8: must be UTF-8"},
	{"a NUL", "charge: {}\x00", "line 1, column 11: must not contain control characters"},
	{"more than anybody writes", strings.Repeat("# long\n", 40_000), "must be at most 256 KiB"},
	{"an alias", "charge: &a {}\nreserve: *a\n", "line 2, column 10: reserve: aliases are not supported; write the value out"},
	{"an alias of nothing", "reserve: *a\n", "line 1, column 10: aliases are not supported"},
	{"a merge", "charge:\n  <<: {executor: ledger}\n", "line 2, column 3: charge: unknown key; must be one of executor, "},

	// keys
	{"a key in other letters", "charge:\n  executor: http\n  url: http://a/do\n  undoUrl: http://a/undo\n  lookup_url: http://a/\n", "line 5, column 3: charge: unknown key lookup_url; did you mean lookupUrl?"},
	{"a key of another place", "retry: {maxRetries: 2}\n", "line 1, column 1: unknown key retry"},
	{"a key given twice", "charge: {}\nreserve: {}\ncharge: {}\n", "line 3, column 1: charge: duplicate key, first in line 1"},
	{"a key without a value", "charge:\nreserve: {}\n", "line 1, column 8: charge: has no value; remove the key, or set a mapping with the keys"},
	{"a step that is a word", "charge: http\n", "line 1, column 9: charge: must be a mapping with the keys executor, url, "},

	// executors
	{"an unknown executor", "charge:\n  executor: paypal\n", "line 2, column 13: charge.executor: must be http or ledger or simulator or stripe"},
	{"stripe for reserve", "reserve: {executor: stripe, secret: 'env:KEY'}\n", "line 1, column 21: reserve.executor: must be http or ledger or simulator"},
	{"a URL for the ledger, which forgets the executor", "charge:\n  url: http://a/do\n", "line 2, column 3: charge.url: is not used by the ledger; requires executor: http, simulator, stripe"},
	{"a time-out for the ledger", "charge: {executor: ledger, timeout: 1s}\n", "charge.timeout: is not used by ledger in charge"},
	{"capture on confirm for http", "charge: {executor: http, url: 'http://a/do', undoUrl: 'http://a/undo', capture: on_confirm}\n", "charge.capture: must be immediately or later"},
	{"capture later without a captureUrl", "charge: {executor: http, url: 'http://a/do', undoUrl: 'http://a/undo', capture: later, voidUrl: 'http://a/v'}\n", "charge.captureUrl: is missing; capture: later needs it"},
	{"capture later without a voidUrl", "charge: {executor: http, url: 'http://a/do', undoUrl: 'http://a/undo', capture: later, captureUrl: 'http://a/c'}\n", "charge.voidUrl: is missing; capture: later needs it"},
	{"a voidUrl that captures", "charge: {executor: http, url: 'http://a/do', undoUrl: 'http://a/undo', capture: later, captureUrl: 'http://a/c', voidUrl: 'http://a/c'}\n", "charge.voidUrl: the same as captureUrl"},
	{"captureWithin without later", "charge: {executor: simulator, url: 'http://a', captureWithin: 1h}\n", "charge.captureWithin: requires capture: later"},
	{"a capture of a reservation", "reserve: {executor: simulator, url: 'http://a', capture: later}\n", "reserve.capture: is not used by simulator in reserve"},
	{"an undo URL for stripe", "charge: {executor: stripe, secret: 'env:KEY', undoUrl: 'http://a/undo'}\n", "charge.undoUrl: is not used by stripe in charge"},
	{"a webhook secret for the simulator", "charge: {executor: simulator, url: 'http://a', webhookSecret: 'env:KEY'}\n", "charge.webhookSecret: is not used by simulator in charge"},
	{"http that can't undo a reservation", "reserve:\n  executor: http\n  url: http://a/do\n", "line 2, column 13: reserve.undoUrl: is missing; http needs it"},
	{"http that would undo a confirmation", "confirm: {executor: http, url: 'http://a/do', undoUrl: 'http://a/undo'}\n", "confirm.undoUrl: nothing undoes a confirmation"},
	{"http that undoes where it does", "charge: {executor: http, url: 'http://a/do', undoUrl: 'http://a/do'}\n", "charge.undoUrl: the same as url"},
	{"http that refunds where it does", "charge: {executor: http, url: 'http://a/do', undoUrl: 'http://a/undo', refundUrl: 'http://a/do'}\n", "charge.refundUrl: the same as url"},
	{"http that refunds where it undoes", "charge: {executor: http, url: 'http://a/do', undoUrl: 'http://a/undo', refundUrl: 'http://a/undo'}\n", "charge.refundUrl: the same as undoUrl"},
	{"http that refunds a reservation", "reserve: {executor: http, url: 'http://a/do', undoUrl: 'http://a/undo', refundUrl: 'http://a/r'}\n", "reserve.refundUrl: only a charge takes money"},
	{"a refund URL for stripe", "charge: {executor: stripe, secret: 'env:KEY', refundUrl: 'http://a/undo'}\n", "charge.refundUrl: is not used by stripe in charge"},
	{"http without a URL", "confirm: {executor: http}\n", "line 1, column 21: confirm.url: is missing; http needs it"},
	{"the simulator without a URL", "confirm: {executor: simulator}\n", "confirm.url: is missing; simulator needs it"},
	{"stripe without an API key", "charge: {executor: stripe}\n", "line 1, column 20: charge.secret: is missing; stripe needs it"},

	// capture
	{"a capture nobody does", "charge:\n  executor: stripe\n  secret: env:KEY\n  capture: on_confirm\nconfirm:\n  executor: http\n  url: http://a/do\n",
		"line 4, column 12: charge.capture: with on_confirm, the confirm step captures: confirm.executor must be stripe"},
	{"a capture the ledger would do", "charge: {executor: stripe, secret: 'env:KEY', capture: on_confirm}\n", "charge.capture: with on_confirm, the confirm"},
	{"stripe confirms what was captured", "charge: {executor: stripe, secret: 'env:KEY'}\nconfirm: {executor: stripe}\n", "line 2, column 21: confirm.executor: stripe confirms by capturing"},
	{"stripe confirms what another charged", "confirm:\n  executor: stripe\n", "line 2, column 13: confirm.executor: stripe confirms by capturing"},
	{"stripe confirms in another account", "charge: {executor: stripe, secret: 'env:KEY', capture: on_confirm}\nconfirm:\n  executor: stripe\n  secret: env:OTHER\n",
		"line 4, column 3: confirm.secret: is not used by stripe in confirm, which uses the account of charge"},
	{"another capture", "charge: {executor: stripe, secret: 'env:KEY', capture: never}\n", "charge.capture: must be immediately or on_confirm or later"},

	// routes
	{"a route without a name", "charge: [{executor: simulator, url: 'http://a'}]\n", "line 1, column 10: charge[0].name: is missing"},
	{"a route in capital letters", "charge: [{name: EU, executor: simulator, url: 'http://a'}]\n", "charge[0].name: must be a name of up to 40"},
	{"two routes of one name", "charge:\n- {name: a, currency: EUR, executor: simulator, url: 'http://a'}\n- {name: a, executor: simulator, url: 'http://a'}\n",
		"line 3, column 10: charge[1].name: given twice"},
	{"a route in the ledger", "charge: [{name: a, executor: ledger}]\n", "charge[0].executor: must be http or simulator or stripe"},
	{"a route without an executor", "charge: [{name: a}]\n", "charge[0].executor: is missing"},
	{"a last route with a condition", "charge: [{name: a, currency: EUR, executor: simulator, url: 'http://a'}]\n", "charge[0]: the last route must have no condition"},
	{"a route that hides the next", "charge:\n- {name: a, executor: simulator, url: 'http://a'}\n- {name: b, executor: simulator, url: 'http://a'}\n",
		"line 2, column 3: charge[0]: must have a condition or fallback"},
	{"a fallback of the last route", "charge: [{name: a, fallback: [declined], executor: simulator, url: 'http://a'}]\n", "charge[0].fallback: there is no route after the last one"},
	{"metadata that are a list", "charge:\n- {name: a, metadata: [web], executor: simulator, url: 'http://a'}\n- {name: b, executor: simulator, url: 'http://a'}\n", "charge[0].metadata: must be a mapping of metadata keys"},
	{"a condition of a single charge", "charge: {currency: EUR, executor: simulator, url: 'http://a'}\n", "charge: unknown key currency"},
	{"no routes", "charge: []\n", "charge: must be a list of 1 to 1000 entries"},
	{"routes of reserve", "reserve: [{name: a, executor: simulator, url: 'http://a'}]\n", "reserve: must be a mapping with the keys"},
	{"a route that authorizes and one that does not", "charge:\n- {name: a, currency: EUR, executor: stripe, secret: 'env:A', capture: on_confirm}\n" +
		"- {name: b, executor: simulator, url: 'http://a'}\nconfirm: {executor: stripe}\n", "confirm.executor: stripe confirms by capturing"},

	// URLs
	{"a path", http("url: /do"), "line 4, column 8: charge.url: must be an absolute URL"},
	{"a host alone", http("url: payments.internal"), "charge.url: must be an absolute URL"},
	{"another scheme", http("url: ftp://a/do"), "charge.url: must be an absolute URL"},
	{"no host", http("url: http:///do"), "charge.url: must be an absolute URL"},
	{"a port without a host", http("url: http://:80/do"), "charge.url: must be an absolute URL"},
	{"a user", http("url: https://user@a/do"), "charge.url: must be an absolute URL"},
	{"a password", http("url: https://user:hidden@a/do"), "charge.url: must be an absolute URL"},
	{"a fragment", http("url: https://a/do#there"), "charge.url: must be an absolute URL"},
	{"an empty fragment", http("url: https://a/do#"), "charge.url: must be an absolute URL"},
	{"a number for a URL", http("url: 8080"), "charge.url: must be an absolute URL"},
	{"a URL without end", http("url: http://a/" + strings.Repeat("a", 2048)), "charge.url: must be an absolute URL"},
	{"a look-up that is no URL", http("url: http://a/do\n  lookupUrl: lookup"), "line 5, column 14: charge.lookupUrl: must be an absolute URL"},

	// times and counts
	{"a bare number for a duration", http("url: http://a/do\n  timeout: 30"), "line 5, column 12: charge.timeout: must be a duration from 1ms to 10m, such as 90s, 15m or 24h"},
	{"no time at all", http("url: http://a/do\n  timeout: 0s"), "charge.timeout: must be a duration from 1ms to 10m"},
	{"less than none", http("url: http://a/do\n  timeout: -1s"), "charge.timeout: must be a duration"},
	{"a time-out of more than ten minutes", http("url: http://a/do\n  timeout: 10m1ms"), "charge.timeout: must be a duration"},
	{"days", http("url: http://a/do\n  keyRetention: 2d"), "charge.keyRetention: must be a duration from 1h to 87600h"},
	{"no calls", http("url: http://a/do\n  inFlight: 0"), "charge.inFlight: must be a whole number from 1 to 10000"},
	{"no room", http("url: http://a/do\n  queue: 0"), "charge.queue: must be a whole number from 1 to 1000000"},
	{"a fraction of a count", http("url: http://a/do\n  queue: 1.5"), "charge.queue: must be a whole number"},
	{"a count in octal", http("url: http://a/do\n  queue: 010"), "charge.queue: must be a whole number"},
	{"a count in hexadecimal", http("url: http://a/do\n  queue: 0x10"), "charge.queue: must be a whole number"},
	{"a count in quotes", http("url: http://a/do\n  queue: '10'"), "charge.queue: must be a whole number"},
	{"retries that are no mapping", http("url: http://a/do\n  retry: 3"), "line 5, column 10: charge.retry: must be a mapping with the keys initial, factor, "},
	{"less than no retries", http("url: http://a/do\n  retry: {maxRetries: -1}"), "charge.retry.maxRetries: must be a whole number from 0 to 999"},
	{"delays that shrink", http("url: http://a/do\n  retry: {factor: 0.5}"), "charge.retry.factor: must be a number from 1 to 10"},
	{"delays that explode", http("url: http://a/do\n  retry: {factor: .inf}"), "charge.retry.factor: must be a number from 1 to 10"},
	{"a factor that is none", http("url: http://a/do\n  retry: {factor: .nan}"), "charge.retry.factor: must be a number from 1 to 10"},
	{"a longest delay below the first", http("url: http://a/do\n  retry: {initial: 10s, cap: 5s}"), "charge.retry.cap: must not be less than initial"},
	{"a first delay above the longest", http("url: http://a/do\n  retry: {initial: 2m}"), "charge.retry.cap: must not be less than initial"},
	{"delays of an hour", http("url: http://a/do\n  retry: {cap: 1h}"), "charge.retry.cap: must be a duration from 1ms to 30m"},
	{"a code that is a number", http("url: http://a/do\n  retry: {nonRetryable: [402]}"), "charge.retry.nonRetryable[0]: must be text in quotes"},
	{"a code given twice", http("url: http://a/do\n  retry: {nonRetryable: [a, b, a]}"), "charge.retry.nonRetryable[2]: given twice"},
	{"codes that are no list", http("url: http://a/do\n  retry: {nonRetryable: a}"), "charge.retry.nonRetryable: must be a list of texts"},
	{"a breaker that never closes", http("url: http://a/do\n  breaker: {open: 61m}"), "charge.breaker.open: must be a duration from 1ms to 1h"},
	{"a breaker that is always open", http("url: http://a/do\n  breaker: {failures: 0}"), "charge.breaker.failures: must be a whole number from 1 "},
	{"a reservation in the past", "reservationTtl: -1m\n", "line 1, column 17: reservationTtl: must be a duration from 0s to 8760h"},
	{"a deadline that is a date", "completeWithin: 2030-01-01\n", "line 1, column 17: completeWithin: must be a duration from 0s to 8760h"},

	// keys that are forgotten
	{"a wait that outlasts the key", http("url: http://a/do\n  callbackTimeout: 24h"), "line 5, column 20: charge.keyRetention: 24h is too short: retries (up to 15m), callbackTimeout (24h) and a margin of 1h need 25h15m"},
	{"retries that outlast the key", http("url: http://a/do\n  retry: {budget: 23h}"), "line 5, column 10: charge.keyRetention: 24h is too short: retries (up to 23h), callbackTimeout (1h)"},
	{"retries that outlast the key, whatever the budget", http("url: http://a/do\n  timeout: 10m\n  retry: {maxRetries: 199, budget: 1s}"), "charge.keyRetention: 24h is too short"},
	{"a key shorter than the margin", http("url: http://a/do\n  keyRetention: 1h"), "line 5, column 17: charge.keyRetention: 1h is too short"},
	{"a key that misses the margin by a second", http("url: http://a/do\n  keyRetention: 2h14m59s"), "need 2h15m"},
	{"a key Stripe has forgotten", "charge: {executor: stripe, secret: 'env:KEY', keyRetention: 48h}\n", "charge.keyRetention: must be at most 24h: Stripe promises no more"},

	// approval
	{"a rule that is no list", "approval: {amountOver: 5, currency: USD}\n", "line 1, column 11: approval: must be a list of rules"},
	{"an empty list of rules", "approval: []\n", "approval: must be a list of 1 to 1000 entries, or be left out"},
	{"an amount without a currency", "approval:\n  - amountOver: 500\n", "line 2, column 17: approval[0].amountOver: requires currency"},
	{"an amount in quotes", "approval: [{amountOver: '500', currency: USD}]\n", "approval[0].amountOver: must be an amount"},
	{"an amount below zero", "approval: [{amountOver: -1, currency: USD}]\n", "approval[0].amountOver: must be an amount"},
	{"an amount no order can have", "approval: [{amountOver: 1000000000000000, currency: USD}]\n", "approval[0].amountOver: must be an amount"},
	{"an amount with an exponent", "approval: [{amountOver: 1e3, currency: USD}]\n", "approval[0].amountOver: must be an amount"},
	{"a misspelt currency", "approval:\n  - {currency: UDS}\n", "line 2, column 16: approval[0].currency: must be a currency of ISO 4217"},
	{"a currency in small letters", "approval: [{currency: usd}]\n", "approval[0].currency: must be a currency of ISO 4217"},
	{"another approver", "approval: [{approver: me}]\n", "approval[0].approver: must be anybody or another"},
	{"another outcome", "approval: [{timeout: 1h, onTimeout: fail}]\n", "approval[0].onTimeout: must be cancel or approve"},
	{"an outcome of nothing", "approval: [{onTimeout: cancel}]\n", "approval[0].onTimeout: requires timeout"},
	{"an item that is a number", "approval: [{items: [42]}]\n", "approval[0].items[0]: must be text in quotes"},
	{"an empty customer", "approval: [{customers: ['']}]\n", "approval[0].customers[0]: must be text in quotes"},
	{"a customer with too long a name", "approval: [{customers: [" + strings.Repeat("ä", 256) + "]}]\n", "approval[0].customers[0]: must be text in quotes"},
	{"a list of nobody", "approval: [{customers: []}]\n", "approval[0].customers: must be a list of 1 to 1000 entries"},

	// concurrency
	{"a limit by something else", "concurrency: {by: colour, limit: 1}\n", "line 1, column 19: concurrency.by: must be item or customerId or concurrencyKey"},
	{"a limit of none", "concurrency: {by: item, limit: 0}\n", "concurrency.limit: must be a whole number from 1 to 1000000"},
	{"a limit without a number", "concurrency: {by: item}\n", "concurrency.limit: is missing"},
	{"a limit of nothing", "concurrency: {limit: 5}\n", "concurrency.by: is missing"},
	{"a limit alone", "concurrency: 5\n", "line 1, column 14: concurrency: must be a mapping with the keys by, limit"},
}

// http is a charge by http that lacks its URL, which begins in line 4.
func http(rest string) string {
	return "charge:\n  executor: http\n  undoUrl: http://a/undo\n  " + rest + "\n"
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			all := problems(t, c.source)
			assert.True(t, len(all) == 1 && strings.Contains(all.Error(), c.says), c.says, all)
		})
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	const source = `charge:
  executor: http
  url: payments
  timeout: soon
  retry: {maxRetries: none, budget: 5}
  undoUrl: http://a/undo
reserve: {}
approval:
  - amountOver: 5
    colour: red
concurrency:
  by: item
color: blue
`
	const want = `line 3, column 8: charge.url: must be an absolute
line 4, column 12: charge.timeout: must be a duration
line 5, column 23: charge.retry.maxRetries: must be a whole number
line 5, column 37: charge.retry.budget: must be a duration
line 9, column 17: approval[0].amountOver: requires currency
line 10, column 5: approval[0]: unknown key colour; must be one of
line 12, column 3: concurrency.limit: is missing
line 13, column 1: unknown key color; must be one of`
	got := strings.Split(problems(t, source).Error(), "\n")
	for i, line := range strings.Split(want, "\n") {
		assert.Require(t, i < len(got) && strings.HasPrefix(got[i], line), line, strings.Join(got, "\n"))
	}
	assert.Equal(t, strings.Count(want, "\n")+1, len(got), "problems, got", strings.Join(got, "\n"))
}

func TestLiteralSecretsAreRefusedAndNotRepeated(t *testing.T) {
	t.Parallel()
	const literal = "sk_live_hidden"
	for _, source := range []string{
		http("url: http://a/do\n  secret: " + literal),
		http("url: http://a/do\n  secret: 'env:" + literal + "'\n  secret: x"),
		http("url: http://a/do\n  secret: env:" + literal + "-"),
		http("url: http://a/do\n  secret: file:" + literal),
		http("url: http://a/do\n  secret: file:/run/../" + literal),
		http("url: http://a/do\n  secret: \"file:/run/" + literal + "\\n\""),
		http("url: http://a/do\n  secret: [" + literal + "]"),
		http("url: http://a/do\n  secret: {" + literal + ": }"),
		http("url: http://a/do\n  secret: !!int " + literal),
		http("url: http://a/do\n  secret: !" + literal + " x"),
		http("url: http://a/do\n  secret: *" + literal),
		http("url: http://a/do\n  secret: |\n    " + literal),
		http("url: http://a/do\n  secret:" + literal),
		"charge: {executor: stripe, secret:" + literal + "}\n",
		"charge: {executor: stripe, webhookSecret: " + literal + ", secret: 'env:KEY'}\n",
		"charge: {executor: stripe, secret: 'env:KEY', url: 'https://" + literal + "@a'}\n",
	} {
		all := problems(t, source)
		assert.True(t, !strings.Contains(all.Error(), literal), source, "is repeated", all)
	}
}

// FuzzParse looks for a source that ends the process, for a problem without a place, and
// for a policy that breaks what its readers rely on.
func FuzzParse(f *testing.F) {
	for _, c := range refusals {
		if len(c.source) < 1000 {
			f.Add([]byte(c.source))
		}
	}
	f.Add([]byte("charge: {executor: stripe, secret: 'env:KEY', capture: on_confirm}\nconfirm: {executor: stripe}\n"))
	f.Add([]byte(twoRoutes))
	f.Add([]byte("confirm: {executor: http, url: 'http://a/do', retry: {maxRetries: 2}}\napproval: [{amountOver: 5, currency: USD}]\n"))
	f.Fuzz(func(t *testing.T, source []byte) {
		p, err := policy.Parse(source)
		var all policy.Problems
		assert.Require(t, (p == nil) != (err == nil) && (err == nil || errors.As(err, &all)), "policy", p, "error", err)
		for _, problem := range all {
			assert.True(t, problem.Line >= 1 && problem.Column >= 1 && problem.Text != "", "problem without a place", problem)
		}
		if p == nil {
			return
		}
		for _, at := range p.Places() {
			reliable(t, at.Step, p.Step(at.Step, at.Route))
		}
		assert.True(t, p.ReservationTTL >= 0 && p.CompleteWithin >= 0 && (p.Concurrency == nil || p.Concurrency.Limit >= 1),
			p)
	})
}

// reliable checks what everybody takes for granted of a step.
func reliable(t *testing.T, s fsm.Step, how *policy.Step) {
	t.Helper()
	if how.Executor == policy.Ledger {
		same(t, *how, policy.Step{Executor: policy.Ledger})
		return
	}
	r := how.Retry
	for what, holds := range map[string]bool{
		"an executor":                 how.Executor.Remote(),
		"a place":                     how.URL != "" || how.Executor == policy.Stripe,
		"a place to undo":             how.UndoURL != "" || how.Executor != policy.HTTP || s == fsm.Confirm,
		"a secret":                    how.Secret != "" || how.Executor != policy.Stripe,
		"a time-out":                  how.Timeout > 0 && how.Timeout <= 10*time.Minute,
		"room":                        how.InFlight >= 1 && how.Queue >= 1,
		"delays":                      r.Initial > 0 && r.Initial <= r.Cap && r.Factor >= 1 && r.MaxRetries >= 0,
		"a breaker":                   how.Breaker.Failures >= 1 && how.Breaker.Open > 0,
		"a key that is not forgotten": r.Longest(how.Timeout)+how.CallbackTimeout+time.Hour <= how.KeyRetention,
	} {
		assert.True(t, holds, s, "without", what, how)
	}
}
