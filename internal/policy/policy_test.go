package policy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/test/assert"
)

func parse(t *testing.T, source string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(source))
	assert.NoError(t, err, source)
	return p
}

func same(t *testing.T, got, want any) {
	t.Helper()
	assert.Equal(t, got, want)
}

// remote is a step of which nothing was given but the executor.
func remote(executor policy.Executor, timeout time.Duration, maxRetries int) policy.Step {
	return policy.Step{
		Executor: executor, Timeout: timeout, KeyRetention: 24 * time.Hour, CallbackTimeout: time.Hour, InFlight: 256, Queue: 10_000,
		Retry:   policy.Retry{Initial: 200 * time.Millisecond, Factor: 2, Cap: time.Minute, MaxRetries: maxRetries, Budget: 15 * time.Minute},
		Breaker: policy.Breaker{Failures: 20, Open: 5 * time.Second},
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	ledger := policy.Step{Executor: policy.Ledger}
	t.Run("nothing given is the ledger for every step", func(t *testing.T) {
		t.Parallel()
		for _, source := range []string{"{}", "charge: {}\nreserve: {executor: ledger}\n", "# a comment\n---\n{}\n...\n"} {
			same(t, parse(t, source), &policy.Policy{Charge: ledger, Reserve: ledger, Confirm: ledger})
		}
	})
	t.Run("simulator", func(t *testing.T) {
		t.Parallel()
		p := parse(t, "charge: &a {executor: simulator, url: 'http://a'}\nreserve: {executor: simulator, url: 'http://b'}\nconfirm: {executor: simulator, url: 'http://c'}\n")
		charge := remote(policy.Simulator, 30*time.Second, 7)
		charge.URL = "http://a"
		reserve := remote(policy.Simulator, 5*time.Second, 19)
		reserve.URL = "http://b"
		confirm := remote(policy.Simulator, 10*time.Second, 19)
		confirm.URL = "http://c"
		same(t, p, &policy.Policy{Charge: charge, Reserve: reserve, Confirm: confirm})
	})
	t.Run("stripe takes the money at once", func(t *testing.T) {
		t.Parallel()
		charge := remote(policy.Stripe, 30*time.Second, 7)
		charge.Secret, charge.Capture = "env:KEY", policy.CaptureImmediately
		same(t, parse(t, "charge: {executor: stripe, secret: 'env:KEY'}"), &policy.Policy{Charge: charge, Reserve: ledger, Confirm: ledger})
	})
	t.Run("stripe captures in the account of the charge", func(t *testing.T) {
		t.Parallel()
		p := parse(t, `
charge: {executor: stripe, url: "http://127.0.0.1:12111", secret: "file:/run/secrets/key", webhookSecret: "env:HOOK", capture: on_confirm}
confirm: {executor: stripe, timeout: 20s}`)
		confirm := remote(policy.Stripe, 20*time.Second, 19)
		confirm.URL, confirm.Secret, confirm.WebhookSecret = "http://127.0.0.1:12111", "file:/run/secrets/key", "env:HOOK"
		same(t, p.Confirm, confirm)
	})
	t.Run("a rule cancels when its time is over", func(t *testing.T) {
		t.Parallel()
		same(t, parse(t, "approval: [{}]").Approval, []policy.Approval{{OnTimeout: policy.ApprovalCancel}})
	})
}

func TestAllThatCanBeGiven(t *testing.T) {
	t.Parallel()
	p := parse(t, `
charge:
  executor: http
  url: https://payments.internal/charges?shop=1
  undoUrl: https://payments.internal/undo
  refundUrl: https://payments.internal/refunds
  lookupUrl: https://payments.internal/charges
  secret: env:PAYMENTS_SECRET
  timeout: 1m30s
  keyRetention: 72h
  callbackTimeout: 48h
  inFlight: 10000
  queue: 1
  retry: {initial: 1s, factor: 1.5, cap: 30m, maxRetries: 2, budget: 0s, nonRetryable: [card_declined, "402"]}
  breaker: {failures: 1, open: 1h}
reservationTtl: 30m
completeWithin: 24h
approval:
  - {amountOver: 500.50, currency: USD, items: [car], customers: ["17", bob], approver: another, timeout: 2h, onTimeout: approve}
  - {currency: VED}
concurrency: {by: concurrencyKey, limit: 1000000}`)
	over := decimal.MustParse("500.50")
	same(t, p, &policy.Policy{
		Charge: policy.Step{
			Executor: policy.HTTP, URL: "https://payments.internal/charges?shop=1", UndoURL: "https://payments.internal/undo",
			RefundURL: "https://payments.internal/refunds",
			LookupURL: "https://payments.internal/charges", Secret: "env:PAYMENTS_SECRET",
			Timeout: 90 * time.Second, KeyRetention: 72 * time.Hour, CallbackTimeout: 48 * time.Hour, InFlight: 10_000, Queue: 1,
			Retry: policy.Retry{Initial: time.Second, Factor: 1.5, Cap: 30 * time.Minute, MaxRetries: 2, Budget: 0,
				NonRetryable: []string{"card_declined", "402"}},
			Breaker: policy.Breaker{Failures: 1, Open: time.Hour},
		},
		Reserve: policy.Step{Executor: policy.Ledger}, Confirm: policy.Step{Executor: policy.Ledger},
		ReservationTTL: 30 * time.Minute, CompleteWithin: 24 * time.Hour,
		Approval: []policy.Approval{
			{Condition: policy.Condition{AmountOver: &over, Currency: "USD", Items: []string{"car"}, Customers: []string{"17", "bob"}}, ByAnother: true, Timeout: 2 * time.Hour, OnTimeout: policy.ApprovalApprove},
			{Condition: policy.Condition{Currency: "VED"}, OnTimeout: policy.ApprovalCancel},
		},
		Concurrency: &policy.Concurrency{By: policy.ByKey, Limit: 1_000_000},
	})
}

func TestKeyRetentionAtItsLimit(t *testing.T) {
	t.Parallel()
	parse(t, http("url: http://a/do\n  keyRetention: 2h15m"))
	parse(t, http("url: http://a/do\n  callbackTimeout: 22h45m"))
}

func TestLongest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		retry policy.Retry
		want  time.Duration
	}{
		{"the budget", policy.Retry{Initial: time.Second, Factor: 2, Cap: time.Minute, MaxRetries: 1, Budget: time.Hour}, time.Hour},
		{"the retries", policy.Retry{Initial: time.Second, Factor: 2, Cap: 3 * time.Second, MaxRetries: 3}, 4*10*time.Second + 9*time.Second},
		{"the retries without growth", policy.Retry{Initial: time.Second, Factor: 1, Cap: time.Hour, MaxRetries: 999}, 11_000 * time.Second},
		{"the most there can be", policy.Retry{Initial: 30 * time.Minute, Factor: 10, Cap: 30 * time.Minute, MaxRetries: 999}, 10_000*time.Second + 500*time.Hour},
	} {
		assert.Equal(t, c.retry.Longest(10*time.Second), c.want, c.name)
	}
}

func TestStep(t *testing.T) {
	t.Parallel()
	p := &policy.Policy{}
	for s, want := range map[fsm.Step]*policy.Step{fsm.Charge: &p.Charge, fsm.Reserve: &p.Reserve, fsm.Confirm: &p.Confirm} {
		assert.True(t, p.Step(s, "") == want, s, "is another step")
	}
}

func TestApproval(t *testing.T) {
	t.Parallel()
	p := parse(t, `
approval:
  - {amountOver: 500, currency: USD}
  - {items: [car, boat], currency: EUR}
  - {customers: [mallory]}`)
	for _, c := range []struct {
		name  string
		order policy.Order
		rule  int
	}{
		{"more than the amount", policy.Order{Amount: decimal.MustParse("500.01"), Currency: "USD"}, 0},
		{"the amount itself", policy.Order{Amount: decimal.MustParse("500.00"), Currency: "USD"}, -1},
		{"more in another currency", policy.Order{Amount: decimal.MustParse("501"), Currency: "JPY"}, -1},
		{"an item", policy.Order{Items: []string{"boat"}, Currency: "EUR"}, 1},
		{"an item in another currency", policy.Order{Items: []string{"boat"}, Currency: "USD"}, -1},
		{"a customer", policy.Order{CustomerID: "mallory"}, 2},
		{"nobody", policy.Order{}, -1},
		{"the first of two", policy.Order{Amount: decimal.MustParse("999"), Currency: "USD", CustomerID: "mallory"}, 0},
	} {
		rule, i := p.ApprovalOf(c.order)
		assert.True(t, i == c.rule && (rule == nil) == (i < 0) && (rule == nil || rule == &p.Approval[i]),
			c.name, "rule", i, "want", c.rule)
	}
}

func TestKey(t *testing.T) {
	t.Parallel()
	order := policy.Order{Items: []string{"widget", "mug"}, CustomerID: "bob", ConcurrencyKey: "k"}
	for by, want := range map[string]string{policy.ByItem: "item:widget", policy.ByCustomer: "customerId:bob", policy.ByKey: "concurrencyKey:k"} {
		p := &policy.Policy{Concurrency: &policy.Concurrency{By: by, Limit: 1}}
		assert.Equal(t, p.Key(order), want, "by", by)
		assert.Equal(t, p.Key(policy.Order{}), "", "by", by, "of an order without")
	}
	assert.Equal(t, (&policy.Policy{}).Key(order), "", "without a limit")
}

// A policy is YAML. What it leaves out has its default.
func ExampleParse() {
	p, err := policy.Parse([]byte(`
charge: {executor: http, url: "https://payments.example/do", undoUrl: "https://payments.example/undo", timeout: 10s}
approval:
  - {amountOver: 500, currency: USD, timeout: 24h}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("charge by", p.Charge.Executor, "within", p.Charge.Timeout, "and", p.Charge.Retry.MaxRetries, "retries")
	fmt.Println("reserve by", p.Reserve.Executor, "and confirm by", p.Confirm.Executor)
	fmt.Println("a person must approve more than", p.Approval[0].AmountOver, p.Approval[0].Currency)

	_, err = policy.Parse([]byte("charge:\n  executor: http\n  url: https://payments.example/do\nlimit: 5\n"))
	fmt.Println(err)
	// Output:
	// charge by http within 10s and 7 retries
	// reserve by ledger and confirm by ledger
	// a person must approve more than 500 USD
	// line 2, column 13: charge.undoUrl: is missing; http needs it
	// line 4, column 1: unknown key limit; must be one of charge, reserve, confirm, approval, reservationTtl, completeWithin, concurrency
}

func TestSecrets(t *testing.T) {
	folder, outside := t.TempDir(), t.TempDir()
	within := policy.Bounds{SecretEnvPrefix: policy.SecretEnvPrefix, SecretsDir: folder}
	write := func(name, text string) string {
		path := filepath.Join(folder, name)
		assert.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	assert.NoError(t, os.WriteFile(filepath.Join(outside, "key"), []byte("hidden"), 0o600))
	for link, to := range map[string]string{"inside": "key", "outside": filepath.Join(outside, "key"), "around": filepath.Join("..", filepath.Base(outside), "key")} {
		assert.NoError(t, os.Symlink(to, filepath.Join(folder, link)))
	}
	t.Setenv("DATABASE_URL", "hidden")
	t.Setenv("PAWL_SECRET_TEST_SECRET", " hidden\n")
	t.Setenv("PAWL_SECRET_TEST_BLANK", "\n")
	for secret, want := range map[string]string{
		"env:PAWL_SECRET_TEST_SECRET":                             "hidden",
		"file:" + write("key", "\thidden\r\n"):                    "hidden",
		"env:PAWL_SECRET_TEST_MISSING":                            "",
		"env:PAWL_SECRET_TEST_BLANK":                              "",
		"file:" + write("empty", ""):                              "",
		"file:" + filepath.Join(folder, "none"):                   "",
		"file:" + folder:                                          "",
		"file:" + write("long", strings.Repeat("hidden", 20_000)): "",
		"file:" + filepath.Join(folder, "inside"):                 "hidden",
		"file:" + filepath.Join(folder, "outside"):                "",
		"file:" + filepath.Join(folder, "around"):                 "",
		"file:" + filepath.Join(outside, "key"):                   "",
		"file:/etc/hostname":                                      "",
		"env:DATABASE_URL":                                        "",
		"env:PATH":                                                "",
		"file:relative":                                           "",
		"hidden":                                                  "",
		"":                                                        "",
	} {
		got, err := within.Read(policy.Secret(secret))
		assert.True(t, got == want && (err == nil) == (want != ""), secret, "read", got, "error", err)
		assert.True(t, err == nil || !strings.Contains(err.Error(), "hidden"), secret, "the error tells it", err)
	}
	t.Run("are read when they are used", func(t *testing.T) {
		p := parse(t, "charge: {executor: stripe, secret: 'env:PAWL_SECRET_TEST_KEY', webhookSecret: 'env:PAWL_SECRET_TEST_HOOK'}")
		usable := func(want string) {
			t.Helper()
			err := within.Usable(p, policy.Place{Step: fsm.Charge})
			assert.True(t, (want == "") == (err == nil) && (err == nil || strings.Contains(err.Error(), want)), "error", err, "want", want)
		}
		usable("use stripe of charge: read secret: env:PAWL_SECRET_TEST_KEY is empty or not set")
		t.Setenv("PAWL_SECRET_TEST_KEY", "sk_live_1")
		usable("env:PAWL_SECRET_TEST_HOOK")
		t.Setenv("PAWL_SECRET_TEST_HOOK", "whsec_")
		usable("env:PAWL_SECRET_TEST_HOOK has less than 16 bytes")
		t.Setenv("PAWL_SECRET_TEST_HOOK", "whsec_of_sixteen")
		usable("")
		for executor, more := range map[string]string{"http": ", undoUrl: 'https://1.1.1.1/undo'", "simulator": ""} { // here it is a key, not a password
			p = parse(t, "charge: {executor: "+executor+", url: 'https://1.1.1.1', secret: 'env:PAWL_SECRET_TEST_KEY'"+more+"}")
			t.Setenv("PAWL_SECRET_TEST_KEY", "whsec_")
			usable("use " + executor + " of charge: use env:PAWL_SECRET_TEST_KEY: read secret: the key has less than 16 bytes")
			t.Setenv("PAWL_SECRET_TEST_KEY", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
			usable("")
		}
		assert.NoError(t, within.Usable(p, policy.Place{Step: fsm.Reserve}), "the ledger needs no secret")
	})
}

// Without bounds nothing can be named: a service says itself what its policies may have.
func TestNothingIsNamedWithoutBounds(t *testing.T) {
	t.Setenv("PAWL_SECRET_TEST", "hidden")
	for _, secret := range []policy.Secret{"env:PAWL_SECRET_TEST", "file:/etc/hostname"} {
		text, err := (policy.Bounds{}).Read(secret)
		assert.True(t, err != nil, secret, text)
	}
}

// Whoever stores a policy names where a key is sent. One that moves real money goes to Stripe alone.
func TestLiveKeysAreForStripe(t *testing.T) { //nolint:paralleltest // it changes the environment
	within := policy.Bounds{SecretEnvPrefix: policy.SecretEnvPrefix, AllowPrivate: true}
	for _, c := range []struct {
		key, url string
		usable   bool
	}{
		{"sk_live_1", "", true}, {"rk_live_1", "https://api.stripe.com", true}, {"sk_test_1", "http://127.0.0.1:4000", true}, {"rk_test_1", "https://a.example", true},
		{"sk_live_1", "http://127.0.0.1:4000", false}, {"rk_live_1", "https://a.example", false}, {"sk_live_1", "http://api.stripe.com", false},
		{"sk_live_1", "https://api.stripe.com.a.example", false}, {"sk_live_1", "https://api.stripe.com:444", false}, {"hidden", "https://a.example", false},
	} {
		t.Setenv("PAWL_SECRET_TEST_KEY", c.key)
		how := policy.Policy{Charge: policy.Step{Executor: policy.Stripe, URL: c.url, Secret: "env:PAWL_SECRET_TEST_KEY"}}
		err := within.Usable(&how, policy.Place{Step: fsm.Charge})
		assert.True(t, (err == nil) == c.usable && (err == nil || !strings.Contains(err.Error(), c.key)),
			c.key, "at", c.url, err)
		key, err := within.ReadKey(&how.Charge)
		assert.True(t, (err == nil) == c.usable && (err != nil || key == c.key), c.key, "at", c.url, "read", key, err)
	}
}

// An address that is written out is judged before anything is sent; a name when it is dialed.
func TestAddressesOfAPolicy(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]struct{ always, private bool }{
		"https://shop.example/do": {true, true}, "http://8.8.8.8/": {true, true}, "http://127.0.0.1:4000/": {false, true}, "http://[::1]/": {false, true},
		"http://10.0.0.1/": {false, true}, "http://169.254.169.254/latest": {false, false}, "http://[::ffff:169.254.169.254]/": {false, false},
		"http://[fe80::1%25eth0]/": {false, false}, "http://0.0.0.0/": {false, false},
	} {
		p := parse(t, "confirm: {executor: http, url: '"+url+"'}")
		if err := (policy.Bounds{}).Usable(p, policy.Place{Step: fsm.Confirm}); (err == nil) != want.always {
			t.Errorf("%s: %v", url, err)
		}
		err := (policy.Bounds{AllowPrivate: true}).Usable(p, policy.Place{Step: fsm.Confirm})
		assert.Equal(t, err == nil, want.private, url, "private allowed", err)
	}
	for _, url := range []string{"http://0x7f.1/", "http://127.1/", "http://2130706433/", "http://0177.0.0.1/", "http://0x7f000001/", "http://a.example.0x1/", "http://1.2.3.4.5/", "http://127.0.0.1./"} {
		assert.True(t, assert.Err(policy.ParseURL(url)) != nil, url, "is taken")
	}
}

const twoRoutes = `
charge:
  - {name: cards, currency: EUR, amountOver: 100, paymentMethod: pm_, metadata: {shop: web, level: 2, vip: true},
     fallback: [card_declined], executor: stripe, secret: 'env:KEY'}
  - {name: wallet, paymentMethod: wallet_, executor: http, url: 'http://a/do', undoUrl: 'http://a/undo', inFlight: 3}
  - {name: rest, executor: simulator, url: 'http://b'}
`

func TestRoutes(t *testing.T) {
	t.Parallel()
	p := parse(t, twoRoutes)
	eur := policy.Order{Amount: decimal.MustParse("100.01"), Currency: "EUR", PaymentMethod: "pm_1",
		Metadata: []byte(`{"shop": "web", "level": 2, "vip": true, "other": null}`)}
	for route, change := range map[string]func(o *policy.Order){
		"cards":  func(*policy.Order) {},
		"wallet": func(o *policy.Order) { o.PaymentMethod = "wallet_9" },
		"rest":   func(o *policy.Order) { o.PaymentMethod = "" },
	} {
		o := eur
		change(&o)
		assert.Equal(t, p.RouteOf(o), route)
	}
	for what, change := range map[string]func(o *policy.Order){
		"an amount":         func(o *policy.Order) { o.Amount = decimal.MustParse("100") },
		"a currency":        func(o *policy.Order) { o.Currency = "USD" },
		"a payment method":  func(o *policy.Order) { o.PaymentMethod = "PM_1" },
		"no metadata":       func(o *policy.Order) { o.Metadata = nil },
		"missing metadata":  func(o *policy.Order) { o.Metadata = []byte(`{"shop": "web", "level": 2}`) },
		"another text":      func(o *policy.Order) { o.Metadata = []byte(`{"shop": "app", "level": 2, "vip": true}`) },
		"another number":    func(o *policy.Order) { o.Metadata = []byte(`{"shop": "web", "level": 3, "vip": true}`) },
		"a nested metadata": func(o *policy.Order) { o.Metadata = []byte(`{"shop": {"web": 1}, "level": 2, "vip": true}`) },
	} {
		o := eur
		change(&o)
		assert.Equal(t, p.RouteOf(o), "rest", what)
	}
	assert.Equal(t, p.NextRoute("cards", "card_declined", eur), "rest", "wallet does not fit")
	assert.Equal(t, p.NextRoute("cards", "fraud", eur), "", "a code that is not listed")
	assert.Equal(t, p.NextRoute("rest", "card_declined", eur), "", "after the last route")
	assert.Equal(t, p.Step(fsm.Charge, "wallet").InFlight, 3)
	assert.Equal(t, p.Step(fsm.Reserve, "wallet").Executor, policy.Ledger)
	assert.Equal(t, fmt.Sprint(p.Places()), "[charge/cards charge/wallet charge/rest reserve confirm]")
	how := p.Step(fsm.Charge, "gone")
	assert.True(t, how.Executor.Remote() && how.URL == "", "a route that is not there is done by", how)
	single := parse(t, "{}")
	assert.Equal(t, single.RouteOf(eur)+single.NextRoute("", "card_declined", eur), "")
	assert.Equal(t, fmt.Sprint(single.Places()), "[charge reserve confirm]")
}

func TestRoutesThatCapture(t *testing.T) {
	t.Parallel()
	p := parse(t, `
charge:
  - {name: eu, currency: EUR, executor: stripe, secret: 'env:EU', capture: on_confirm}
  - {name: us, executor: stripe, secret: 'env:US', webhookSecret: 'env:HOOK', capture: on_confirm}
confirm: {executor: stripe, inFlight: 7}`)
	assert.Equal(t, p.Step(fsm.Confirm, "eu").Secret, policy.Secret("env:EU"))
	assert.Equal(t, p.Step(fsm.Confirm, "us").Secret, policy.Secret("env:US"))
	assert.Equal(t, p.Step(fsm.Confirm, "us").InFlight, 7)
	assert.Equal(t, fmt.Sprint(p.Places()), "[charge/eu charge/us reserve confirm/eu confirm/us]")
}
