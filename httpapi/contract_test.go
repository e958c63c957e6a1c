package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// contract is the served OpenAPI document, and what its schemas accept. Every answer that a test of this package gets is
// held to it: the status is documented for the operation, the headers are, the body is valid, and the code of a problem
// is one the operation lists.
type contract struct {
	mu       sync.Mutex
	document map[string]any
	compiler *jsonschema.Compiler
}

var theContract = sync.OnceValue(func() *contract {
	w := httptest.NewRecorder()
	New(nil, Config{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	document, err := jsonschema.UnmarshalJSON(w.Body)
	if err != nil {
		panic(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("openapi.json", document); err != nil {
		panic(err)
	}
	return &contract{document: dig(document), compiler: compiler}
})

// unlisted are the routes that are not part of the API, and what they answer with.
var unlisted = map[string]string{
	"":                     "application/problem+json",
	"/":                    "application/problem+json",
	"GET /console":         "text/html; charset=utf-8",
	"GET /console/":        "",
	"POST /console/":       "text/html; charset=utf-8",
	"GET /{$}":             "text/html; charset=utf-8",
	"GET /problems/{code}": "text/html; charset=utf-8",
	"GET /docs":            "text/html; charset=utf-8",
	"GET /docs/{page}":     "text/html; charset=utf-8",
	"GET /login":           "text/html; charset=utf-8",
	"GET /login/{link}":    "text/html; charset=utf-8",
	"POST /login/{link}":   "text/html; charset=utf-8",
	"POST /logout":         "text/html; charset=utf-8",
	"GET /openapi.yaml":    "application/openapi+yaml",
	"GET /openapi.json":    "application/openapi+json",
	"GET /metrics":         "",
	"POST /test":           "application/problem+json",
}

// checkAnswer holds an answer to the document.
func checkAnswer(t testing.TB, pattern string, a answer) {
	t.Helper()
	assert.True(t, a.header.Get("X-Request-Id") != "" && a.header.Get("X-Content-Type-Options") == "nosniff",
		pattern, "headers", a.header)
	assert.True(t, a.status < 300 || a.status == http.StatusNotModified || a.status >= 400 || pattern == "GET /{$}",
		pattern, "redirects with", a.status)
	if want, ok := unlisted[pattern]; ok {
		checkUnlisted(t, pattern, want, a)
		return
	}
	method, path, _ := strings.Cut(documentedAs(pattern), " ")
	at := []string{"paths", path, strings.ToLower(method), "responses", strconv.Itoa(a.status)}
	response := dig(theContract().document, at...)
	if ref, shared := response["$ref"].(string); shared {
		at = strings.Split(strings.TrimPrefix(ref, "#/"), "/")
		response = dig(theContract().document, at...)
	}
	if response == nil {
		t.Errorf("%s: status %d is not documented: %s", pattern, a.status, a.body)
		return
	}
	checkHeaders(t, pattern, response, a.header)
	if response["content"] == nil {
		assert.Equal(t, a.body, "", pattern, a.status, "has a body")
		return
	}
	media := a.header.Get("Content-Type")
	if dig(response, "content", media) == nil {
		t.Errorf("%s: %d is answered as %q", pattern, a.status, media)
		return
	}
	if at = append(at, "content", media, "schema"); media == csvMedia {
		return
	}
	if media == ndjson {
		for line := range strings.Lines(a.body) {
			theContract().validate(t, at, line)
		}
		return
	}
	body := theContract().validate(t, at, a.body)
	description, _ := response["description"].(string)
	code, is := body["code"].(string)
	assert.True(t, !is || strings.Contains(description, code), pattern, a.status, "with code", code, "documented is", description)
}

func checkUnlisted(t testing.TB, pattern, want string, a answer) {
	t.Helper()
	forPeople := strings.HasPrefix(a.header.Get("Content-Type"), "text/html")
	if a.status >= 400 && !forPeople {
		want = "application/problem+json"
		theContract().validate(t, []string{"components", "schemas", "Problem"}, a.body)
	}
	got := a.header.Get("Content-Type")
	assert.True(t, want == "" || got == want, pattern, a.status, "is answered as", got)
}

// checkHeaders finds headers with a meaning that are not documented.
func checkHeaders(t testing.TB, pattern string, response map[string]any, header http.Header) {
	t.Helper()
	documented := dig(response, "headers")
	for _, name := range []string{"ETag", "Location", "Retry-After", "Preference-Applied", "Cache-Control"} {
		if header.Get(name) != "" && documented[name] == nil && header.Get("Content-Type") != "" {
			if name == "ETag" || name == "Cache-Control" { // of a 304
				continue
			}
			t.Errorf("%s: header %s is not documented", pattern, name)
		}
	}
}

func (c *contract) validate(t testing.TB, at []string, body string) map[string]any {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
	if err != nil {
		t.Errorf("%s: %v", body, err)
		return nil
	}
	pointer := "openapi.json#"
	for _, name := range at {
		pointer += "/" + strings.ReplaceAll(pointerEscape.Replace(name), "{", "%7B")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	schema, err := c.compiler.Compile(pointer)
	assert.NoError(t, err, pointer)
	err = schema.Validate(value)
	assert.True(t, err == nil, body, err)
	return dig(value)
}

// dig follows names through nested objects; nil when there is nothing.
func dig(value any, names ...string) map[string]any {
	for _, name := range names {
		object, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = object[name]
	}
	object, _ := value.(map[string]any)
	return object
}

var pathParameter = regexp.MustCompile(`\{(\w+)\}`)

// An embedded type that is not exported is passed over by huma, and its parameters with it. Generated clients can't send
// what is not documented.
func TestTheDocumentHasEveryParameter(t *testing.T) {
	t.Parallel()
	for path, item := range dig(theContract().document, "paths") {
		for method, operation := range dig(item) {
			parameters := fmt.Sprint(dig(operation)["parameters"])
			var wanted []string
			for _, match := range pathParameter.FindAllStringSubmatch(path, -1) {
				wanted = append(wanted, match[1])
			}
			if slices.ContainsFunc(orders.Verbs, func(v orders.Verb) bool { return path == verbPath(v) }) {
				wanted = append(wanted, "dryRun", "If-Match", "Prefer", "Idempotency-Key")
			}
			for _, name := range wanted {
				assert.Contains(t, parameters, "name:"+name+" ", method, path, name)
			}
		}
	}
}

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	handler := New(nil, Config{})
	served := httptest.NewRecorder()
	handler.ServeHTTP(served, httptest.NewRequest(http.MethodGet, "/openapi.yaml", nil))
	golden, err := os.ReadFile("openapi.yaml")
	assert.NoError(t, err)
	assert.True(t, bytes.Equal(golden, served.Body.Bytes()),
		"openapi.yaml is not what the types say; run go generate and review the difference")
}

// The document lists words that only the database knows: what an order can wait for, and the like.
func TestWordsAreThoseOfTheDatabase(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	order := dig(theContract().document, "components", "schemas", "Order", "properties")
	failure := dig(theContract().document, "components", "schemas", "Failure", "properties")
	for domain, documented := range map[string]any{
		"order_hold": order["hold"], "order_stop": order["stopRequested"], "order_step": failure["step"],
	} {
		var check string
		assert.NoError(t, database.Pool.QueryRow(t.Context(),
			`SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = $1`, domain).Scan(&check))
		var stored, shown []string
		for _, word := range regexp.MustCompile(`'(.*?)'`).FindAllStringSubmatch(check, -1) {
			stored = append(stored, word[1])
		}
		words, _ := dig(documented)["enum"].([]any)
		for _, word := range words {
			shown = append(shown, fmt.Sprint(word))
		}
		assert.Equal(t, stored, shown, domain, "can be documented is")
	}
}

// theServer is for tests that only look at its operations.
var theServer = sync.OnceValue(func() *server { return newServer(nil, Config{}) })

// The page is read at any port, and behind a proxy.
func TestTheDocsKnowWhereTheyAre(t *testing.T) {
	t.Parallel()
	for want, proto := range map[string]string{"http://shop.example:4567/api/orders/process": "",
		"https://shop.example:4567/api/orders/process": "https"} {
		r := httptest.NewRequest(http.MethodGet, "/docs", nil)
		r.Host = "shop.example:4567"
		r.Header.Set("X-Forwarded-Proto", proto)
		a := send(t, withoutEngine().api, r)
		assert.True(t, strings.Contains(a.body, want) && !strings.Contains(a.body, docsOrigin), "/docs does not mention", want)
	}
}

func TestVerification(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	b := setup(t)
	got := b.verified(t, b.get(t, "/api/verification"))
	assert.True(t, got.State == "none" && got.Report == nil, "before the first one", got)
	b.process(t, `{"orderId":"v-1","amount":"9.99","item":"lamp"}`).wantStatus(t, http.StatusOK)
	started := b.call(t, "POST /api/verification", "")
	started.wantStatus(t, http.StatusAccepted)
	assert.Equal(t, b.verified(t, started).StartedBy, "local", "started", started.body)
	right := b.proved(t)
	assert.True(t, right.Report.Right && right.Report.Orders["completed"] == 1 && right.Report.Money[0].Kept == "9.99" &&
		right.Done == 2 && right.Total == 2, "report", right)

	b.exec(t, `SET session_replication_role = replica; UPDATE inventory SET reserved = 7 WHERE item = 'lamp'; RESET session_replication_role`)
	b.call(t, "POST /api/verification", "").wantStatus(t, http.StatusAccepted)
	wrong := b.proved(t)
	for _, check := range wrong.Report.Checks {
		assert.True(t, (check.Name != "stock" || check.About == "items" && len(check.Offenders) == 1 &&
			check.Offenders[0].ID == "lamp") && (check.Name == "stock" || check.Violations <= 0), "check", check)
	}
	assert.True(t, !wrong.Report.Right, "the books are called right")
	var all verificationPage
	assert.NoError(t, json.Unmarshal([]byte(b.get(t, "/api/verifications").body), &all))
	if v := all.Verifications; len(v) != 2 || v[0].State != "done" || strings.Join(v[0].Wrong, " ") != "stock" || len(v[1].Wrong) > 0 || v[0].FinishedAt == nil {
		t.Errorf("stored: %+v", all)
	}
	assert.Equal(t, b.get(t, fmt.Sprintf("/api/verifications?before=%d", all.Verifications[1].Number)).body, `{"verifications":[]}`)
	first := fmt.Sprintf("/api/verifications/%d", all.Verifications[1].Number)
	assert.Equal(t, b.get(t, first).status, http.StatusOK)
	assert.Equal(t, b.get(t, first+"?format=csv").body, "day,currency,orders,charges,chargedOrAuthorized,refundedOrUndone,authorized,voided,kept,underWay,disputed,lost,forgotten\r\n"+
		time.Now().UTC().Format(time.DateOnly)+",USD,1,1,9.99,0.00,0.00,0.00,9.99,0.00,0.00,0.00,0\r\n")
	b.get(t, "/api/verifications/77").wantProblem(t, http.StatusNotFound, "not_found")
	b.books.Stop()
	b.call(t, "POST /api/verification", "").wantProblem(t, http.StatusServiceUnavailable, "stopping")
}

func (b *bundle) verified(t *testing.T, a answer) (out verification) {
	t.Helper()
	assert.NoError(t, json.Unmarshal([]byte(a.body), &out), a.body)
	return out
}

// proved waits for the end of the verification that is running.
func (b *bundle) proved(t *testing.T) (out verification) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
		if out = b.verified(t, b.get(t, "/api/verification")); out.State == "done" {
			return out
		}
		assert.True(t, !time.Now().After(deadline), "no end", out)
	}
}

// TestOverviewOnTheWire: what the engine's tests have looked at comes to the caller.
func TestOverviewOnTheWire(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.held(t, "held", nil)
	b.process(t, `{"orderId":"done","amount":1,"item":"widget"}`).wantStatus(t, http.StatusOK)
	for target, wants := range map[string][]string{
		"/api/overview": {`{"status":"completed","orders":1,"more":false}`, `"hold":"attention","orders":`,
			`"oldest":{"orderId":"held"`, `"replicas":[`, `"providerSteps":[]`},
		"/api/error-groups": {`"groups":[`, `"more":false`},
	} {
		a := b.get(t, target)
		a.wantStatus(t, http.StatusOK)
		for _, want := range wants {
			assert.Contains(t, a.body, want, target)
		}
	}
}
