package httpapi

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/danielgtaylor/huma/v2"
)

// Every operation shows what is sent, what is answered and what can go wrong; and the schemas allow it.
func TestEveryOperationHasExamples(t *testing.T) {
	t.Parallel()
	docs := html.UnescapeString(withoutEngine().get(t, "/docs").body)
	s := theServer()
	for _, op := range s.documented {
		at := []string{"paths", op.Path, strings.ToLower(op.Method)}
		body := s.sampleBody(op)
		if body != "" {
			theContract().validate(t, append(at, "requestBody", "content", jsonMedia, "schema"), body)
		}
		if !strings.Contains(docs, strings.ReplaceAll(s.sampleRequest(op), docsOrigin, "http://localhost")) {
			t.Errorf("%s: /docs shows no example of a request", op.OperationID)
		}
		for status, sample := range s.sampleAnswers(op) {
			theContract().validate(t, append(at, "responses", status, "content", jsonMedia, "schema"), sample)
			if body += sample; !strings.Contains(docs, sample) {
				t.Errorf("%s: /docs shows no example of %s", op.OperationID, status)
			}
		}
		if strings.Contains(body, "…") {
			t.Errorf("%s: a text without an example: %s", op.OperationID, body)
		}
	}
	for code, example := range dig(theContract().document, "components", "examples") {
		text, _ := json.Marshal(dig(example)["value"])
		if got := theContract().validate(t, []string{"components", "schemas", "Problem"}, string(text)); got["code"] != code {
			t.Errorf("the example of %s: %s", code, text)
		}
	}
}

// The commands of the page are what people copy.
func TestExamplesAreUnderstood(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := theServer()
	b.call(t, "PUT /api/inventory/widget", `{"onHand":12}`, "If-None-Match", "*").wantStatus(t, http.StatusOK)
	b.process(t, s.sampleBody(s.operationAt("POST /api/orders/process"))).wantStatus(t, http.StatusOK)
	b.exec(t, `INSERT INTO policies (source, hash, created_by) VALUES ('completeWithin: 48h', sha256('completeWithin: 48h'), 'test')`)
	withEndpoint(t, b, "shop")
	b.exec(t, `UPDATE webhook_deliveries SET delivery_no = 1042`)
	for _, op := range s.documented {
		_, command, _ := strings.Cut(s.sampleRequest(op), docsOrigin)
		target, _, _ := strings.Cut(command, "'")
		a := b.call(t, op.Method+" "+target, s.sampleBody(op), sampleHeaders(op)...)
		unknown := op.OperationID == "answerStep" || op.OperationID == "takeStripeEvent" // a token and a signature can't be made up
		if a.status/100 != 2 && a.status != http.StatusConflict && a.status != http.StatusPreconditionFailed && !unknown {
			t.Errorf("%s %s: %d %s", op.Method, target, a.status, a.body)
		}
	}
}

// sampleHeaders are those of an example, as call takes them.
func sampleHeaders(op *huma.Operation) (headers []string) {
	for _, p := range op.Parameters {
		if p.In == "header" && len(p.Schema.Examples) > 0 {
			headers = append(headers, p.Name, fmt.Sprint(p.Schema.Examples[0]))
		}
	}
	return headers
}

// theServer is for tests that only look at its operations.
var theServer = sync.OnceValue(func() *server { return newServer(nil, Config{}) })

// The page is read at any port, and behind a proxy.
func TestTheDocsKnowWhereTheyAre(t *testing.T) {
	t.Parallel()
	for want, proto := range map[string]string{"http://shop.example:4567/api/orders/process": "", "https://shop.example:4567/api/orders/process": "https"} {
		r := httptest.NewRequest(http.MethodGet, "/docs", nil)
		r.Host = "shop.example:4567"
		r.Header.Set("X-Forwarded-Proto", proto)
		if a := send(t, withoutEngine().api, r); !strings.Contains(a.body, want) || strings.Contains(a.body, docsOrigin) {
			t.Errorf("/docs does not mention %s", want)
		}
	}
}
