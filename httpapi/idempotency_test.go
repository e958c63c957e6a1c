package httpapi

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/db"
	"pawl/engine"
	"pawl/internal/access"
	"pawl/internal/webhooks"
	"pawl/test/assert"
)

// done is what a request with a key is about, by its operation: what has to be there before, and what shows that it was done.
type done struct {
	prepare func(t *testing.T, b *bundle, name string)
	count   string // how often it was done to the order or item $1
	except  string // why it takes no key
}

const (
	ofVerb     = `SELECT count(*) FROM books.transitions WHERE order_id = $1 AND actor = 'local' AND request_id = $1 || ' key'`
	ofEndpoint = `SELECT count(*) FROM webhook_changes AS c JOIN webhook_endpoints AS e ON e.endpoint_no = c.endpoint_no WHERE c.request_id = $1 || ' key'`
	ofStock    = `SELECT count(*) FROM books.stock_movements WHERE item = $1`
)

// onceDone has every operation that changes something.
var onceDone = map[string]done{
	"processOrder":           {count: `SELECT count(*) FROM books.charges WHERE order_id = $1`},
	"cancelOrder":            {prepare: waitingFor("attention", "charging"), count: ofVerb},
	"retryOrder":             {prepare: waitingFor("attention", "charging"), count: ofVerb},
	"pauseOrder":             {prepare: waitingFor("retry", "charging"), count: ofVerb},
	"resumeOrder":            {prepare: waitingFor("paused", "charging"), count: ofVerb},
	"approveOrder":           {prepare: waitingFor("approval", "pending"), count: ofVerb},
	"rejectOrder":            {prepare: waitingFor("approval", "pending"), count: ofVerb},
	"settleStepOfOrder":      {prepare: inDoubt, count: ofVerb},
	"refundOrder":            {prepare: sold, count: `SELECT count(*) FROM books.refunds WHERE order_id = $1`},
	"captureOrder":           {prepare: authorized, count: `SELECT count(*) FROM books.captures WHERE order_id = $1`},
	"voidOrder":              {prepare: authorized, count: `SELECT count(*) FROM books.captures WHERE order_id = $1`},
	"recordDispute":          {prepare: sold, count: `SELECT count(*) FROM books.disputes WHERE order_id = $1`},
	"createErasure":          {prepare: ofCustomer, count: `SELECT count(*) FROM books.erasures WHERE request_id = $1 || ' key'`},
	"applyBulkVerb":          {prepare: waitingFor("attention", "charging"), count: ofVerb},
	"setInventory":           {count: ofStock},
	"adjustInventory":        {count: ofStock, prepare: inStock},
	"createWebhookEndpoint":  {count: ofEndpoint},
	"changeWebhookEndpoint":  {prepare: withEndpoint, count: ofEndpoint},
	"deleteWebhookEndpoint":  {except: "what is deleted stays deleted"},
	"rotateWebhookSecret":    {prepare: withEndpoint, count: ofEndpoint},
	"enableWebhookEndpoint":  {prepare: withEndpoint, count: ofEndpoint},
	"disableWebhookEndpoint": {prepare: withEndpoint, count: ofEndpoint},
	"testWebhookEndpoint":    {except: "nothing is changed by it"},
	"resendDelivery":         {prepare: withEndpoint, count: ofEndpoint},
	"skipDelivery":           {prepare: withEndpoint, count: ofEndpoint},
	"recoverDeliveries":      {prepare: withEndpoint, count: ofEndpoint},
	"startVerification":      {except: "it only reads, and one runs at a time"},
	"storePolicy":            {except: "a text is stored once"},
	"activatePolicy":         {except: "the active version is not activated again, and If-Match keeps a late one from pushing another aside"},
	"answerStep":             {except: "its token names the one answer"},
	"takeStripeEvent":        {except: "its content is not believed"},
}

func waitingFor(hold, status string) func(*testing.T, *bundle, string) {
	return func(t *testing.T, b *bundle, name string) {
		t.Helper()
		b.waitsFor(t, hold, status, name)
	}
}

func inDoubt(t *testing.T, b *bundle, name string) {
	t.Helper()
	b.waitsFor(t, "attention", "charging", name)
	b.exec(t, `UPDATE orders SET in_doubt_since = now(), calls = 1, retries = 1 WHERE order_id = $1`, name)
}

func sold(t *testing.T, b *bundle, name string) {
	t.Helper()
	b.process(t, payload(t, theServer().operationAt("POST /api/orders/process"), name)).wantStatus(t, http.StatusOK)
}

func ofCustomer(t *testing.T, b *bundle, name string) {
	t.Helper()
	b.process(t, `{"orderId":"o","amount":"1","item":"cup","customerId":"customer `+name+`"}`).wantStatus(t, http.StatusOK)
}

func authorized(t *testing.T, b *bundle, name string) {
	t.Helper()
	sold(t, b, name)
	b.exec(t, `UPDATE charges SET capture = 'later', executor = 'simulator' WHERE order_no = (SELECT order_no FROM orders WHERE order_id = $1)`, name)
}

func inStock(t *testing.T, b *bundle, name string) {
	t.Helper()
	b.exec(t, `INSERT INTO inventory (item, on_hand, tracked) VALUES ($1, 5, true)`, name)
}

// withEndpoint makes an endpoint with a delivery that was given up.
func withEndpoint(t *testing.T, b *bundle, name string) {
	t.Helper()
	b.exec(t, `WITH made AS (
		INSERT INTO webhook_endpoints (url, description, event_no, created_by, secret) VALUES ('https://shop.example/pawl', $1, 0, 'test', 'whsec_') RETURNING endpoint_no)
		INSERT INTO webhook_deliveries (endpoint_no, delivery_no, type, event_id, subject, state, attempted_at, body)
		SELECT endpoint_no, 1, 'order.completed', 'e', 's', 'exhausted', now(), '{}' FROM made`, name)
}

// endpointCalled is the id of the endpoint with a description, whe_0 if there is none.
func (b *bundle) endpointCalled(t *testing.T, name string) string {
	t.Helper()
	return webhooks.EndpointID(int32(b.count(t, `SELECT coalesce(max(endpoint_no), 0) FROM webhook_endpoints WHERE description = $1`, name)))
}

// TestEveryRequestIsDoneOnce sends each operation twice with one key, and once more with another payload.
func TestEveryRequestIsDoneOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, op := range theServer().documented {
		if op.Method == http.MethodGet {
			continue
		}
		once, known := onceDone[op.OperationID]
		switch takesKey := slices.ContainsFunc(op.Parameters, func(p *huma.Param) bool { return p.Name == "Idempotency-Key" }); {
		case !known || takesKey == (once.except != ""):
			t.Errorf("%s: nothing says what becomes of it when it comes twice (takes a key: %v)", op.OperationID, takesKey)
		case takesKey:
			t.Run(op.OperationID, func(t *testing.T) {
				t.Parallel()
				b.doneOnce(t, op, once)
			})
		}
	}
}

func (b *bundle) doneOnce(t *testing.T, op *huma.Operation, once done) {
	t.Helper()
	name := "of " + op.OperationID
	if once.prepare != nil {
		once.prepare(t, b, name)
	}
	body := payload(t, op, name)
	target := op.Method + " " + strings.NewReplacer("{orderId}", url.PathEscape(name), "{item}", url.PathEscape(name),
		"{endpointId}", b.endpointCalled(t, name), "{delivery}", "1", "{verb}", "cancel").Replace(op.Path)
	sent := func(key, body string) answer {
		headers := []string{"Idempotency-Key", key}
		for name, value := range examples()[op.OperationID].Headers {
			headers = append(headers, name, value)
		}
		if op.OperationID == "captureOrder" || op.OperationID == "voidOrder" { // there is no provider to wait for
			headers = append(headers, "Prefer", "respond-async")
		}
		return b.call(t, target, body, headers...)
	}
	first := sent(name+" key", body)
	again := sent(`"`+name+` key"`, body)
	assert.Require(t, first.status/100 == 2 && again.status/100 == 2, first.status, first.body, "again", again.status, again.body)
	other := sent(name+" key", strings.TrimSuffix(body, "}")+`,"metadata":{"a":"b"}}`)
	if op.OperationID != "processOrder" {
		other = sent(name+" key", strings.ReplaceAll(body, "the reason", "another"))
	}
	if strings.Contains(op.Path, "/bulk/") {
		assert.True(t, strings.Contains(again.body, `"applied":1`) && strings.Contains(other.body, `"applied":0`) &&
			strings.Contains(other.body, `"code":"idempotency_key_reused"`), "again", again.body, "other payload", other.body)
	} else {
		other.wantProblem(t, http.StatusUnprocessableEntity, "idempotency_key_reused")
	}
	assert.Equal(t, b.count(t, once.count, name), 1, "it was done times")
}

// payload is the example of an operation, about an order or item of that name.
func payload(t *testing.T, operation *huma.Operation, name string) string {
	t.Helper()
	var fields map[string]any
	assert.NoError(t, json.Unmarshal(examples()[operation.OperationID].Body, &fields))
	for field, value := range map[string]any{"orderId": name, "ids": []string{name}, "customerId": "customer " + name} {
		if _, ok := fields[field]; ok {
			fields[field] = value
		}
	}
	maps.DeleteFunc(fields, func(field string, _ any) bool { return field == "requestId" })
	if _, named := fields["orderId"]; !named {
		fields["reason"] = "the reason"
	}
	text, err := json.Marshal(fields)
	assert.NoError(t, err)
	return string(text)
}

func TestIdempotencyKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ given, want string }{
		{"a", "a"}, {`"a"`, "a"}, {`"a \"b\" \\c"`, `a "b" \c`}, {`a\b`, `a\b`}, {`clé`, "clé"}, {`"clé"`, "clé"},
		{"", ""}, {`""`, ""}, {`"a`, ""}, {`a"`, ""}, {`"a"b"`, ""}, {`"a\b"`, ""}, {`"a";b`, ""}, {`"`, ""}, {"a\u200b", ""}, {`" a"`, ""}, {"\xff", ""},
		{strings.Repeat("x", 255), strings.Repeat("x", 255)}, {strings.Repeat("x", 256), ""},
	} {
		key, err := idempotencyKey(http.Header{"Idempotency-Key": {c.given}})
		assert.True(t, (key == c.want || err != nil) && (err == nil) == (c.want != ""), c.given, key, err)
	}
	assert.True(t, assert.Err(idempotencyKey(http.Header{"Idempotency-Key": {"a", "a"}})) != nil, "two are taken for one")
	key, err := idempotencyKey(http.Header{})
	assert.True(t, key == "" && err == nil, key, err)
}

// TestWhatWasRefusedHasUsedNoKey sends a request that is refused, and then a good one with its key.
func TestWhatWasRefusedHasUsedNoKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.process(t, `{"orderId":"o","amount":"x"}`, "Idempotency-Key", "k").wantProblem(t, 422, "invalid_input")
	b.process(t, ask("o"), "Idempotency-Key", `"k`).wantProblem(t, 400, "invalid_idempotency_key")
	b.process(t, ask("o"), "Idempotency-Key", "k", "Sec-Fetch-Site", "cross-site").wantProblem(t, 403, "cross_origin")
	assert.Equal(t, b.count(t, `SELECT count(*) FROM idempotency_keys`), 0, "keys")
	b.process(t, ask("p"), "Idempotency-Key", "k").wantStatus(t, 200)
	b.process(t, ask("o"), "Idempotency-Key", "k").wantProblem(t, 422, "idempotency_key_reused")
	b.get(t, "/api/orders/o").wantProblem(t, 404, "not_found")
}

// withTokens is the API over a database with tokens, by their names.
func withTokens(t *testing.T, roles map[string]access.Roles) (*bundle, map[string]string) {
	t.Helper()
	b := setupWith(t, engine.Config{}, Config{})
	tokens := map[string]string{}
	for name, roles := range roles {
		issued, err := access.Create(t.Context(), db.New(b.Pool), access.Template{Name: name, Roles: roles, Lifetime: time.Hour, Actor: "test"})
		assert.NoError(t, err)
		tokens[name] = "Bearer " + issued.Token
	}
	b.guard(t)
	return b, tokens
}

// TestWhoAsked: the history says who asked by the token, whatever the request says of itself.
func TestWhoAsked(t *testing.T) {
	t.Parallel()
	b, tokens := withTokens(t, map[string]access.Roles{
		"shop": {access.Submit, access.Operate, access.Stock}, "desk": {access.Submit, access.Operate, access.Delegate, access.Read}})
	as := func(name, request, body string, header ...string) answer {
		return b.call(t, request, body, append(header, "Authorization", tokens[name])...)
	}
	o := as("shop", "POST /api/orders/process", ask("o")).wantStatus(t, 200)
	assert.Equal(t, o.SubmittedBy, "token:shop", o)
	b.waitsFor(t, "retry", "charging", "p")
	as("shop", "POST /api/orders/p/pause", `{"actor":"cfo@shop.example","requestId":"r"}`).wantStatus(t, 202)
	as("shop", "POST /api/orders/p/resume", `{"onBehalfOf":"cfo@shop.example"}`).wantProblem(t, 403, "forbidden")
	as("shop", "PUT /api/inventory/new", `{"onHand":1,"onBehalfOf":"cfo@shop.example"}`, "If-None-Match", "*").wantProblem(t, 403, "forbidden")
	as("shop", "POST /api/inventory/new/adjustments", `{"change":1,"reason":"found","requestId":"r"}`).wantStatus(t, 200)
	as("desk", "POST /api/orders/p/resume", `{"onBehalfOf":"maria","requestId":"r"}`).wantStatus(t, 200) // another's r is not this one
	rows := as("desk", "GET /api/orders/p/transitions", "").wantStatus(t, 200).Transitions
	who := map[string]string{}
	for _, row := range rows {
		who[row.Verb] = row.Actor + " for " + row.OnBehalfOf
	}
	assert.True(t, who["pause"] == "token:shop for " && who["resume"] == "token:desk for maria" && who[""] == "system for ", who)
	assert.Equal(t, b.count(t, `SELECT count(*) FROM books.stock_movements WHERE actor = 'token:shop' AND on_behalf_of IS NULL`), 1,
		"movements")
	n := b.count(t, `SELECT count(*) FROM books.transitions WHERE order_id = 'p' AND (actor, on_behalf_of) = ('token:desk', 'maria')`)
	assert.Equal(t, n, 1, "rows for maria")
}

// TestKeysOfCallersDoNotCollide: two tokens use the same key for orders of their own.
func TestKeysOfCallersDoNotCollide(t *testing.T) {
	t.Parallel()
	b, tokens := withTokens(t, map[string]access.Roles{"one": {access.Submit}, "two": {access.Submit}})
	for name, credential := range tokens {
		for range 2 {
			b.process(t, ask("of "+name), "Idempotency-Key", "1", "Authorization", credential).wantStatus(t, 200)
		}
	}
	b.process(t, ask("third"), "Idempotency-Key", "1", "Authorization", tokens["one"]).wantProblem(t, 422, "idempotency_key_reused")
	n := b.count(t, `SELECT count(*) FROM idempotency_keys AS k JOIN orders AS o ON o.submitted_by = k.principal WHERE k.key = '1'`)
	assert.Equal(t, n, 2, "keys")
}

// Who used a key twice is told by which members the requests differ, and not what was in them.
func TestReusedKeySaysWhatDiffers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.waitsFor(t, "attention", "charging", "held", "another")
	b.process(t, `{"orderId":"sold","amount":5,"item":"s3cret"}`).wantStatus(t, 200)
	b.process(t, `{"orderId":"shelf","amount":5,"item":"shelf"}`).wantStatus(t, 200)
	for _, c := range []struct{ request, first, second, differs string }{
		{"POST /api/orders/process", `{"orderId":"new","amount":5,"item":"i","metadata":{"a":"1"}}`,
			`{"orderId":"new","amount":"5.00","item":"i","metadata":{"a":"s3cret"},"customerId":"s3cret"}`, "/metadata /customerId"},
		{"POST /api/orders/process", `{"orderId":"one","amount":5,"item":"i"}`, `{"orderId":"two","amount":6,"item":"i"}`, "/orderId /amount"},
		{"POST /api/orders/held/retry", `{"reason":"a","policy":"pinned"}`, `{"reason":"s3cret","policy":"active"}`, "/reason /policy"},
		{"POST /api/orders/sold/refunds", `{"reason":"a","amount":1}`, `{"reason":"a","amount":"2.00","restock":1}`, "/amount /restock"},
		{"POST /api/inventory/shelf/adjustments", `{"change":3,"reason":"a"}`, `{"change":4,"reason":"s3cret"}`, "/reason /change"},
	} {
		key := strings.ReplaceAll(c.differs, "/", "key")
		if a := b.call(t, c.request, c.first, "Idempotency-Key", key); a.status > 202 {
			t.Errorf("%s: %s", c.first, a.body)
		}
		a := b.call(t, c.request, c.second, "Idempotency-Key", key)
		p := a.wantProblem(t, 422, "idempotency_key_reused")
		var differ []string
		for _, e := range p.Errors {
			differ = append(differ, e.Pointer)
		}
		assert.True(t, strings.Join(differ, " ") == c.differs && !strings.Contains(a.body, "s3cret"),
			c.second, "after", c.first, a.body)
	}
	b.call(t, "POST /api/orders/another/retry", `{}`, "Idempotency-Key", "verb")
	a := b.call(t, "POST /api/orders/another/cancel", `{}`, "Idempotency-Key", "verb")
	assert.Contains(t, a.body, "used a different verb")
}

func TestMissingPreconditionsAreNamed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	withEndpoint(t, b, "precondition")
	for request, names := range map[string]string{"PUT /api/inventory/none": "If-Match If-None-Match",
		"PUT /api/webhook-endpoints/" + b.endpointCalled(t, "precondition"): "If-Match"} {
		p := b.call(t, request, `{"onHand":7,"url":"http://127.0.0.1:9/other"}`).wantProblem(t, 428, "precondition_required")
		assert.Require(t, len(p.Errors) == 1 && p.Errors[0].Header == "If-Match" && p.Errors[0].Code == "required", request, p)
		for name := range strings.FieldsSeq(names) {
			assert.Contains(t, p.Errors[0].Header+p.Errors[0].Detail, name, request, p.Errors[0])
		}
	}
}
