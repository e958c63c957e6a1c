package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"pawl/engine"
	"pawl/test/assert"
)

func TestPreference(t *testing.T) {
	t.Parallel()
	const fallback = 30 * time.Second
	for _, c := range []struct {
		header         []string
		atMost         time.Duration
		final, pending string // Preference-Applied of a 200 and of a 202
	}{
		{nil, fallback, "", ""},
		{[]string{"wait=5"}, 5 * time.Second, "wait=5", "wait=5"},
		{[]string{"wait=0"}, 0, "wait=0", "wait=0"},
		{[]string{"WAIT = \"7\""}, 7 * time.Second, "wait=7", "wait=7"},
		{[]string{"wait=60"}, time.Minute, "wait=60", "wait=60"},
		{[]string{"wait=61"}, time.Minute, "wait=60", "wait=60"},
		{[]string{"wait=2000000000"}, time.Minute, "wait=60", "wait=60"},
		{[]string{"wait=5, wait=9"}, 5 * time.Second, "wait=5", "wait=5"},
		{[]string{"respond-async"}, 0, "", "respond-async"},
		{[]string{"Respond-Async; foo=1"}, 0, "", "respond-async"},
		{[]string{"respond-async, wait=5"}, 5 * time.Second, "wait=5", "respond-async, wait=5"},
		{[]string{"wait=5", "respond-async"}, 5 * time.Second, "wait=5", "respond-async, wait=5"},
		{[]string{"return=minimal"}, fallback, "", ""},
		{[]string{"wait"}, fallback, "", ""},
		{[]string{"wait=-1", "wait=x", "wait=1.5", "wait=99999999999999999999", ",;=,"}, fallback, "", ""},
	} {
		p := preferenceOf(c.header, fallback)
		assert.True(t, p.atMost == c.atMost && p.applied(true) == c.final && p.applied(false) == c.pending,
			c.header, "waits", p.atMost, "applied", p.applied(true), "and", p.applied(false))
	}
}

func TestCursor(t *testing.T) {
	t.Parallel()
	binding := []string{"orders", "completed", ""}
	cursor := sealCursor(binding, "4711")
	position, ok := openCursor(binding, cursor)
	assert.True(t, ok && position == "4711", position, ok)
	for i := range cursor {
		changed := []byte(cursor)
		changed[i] ^= 1
		_, ok := openCursor(binding, string(changed))
		assert.True(t, !ok, "taken with another character at", i)
	}
	for _, other := range [][]string{nil, {"orders", "completed"}, {"orders", "", "completed"}, {"orders", "completed", "", ""}} {
		_, ok := openCursor(other, cursor)
		assert.True(t, !ok, "taken for", other)
	}
}

// parametersOf are the query parameters of every operation of the document, by its pattern.
func parametersOf(t *testing.T) map[string][]string {
	t.Helper()
	of := map[string][]string{}
	for path, item := range dig(theContract().document, "paths") {
		for method := range dig(item) {
			pattern := strings.ToUpper(method) + " " + path
			of[pattern] = nil
			list, _ := dig(item, method)["parameters"].([]any)
			for _, parameter := range list {
				if p := dig(parameter); p["in"] == "query" {
					name, _ := p["name"].(string)
					of[pattern] = append(of[pattern], name)
				}
			}
		}
	}
	for _, target := range []string{"/", "/docs", "/openapi.yaml", "/openapi.json", "/problems/not_found"} {
		of["GET "+target] = nil
	}
	return of
}

// targetOf is a path with something in the place of each parameter.
func targetOf(path string) string {
	return pathParameter.ReplaceAllString(strings.ReplaceAll(path, "{verb}", "cancel"), "x")
}

// A parameter that is passed over is a dry run that is done, or a filter that lists everything.
func TestEveryRouteRefusesAQueryItDoesNotTake(t *testing.T) {
	t.Parallel()
	b := withoutEngine()
	for pattern, parameters := range parametersOf(t) {
		target := targetOf(pattern)
		refused := map[string]string{"nonsense=1": "nonsense unknown_parameter", "=": " unknown_parameter", "x": "x unknown_parameter"}
		for _, name := range parameters {
			refused[name] = name + " empty"
			refused[name+"="] = name + " empty"
			refused[name+"=1&"+name+"=1"] = name + " repeated"
			refused[strings.ToUpper(name)+"=1"] = strings.ToUpper(name) + " unknown_parameter"
		}
		for query, fault := range refused {
			p := b.call(t, target+"?"+query, "").wantProblem(t, 422, "invalid_parameter")
			assert.True(t, len(p.Errors) == 1 && p.Errors[0].Parameter+" "+p.Errors[0].Code == fault && p.Errors[0].Detail != "",
				pattern, "?", query, p)
		}
		for _, query := range []string{"%zz", "a;b"} {
			p := b.call(t, target+"?"+query, "").wantProblem(t, 422, "invalid_parameter")
			assert.True(t, p.Detail != "", pattern, "?", query, p)
		}
	}
}

func TestAllFaultsOfAQueryAreNamed(t *testing.T) {
	t.Parallel()
	p := withoutEngine().get(t, "/api/orders?stauts=failed&limit=&item=a&item=b&"+strings.Repeat("x", 50)+"=1").wantProblem(t, 422, "invalid_parameter")
	var faults []string
	for _, f := range p.Errors {
		faults = append(faults, f.Parameter+" "+f.Code)
	}
	assert.Equal(t, strings.Join(faults, ", "), "item repeated, limit empty, stauts unknown_parameter,  unknown_parameter")
	assert.Contains(t, p.Errors[2].Detail, "status", "does not say what there is")
}

// mistyped are dry runs that are none.
var mistyped = []string{"dryrun=true", "dryRun", "dryRun=", "dryRun=false&dryRun=true", "dryRun=true&dryRun=true",
	"dryRun=1", "dryRun=True", "dry_run=true", "dryRun=true&x=1"}

func TestAMistypedDryRunDoesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.waitsFor(t, "approval", "pending", "large")
	b.process(t, ask("bought")).wantStatus(t, 200)
	requests := map[string]string{
		"/api/orders/bought/refunds": `{"reason":"broken","requestId":"dry"}`,
		"/api/orders/large/cancel":   `{"onBehalfOf":"ann"}`, "/api/orders/large/approve": `{"onBehalfOf":"ann"}`,
		"/api/bulk/approve": `{"ids":["large"],"onBehalfOf":"ann"}`, "/api/bulk/cancel": `{"filter":{"hold":"approval"}}`,
	}
	for target, body := range requests {
		for _, query := range mistyped {
			b.call(t, "POST "+target+"?"+query, body).wantProblem(t, 422, "invalid_parameter")
		}
		a := b.call(t, "POST "+target+"?dryRun=true", body)
		assert.True(t, a.status == 200 && strings.Contains(a.body, `"dryRun":true`), target, "as a dry run", a.body)
	}
	b.process(t, ask("new"), "Prefer", "wait=60").wantStatus(t, 200)
	b.call(t, "POST /api/orders/process?dryRun=true", ask("newer")).wantProblem(t, 422, "invalid_parameter")
	n := b.count(t, `SELECT count(*) FROM orders WHERE order_id = 'newer' OR order_id = 'large' AND (hold IS NULL OR seq > 1)
		OR order_id = 'bought' AND charge_operations IS NOT NULL`)
	assert.Equal(t, n, 0, "orders were touched")
	a := b.call(t, "POST /api/orders/large/approve?dryRun=false", `{"onBehalfOf":"ann"}`)
	assert.True(t, a.wantStatus(t, 200).Status == "completed" && !strings.Contains(a.body, "dryRun"), a.body)
}

func TestIgnoredFieldsAreNamed(t *testing.T) {
	t.Parallel()
	b, callback := withProvider(t)
	b.waitsFor(t, "attention", "charging", "held")
	a := b.process(t, `{"orderId":"typo","amount":5,"item":"i","colour":3,"size":"L","metadata":{"any":"thing"}}`, "Prefer", "respond-async")
	wantIgnored(t, a, 202, `["colour","size"]`)
	for _, c := range []struct{ request, body string }{
		{"POST " + callback(), `{"outcome":"done","amuont":1}`},
		{"POST /api/orders/held/cancel?dryRun=true", `{"amuont":"x"}`},
		{"POST /api/bulk/cancel", `{"ids":["held"],"amuont":{"a":[1]}}`},
		{"PUT /api/inventory/shelf", `{"onHand":3,"amuont":null}`},
		{"POST /api/inventory/shelf/adjustments", `{"change":3,"amuont":[],"reason":"found","requestId":"1"}`},
	} {
		b.call(t, c.request, c.body, "Prefer", "handling=strict").wantProblem(t, 422, "invalid_input")
		wantIgnored(t, b.call(t, c.request, c.body, "Prefer", "handling=lenient", "If-None-Match", "*"), 200, `["amuont"]`)
	}
	a = b.process(t, `{"orderId":"typo","colour":5,"item":"i"}`)
	wantIgnored(t, a, 422, `["colour"]`)
	a = b.get(t, "/api/orders/typo")
	assert.True(t, !strings.Contains(a.body, "ignoredFields"), a.body)
}

// What a field would decide is not done without it because its name has a slip.
func TestMisspelledFieldsAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for field, meant := range map[string]string{
		"quantitiy": "quantity", "Quantitiy": "quantity", //nolint:misspell // it is one
		"quantiy": "quantity", "quanttiy": "quantity", "amout": "amount", "amuont": "amount", "curency": "currency",
		"itme": "item", "items": "item", "order_id": "orderId", "customer_id": "customerId", "custmerId": "customerId", "paymentMehtod": "paymentMethod",
		"start_at": "startAt", "completedBy": "completeBy", "reservationTTLs": "reservationTtl", "concurencyKey": "concurrencyKey",
	} {
		a := b.process(t, fmt.Sprintf(`{"orderId":"o","amount":5,"item":"i",%q:3}`, field))
		p := a.wantProblem(t, 422, "invalid_input")
		e := p.Errors[0]
		assert.True(t, e.Pointer == "/"+field && e.Code == "misspelled" &&
			e.Detail == "unknown field "+field+"; did you mean "+meant+"?" && len(p.Errors) == 1, field, a.body)
	}
	assert.Equal(t, b.count(t, `SELECT count(*) FROM orders`), 0, "orders")
	a := b.process(t, `{"orderId":"o","amount":5,"item":"i","metadat":{},"qty":1,"currencyCode":"EUR","quantities":3,"it":1,"":2}`)
	wantIgnored(t, a, 200, `["metadat","qty","currencyCode","quantities","it",""]`)
	b.held(t, "held", nil)
	for _, request := range []string{"POST /api/orders/held/retry", "POST /api/bulk/retry"} {
		p := b.call(t, request, `{"ids":["held"],"polcy":"active"}`).wantProblem(t, 422, "invalid_input")
		assert.Equal(t, p.Errors[0].Code, "misspelled", p)
	}
	wantIgnored(t, b.call(t, "POST /api/orders/held/cancel", `{"polcy":"active"}`), 200, `["polcy"]`) // it has no policy
}

// A request for an order that exists is refused if it asks for something else, or for another time. Metadata has no effect, and the
// answer says so.
func TestRepeatedOrdersWithOtherInput(t *testing.T) {
	t.Parallel()
	b := setup(t)
	in := func(hours int) string {
		return time.Now().Add(time.Duration(hours) * time.Hour).UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano)
	}
	soon, later, end := in(1), in(2), in(3)
	terms := func(orderID, more string) string {
		return `{"orderId":"` + orderID + `","amount":5,"item":"i"` + more + `}`
	}
	timed := `,"startAt":"` + soon + `","completeBy":"` + end + `","reservationTtl":60,"metadata":{"b":"2","a":"\u00e9"}`
	for _, request := range []struct{ orderID, terms string }{{"timed", timed}, {"plain", ""}} {
		a := b.process(t, terms(request.orderID, request.terms), "Prefer", "respond-async")
		assert.Require(t, a.status <= 202 && !strings.Contains(a.body, "ignoredFields"), a.body)
	}
	for _, c := range []struct{ orderID, more, differs, stored string }{
		{"timed", `,"startAt":"` + later + `"`, "/startAt", soon}, {"timed", `,"completeBy":"` + in(4) + `"`, "/completeBy", end},
		{"timed", `,"reservationTtl":61`, "/reservationTtl", "60"}, {"timed", timed[:len(timed)-1] + `},"quantity":2`, "/quantity", "1"},
		{"plain", `,"startAt":"` + later + `"`, "/startAt", ""}, {"plain", `,"completeBy":"` + end + `"`, "/completeBy", ""},
		{"plain", `,"reservationTtl":61`, "/reservationTtl", ""},
	} {
		p := b.process(t, terms(c.orderID, c.more), "Prefer", "respond-async").wantProblem(t, 409, "order_conflict")
		assert.True(t, len(p.Errors) == 1 && p.Errors[0].Pointer == c.differs && or(p.Errors[0].Stored, "none") == c.stored,
			c, p.Errors, "stored", or(p.Errors[0].Stored, "none"))
	}
	for _, same := range []string{"", timed, `,"metadata":{"b":"2","a":"é"}`, `,"startAt":"` + soon + `"`, `,"metadata":{}`} {
		a := b.process(t, terms("timed", same), "Prefer", "respond-async")
		assert.True(t, a.status == 202 && !strings.Contains(a.body, "ignoredFields"), same, a.status, a.body)
	}
	for _, orderID := range []string{"timed", "plain"} {
		a := b.process(t, terms(orderID, `,"metadata":{"a":"1"},"colour":1`), "Prefer", "respond-async")
		wantIgnored(t, a, a.status, `["colour","metadata"]`)
		assert.True(t, a.status <= 202, a.body)
	}
}

func wantIgnored(t *testing.T, a answer, status int, names string) {
	t.Helper()
	assert.True(t, a.status == status && strings.Contains(a.body, `"ignoredFields":`+names), a.status, a.body)
}

func TestStrictHandlingRefusesUnknownFields(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const typos = `{"orderId":"typo","amount":5,"item":"i","colour":3,"a/b":"JPY"}`
	for _, prefer := range []string{"handling=strict", "wait=5, Handling=\"Strict\"", "handling=strict, handling=lenient"} {
		a := b.process(t, typos, "Prefer", prefer)
		p := a.wantProblem(t, 422, "invalid_input")
		assert.True(t, len(p.Errors) == 2 && p.Errors[0].Pointer == "/colour" && p.Errors[1].Pointer == "/a~1b" &&
			p.Errors[0].Code == "unknown_field", prefer, a.body)
	}
	b.process(t, `{"orderId":"","colour":3}`, "Prefer", "handling=strict").wantProblem(t, 422, "invalid_input")
	b.get(t, "/api/orders/typo").wantProblem(t, 404, "not_found")
	a := b.process(t, ask("good"), "Prefer", "handling=strict")
	assert.True(t, a.status == 200 && a.header.Get("Preference-Applied") == "handling=strict", a.status, a.header, a.body)
}

// Every body that is read by its names takes the preference.
func TestEveryBodyCanBeReadStrictly(t *testing.T) {
	t.Parallel()
	b := withoutEngine()
	for path, item := range dig(theContract().document, "paths") {
		for method, operation := range dig(item) {
			if dig(operation, "requestBody") == nil || path == "/api/webhooks/stripe" { // Stripe's own
				continue
			}
			target := strings.ToUpper(method) + " " + targetOf(path)
			a := b.call(t, target, `{"nonsense":{}}`, "Prefer", "handling=strict")
			assert.Contains(t, a.body, `{"pointer":"/nonsense","code":"unknown_field"`, target)
		}
	}
}

func TestNamesThatLookLikeAnotherAreRefusedInPaths(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, name := range []string{" widget", "widget ", "wid\u200bget", "\u202ewidget", "widget\u00ad", "widget\u3000",
		"wid\u00a0get", "wid\u2028get", "widget\ufe0f", "wid\ue000get", "widget\ufffd"} {
		b.stock(t, name, `{"onHand":1}`).wantProblem(t, 422, "invalid_parameter")
		b.get(t, "/api/orders?item="+url.QueryEscape(name)).wantProblem(t, 422, "invalid_parameter")
	}
	b.call(t, "POST /api/orders/x/cancel", "", "Idempotency-Key", "k\u200b").wantProblem(t, 400, "invalid_idempotency_key")
	assert.Equal(t, b.count(t, `SELECT count(*) FROM inventory`), 0, "items")
}

func TestDetailsOfParameters(t *testing.T) {
	t.Parallel()
	b := withoutEngine()
	for query, detail := range map[string]string{
		"limit=201":              "expected number <= 200, not 201",
		"limit=-9999999999":      "expected number >= 1, not -9999999999",
		"hold=forever":           `must be one of retry, callback, scheduled, queued, approval, paused, attention`,
		"status=failed,finished": `must be one of pending, charging, reserving, confirming, completed, releasing, refunding, failed, canceled`,
		"hold=atention":          `must be one of retry, callback, scheduled, queued, approval, paused, attention; did you mean attention?`,
		"status=faild":           `must be one of pending, charging, reserving, confirming, completed, releasing, refunding, failed, canceled; did you mean failed?`,
		"holdReason=x":           "is required with holdReason",
		"Status=failed":          "unknown parameter; must be one of term, status, customerId, item, hold, holdReason, failureStep, failureCode, amountFrom, amountTo, currency, charged, refunded, authorized, voided, refund, dispute, route, createdFrom, createdTo, sort, limit, cursor, count, money, format; did you mean status?",
	} {
		p := b.get(t, "/api/orders?"+query).wantProblem(t, 422, "invalid_parameter")
		assert.True(t, len(p.Errors) == 1 && p.Errors[0].Detail == detail, query, p.Errors)
	}
}

func TestRequestID(t *testing.T) {
	t.Parallel()
	b := withoutEngine()
	for given, kept := range map[string]bool{
		"abc-123": true, "a.b/c=": true, "": false, "with space": false, "line\u0085": false, "\x7f": false, strings.Repeat("x", 129): false,
	} {
		a := b.call(t, "GET /livez", "", "X-Request-Id", given)
		got := a.header.Get("X-Request-Id")
		assert.True(t, (got == given) == kept && got != "", given, "is answered with", got)
	}
	first, second := b.call(t, "GET /livez", ""), b.call(t, "GET /livez", "")
	assert.True(t, first.header.Get("X-Request-Id") != second.header.Get("X-Request-Id"), "two requests have one id")
}

// testServer is a server whose routes a test can add to, and its log.
func testServer(t *testing.T, cfg Config) (*server, *bytes.Buffer) {
	t.Helper()
	var logged bytes.Buffer
	cfg.Log = slog.New(slog.NewTextHandler(&logged, nil))
	s, ok := New(nil, cfg).(*server)
	assert.Require(t, ok, "not a server")
	return s, &logged
}

func TestFaultsOfTheServiceShowNoDetails(t *testing.T) {
	t.Parallel()
	const secret = "s3cret"
	t.Run("an unknown error", func(t *testing.T) {
		t.Parallel()
		s, logged := testServer(t, Config{})
		s.handle("POST /test", s.answered(func(http.ResponseWriter, *http.Request) error {
			return errors.New(secret)
		}))
		a := (&bundle{api: s}).call(t, "POST /test", "", "X-Request-Id", "id-1")
		a.wantProblem(t, 500, "internal")
		assert.True(t, !strings.Contains(a.body, secret) && strings.Contains(logged.String(), secret) &&
			strings.Contains(logged.String(), "request_id=id-1"), a.body, logged)
	})
	t.Run("a panic", func(t *testing.T) {
		t.Parallel()
		s, logged := testServer(t, Config{})
		s.handle("POST /test", func(http.ResponseWriter, *http.Request) { panic(secret) })
		a := (&bundle{api: s}).call(t, "POST /test", "", "X-Request-Id", "id-2")
		a.wantProblem(t, 500, "internal")
		for _, want := range []string{secret, "request_id=id-2", "headers_test.go"} {
			assert.True(t, !strings.Contains(a.body, secret) && strings.Contains(logged.String(), want), a.body, logged)
		}
	})
	t.Run("a panic of an operation of huma's", func(t *testing.T) {
		t.Parallel()
		s, logged := testServer(t, Config{}) // without an engine
		(&bundle{api: s}).get(t, "/api/orders/o").wantProblem(t, 500, "internal")
		assert.Contains(t, logged.String(), "request_id=", logged)
	})
	t.Run("a panic behind half an answer cuts the connection", func(t *testing.T) {
		t.Parallel()
		s, _ := testServer(t, Config{})
		s.handle("POST /test", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			panic(secret)
		})
		defer func() {
			cause, _ := recover().(error)
			assert.ErrorIs(t, cause, http.ErrAbortHandler, "recovered")
		}()
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/test", nil))
	})
}

// Each request is a line of the log at debug, and none at info.
func TestRequestsAreLogged(t *testing.T) {
	t.Parallel()
	for level, lines := range map[slog.Level]int{slog.LevelInfo: 0, slog.LevelDebug: 4} {
		var logged bytes.Buffer
		b := setupWith(t, engine.Config{}, Config{ResponseTimeout: patience,
			Log: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: level}))})
		b.call(t, "POST /api/orders/process", `{"orderId":"o1","amount":1,"item":"i"}`, "X-Request-Id", "first")
		b.call(t, "POST /api/orders/process", `{"orderId":"o1","amount":2,"item":"i"}`, "X-Request-Id", "second")
		b.call(t, "GET /api/orders/o1/transitions", "", "X-Request-Id", "third")
		b.call(t, "GET /api/orders/o2", "", "X-Request-Id", "fourth")
		assert.Equal(t, strings.Count(logged.String(), "msg=request"), lines, "lines at", level, &logged)
		for _, want := range []string{
			`request_id=first method=POST route="POST /api/orders/process" status=200 order_id=o1 outcome=completed duration_seconds=`,
			`request_id=second method=POST route="POST /api/orders/process" status=409 order_id=o1 outcome=order_conflict duration_seconds=`,
			`request_id=third method=GET route="GET /api/orders/{orderId}/transitions" status=200 order_id=o1 outcome="" duration_seconds=`,
			`request_id=fourth method=GET route="GET /api/orders/{orderId}" status=404 order_id=o2 outcome=not_found duration_seconds=`,
		} {
			assert.Equal(t, strings.Contains(logged.String(), want), (lines > 0), "at", level, want, &logged)
		}
	}
}

func TestACallerWhoHungUp(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	s, logged := testServer(t, Config{Registerer: registry})
	s.handle("POST /test", s.answered(func(_ http.ResponseWriter, r *http.Request) error {
		return r.Context().Err()
	}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/test", nil))
	assert.True(t, w.Body.Len() == 0 && logged.Len() == 0, "answered", w.Body, "logged", logged)
	assert.Equal(t, codesOf(t, registry, "POST /test"), "499", "counted as")
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	b := &bundle{api: New(nil, Config{Registerer: registry, Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("metrics")) //nolint:errcheck // a recorder
	})})}
	b.process(t, "{}")
	b.process(t, "{")
	b.get(t, "/api/orders/o1/nothing")
	assert.Equal(t, codesOf(t, registry, "POST /api/orders/process"), "400 422")
	assert.Equal(t, codesOf(t, registry, "/"), "404")
	assert.Equal(t, b.get(t, "/metrics").body, "metrics")
}

// codesOf lists the codes that requests of a route were counted under.
func codesOf(t *testing.T, registry *prometheus.Registry, route string) string {
	t.Helper()
	families, err := registry.Gather()
	assert.NoError(t, err)
	var codes []string
	for _, family := range families {
		for _, metric := range family.Metric {
			labels := labelsOf(metric)
			assert.True(t, !strings.Contains(labels["route"], "o1"), "a label holds an order id", labels)
			if family.GetName() == "http_server_request_duration_seconds" && labels["route"] == route {
				codes = append(codes, labels["code"])
			}
			assert.True(t, family.GetName() != "http_server_requests_in_flight" || metric.GetGauge().GetValue() == 0,
				labels, "in flight for ever")
		}
	}
	return strings.Join(codes, " ")
}

func labelsOf(metric *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, pair := range metric.Label {
		labels[pair.GetName()] = pair.GetValue()
	}
	return labels
}
