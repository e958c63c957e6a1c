package httpapi

import (
	"encoding/json"
	"html"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Every operation shows what is sent, what is answered and what can go wrong, in the document and on its page; and the
// schemas allow it.
func TestEveryOperationHasExamples(t *testing.T) {
	t.Parallel()
	docs := html.UnescapeString(withoutEngine().get(t, "/docs").body)
	for path, item := range dig(theContract().document, "paths") {
		for method, operation := range dig(item) {
			id, _ := dig(operation)["operationId"].(string)
			at := []string{"paths", path, method}
			request := dig(operation, "requestBody", "content", jsonMedia)
			if request != nil {
				theContract().checkExample(t, append(at, "requestBody"), request["example"])
			}
			for status, response := range dig(operation, "responses") {
				if answer := dig(response, "content", jsonMedia); answer != nil {
					theContract().checkExample(t, append(at, "responses", status), answer["example"])
				}
				if problems := dig(response, "content", problemMedia); problems != nil && len(dig(problems, "examples")) == 0 {
					t.Errorf("%s: no example of a %s", id, status)
				}
			}
			shown := examples[id]
			if !strings.Contains(docs, sampleJSON(shown.Answer)) || !strings.Contains(docs, sampleProblem(shown.Problem)) ||
				shown.Accepted != nil && !strings.Contains(docs, sampleJSON(shown.Accepted)) || !strings.Contains(docs, shown.Body) || !strings.Contains(docs, shown.Header) {
				t.Errorf("%s: /docs shows no example of it", id)
			}
			if listed, _ := json.Marshal(dig(operation, "responses")); !strings.Contains(string(listed), `"#/components/examples/`+string(shown.Problem)+`"`) {
				t.Errorf("%s can't fail with %s", id, shown.Problem)
			}
		}
	}
	for code, example := range dig(theContract().document, "components", "examples") {
		text, _ := json.Marshal(dig(example)["value"])
		if got := theContract().validate(t, []string{"components", "schemas", "Problem"}, string(text)); got["code"] != code {
			t.Errorf("the example of %s: %s", code, text)
		}
	}
}

// checkExample holds an example to the schema beside it.
func (c *contract) checkExample(t *testing.T, at []string, example any) {
	t.Helper()
	if example == nil {
		t.Errorf("%q: no example", at)
		return
	}
	text, err := json.Marshal(example)
	if err != nil {
		t.Fatal(err)
	}
	c.validate(t, append(at, "content", jsonMedia, "schema"), string(text))
}

// The commands of the page are what people copy.
func TestExamplesAreUnderstood(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.call(t, "PUT /api/inventory/widget", examples["setInventory"].Body, examples["setInventory"].header()...).wantStatus(t, http.StatusOK)
	b.process(t, examples["processOrder"].Body).wantStatus(t, http.StatusOK)
	b.exec(t, `INSERT INTO policies (source, hash, created_by) VALUES ('completeWithin: 48h', sha256('completeWithin: 48h'), 'test')`)
	b.exec(t, `INSERT INTO webhook_deliveries (endpoint_no, delivery_no, type, event_id, subject, state, body) VALUES (1, 1042, 'order.completed', 'e', 's', 'exhausted', '{}')`)
	s, ok := b.api.(*server)
	if !ok {
		t.Fatal("not a server")
	}
	for _, op := range s.documented {
		_, command, _ := strings.Cut(sampleRequest(op), docsOrigin)
		target, _, _ := strings.Cut(command, "'")
		shown := examples[op.OperationID]
		a := b.call(t, op.Method+" "+target, shown.Body, shown.header()...)
		unknown := op.OperationID == "answerStep" || op.OperationID == "takeStripeEvent" // a token and a signature can't be made up
		if a.status/100 != 2 && a.status != http.StatusConflict && !unknown {
			t.Errorf("%s %s: %d %s", op.Method, target, a.status, a.body)
		}
	}
}

// header is the header of the example, as call takes it.
func (e example) header() []string {
	name, value, given := strings.Cut(e.Header, ": ")
	if !given {
		return nil
	}
	return []string{name, value}
}

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
