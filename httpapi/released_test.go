package httpapi

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
)

// released is the description of the API at the last release; make baseline stores it.
const released = "released.yaml"

// TestReleasedClientsStillWork fails on what breaks clients that were made for the last release, unless the first number of
// the version says so.
func TestReleasedClientsStillWork(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(released); errors.Is(err, fs.ErrNotExist) {
		t.Log("nothing was released yet; make baseline, when it is")
		return
	}
	was, is := describeFile(t, released), describeFile(t, "openapi.yaml")
	if major(was) != major(is) {
		t.Logf("version %s may break clients of %s", is.Info.Version, was.Info.Version)
		return
	}
	for _, broken := range breaking(was, is) {
		t.Error(broken)
	}
}

func major(d *described) string {
	number, _, _ := strings.Cut(d.Info.Version, ".")
	return number
}

const sampleAPI = `
paths:
  /orders:
    post:
      operationId: process
      security: [{token: []}]
      parameters:
        - {name: Prefer, in: header, schema: {type: string}}
        - {name: limit, in: query, explode: false, schema: {type: integer, default: 50, minimum: 1, maximum: 200}}
      requestBody: {content: {application/json: {schema: {$ref: "#/components/schemas/Body"}}}}
      responses:
        "200": {headers: {ETag: {}}, content: {application/json: {schema: {$ref: "#/components/schemas/Order"}}}}
        "409": {content: {application/problem+json: {schema: {type: object}}}}
  /health:
    get: {operationId: health, responses: {"200": {}}}
components:
  schemas:
    Amount: {oneOf: [{type: string}, {type: number}]}
    Status: {type: string, enum: [charging, done]}
    Body:
      type: object
      additionalProperties: true
      properties: {item: {type: string, maxLength: 255}, amount: {$ref: "#/components/schemas/Amount"}, step: {type: string, enum: [charge, reserve]}}
      required: [item]
    Order:
      type: object
      additionalProperties: false
      properties: {orderId: {type: string, pattern: "^o"}, note: {type: string}, status: {$ref: "#/components/schemas/Status"},
        total: {$ref: "#/components/schemas/Amount"}, tags: {type: object, additionalProperties: {type: string}},
        after: {type: array, items: {$ref: "#/components/schemas/Order"}}}
      required: [orderId, status]
`

// TestWhatBreaksClients changes the sample in one place each, and names what must be found. No finding: it is harmless.
func TestWhatBreaksClients(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ from, to, finds string }{
		"an operation goes":                   {"  /health:\n    get: {operationId: health, responses: {\"200\": {}}}\n", "", "GET /health: the operation is gone"},
		"a path is renamed":                   {"/health:", "/healthz:", "GET /health: the operation is gone"},
		"an operation is renamed":             {"operationId: health", "operationId: ready", "GET /health: its name was health"},
		"an operation needs a token":          {"{operationId: health,", "{operationId: health, security: [{token: []}],", "GET /health: who was let in with [] is so no longer"},
		"a parameter goes":                    {"        - {name: Prefer, in: header, schema: {type: string}}\n", "", "POST /orders: the parameter Prefer is gone"},
		"a parameter moves":                   {"name: Prefer, in: header", "name: Prefer, in: query", "POST /orders: the parameter Prefer is gone"},
		"a parameter becomes required":        {"name: Prefer, in: header,", "name: Prefer, in: header, required: true,", "POST /orders: the parameter Prefer is required now"},
		"a new parameter is required":         {"      requestBody", "        - {name: new, in: query, required: true}\n      requestBody", "POST /orders: the parameter new is new and required"},
		"a list is written otherwise":         {"explode: false", "explode: true", "POST /orders: lists in the parameter limit are written otherwise"},
		"a limit gets lower":                  {"maximum: 200", "maximum: 100", "POST /orders limit: its maximum was 200, and is 100"},
		"a limit is new":                      {"maximum: 200", "maximum: 200, exclusiveMinimum: 1", "POST /orders limit: its exclusiveMinimum was <nil>, and is 1"},
		"a lower limit gets higher":           {"minimum: 1", "minimum: 2", "POST /orders limit: its minimum was 1, and is 2"},
		"a default changes":                   {"default: 50", "default: 10", "POST /orders limit: its default was 50, and is 10"},
		"a body becomes required":             {"requestBody: {content", "requestBody: {required: true, content", "POST /orders: a body is required now"},
		"a body is new and required":          {"{operationId: health,", "{operationId: health, requestBody: {required: true},", "GET /health: a body is required now"},
		"a body goes":                         {"      requestBody: {content: {application/json: {schema: {$ref: \"#/components/schemas/Body\"}}}}\n", "", "POST /orders: it takes no body any more"},
		"a body has another media type":       {"requestBody: {content: {application/json", "requestBody: {content: {text/json", "POST /orders body: the media type application/json is gone"},
		"a field of a request goes":           {"item: {type: string, maxLength: 255}, ", "", "Body.item: the field is gone"},
		"a field of a request is required":    {"required: [item]", "required: [item, amount]", "Body.amount: the field is required now"},
		"a new field of a request is so":      {"required: [item]", "required: [item, new]", "Body.new: the field is new and required"},
		"a text gets shorter":                 {"maxLength: 255", "maxLength: 99", "Body.item: its maxLength was 255, and is 99"},
		"unknown fields are refused":          {"additionalProperties: true", "additionalProperties: false", "Body: fields that are not known are refused now"},
		"a value of a request goes":           {"enum: [charge, reserve]", "enum: [charge]", "Body.step: the value reserve is gone"},
		"only some values are left":           {"item: {type: string,", "item: {type: string, enum: [widget],", "Body.item: a list of its values came or went"},
		"a form of a request goes":            {"oneOf: [{type: string}, {type: number}]", "oneOf: [{type: string}]", "Amount: form 2 of it is gone"},
		"a form of an answer is new":          {"oneOf: [{type: string}, {type: number}]", "oneOf: [{type: string}, {type: number}, {type: boolean}]", "Amount: form 3 of it is new"},
		"a status goes":                       {"        \"409\": {content: {application/problem+json: {schema: {type: object}}}}\n", "", "POST /orders 409: the status is gone"},
		"a good status is new":                {"\"200\": {}", "\"200\": {}, \"202\": {}", "GET /health 202: a status that is no error is new"},
		"a header of an answer goes":          {"headers: {ETag: {}}, ", "", "POST /orders 200: the header ETag is gone"},
		"an answer has another media type":    {"application/problem+json", "application/json", "POST /orders 409: the media type application/problem+json is gone"},
		"an answer loses its schema":          {"{schema: {type: object}}", "{}", "POST /orders 409: its schema came or went"},
		"a field of an answer goes":           {"note: {type: string}, ", "", "Order.note: the field is gone"},
		"a field of an answer may be missing": {"required: [orderId, status]", "required: [orderId]", "Order.status: the field can be missing now"},
		"a field has another type":            {"note: {type: string}", "note: {type: integer}", "Order.note: its type was string, and is integer"},
		"a field can be null":                 {"note: {type: string}", "note: {type: [string, \"null\"]}", "Order.note: its type was string, and is [string null]"},
		"a field has another format":          {"note: {type: string}", "note: {type: string, format: date-time}", "Order.note: its format was \"\", and is \"date-time\""},
		"a field has another pattern":         {"pattern: \"^o\"", "pattern: \"^p\"", "Order.orderId: its pattern was \"^o\", and is \"^p\""},
		"the values of a map change":          {"additionalProperties: {type: string}", "additionalProperties: {type: integer}", "Order.tags.*: its type was string, and is integer"},
		"a list has other members":            {"items: {$ref: \"#/components/schemas/Order\"}", "items: {type: string}", "Order.after[]: it was Order, and is unnamed"},
		"a value of an answer goes":           {"enum: [charging, done]", "enum: [charging]", "Status: the value done is gone"},
		"a schema is renamed":                 {"schemas/Status\"", "schemas/State\"", "Order.status: it was Status, and is State"},

		"an operation is new":             {"  /health:", "  /livez: {get: {operationId: livez}}\n  /health:", ""},
		"a parameter is new":              {"      requestBody", "        - {name: new, in: query}\n      requestBody", ""},
		"a limit gets higher":             {"maximum: 200", "maximum: 500", ""},
		"a limit goes":                    {", maxLength: 255", "", ""},
		"a text of an answer gets longer": {"pattern: \"^o\"", "pattern: \"^o\", maxLength: 9", ""},
		"a field of a request is new":     {"step: {", "new: {type: string}, step: {", ""},
		"a field of an answer is new":     {"note: {", "new: {type: string}, note: {", ""},
		"a field need not be sent":        {"required: [item]", "required: []", ""},
		"a field is always there":         {"required: [orderId, status]", "required: [orderId, status, note]", ""},
		"a value of a request is new":     {"enum: [charge, reserve]", "enum: [charge, reserve, confirm]", ""},
		"a value of an answer is new":     {"enum: [charging, done]", "enum: [charging, done, failed]", ""},
		"an error is new":                 {"\"200\": {}", "\"200\": {}, \"500\": {}", ""},
		"a header of an answer is new":    {"{ETag: {}}", "{ETag: {}, Location: {}}", ""},
		"no token is needed":              {"security: [{token: []}]", "security: [{}, {token: []}]", ""},
		"a text for people changes":       {"operationId: process", "operationId: process\n      description: new", ""},
		"nothing":                         {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Count(sampleAPI, c.from) != 1 && c.from != "" {
				t.Fatalf("the sample has not one %s", c.from)
			}
			found := breaking(describe(t, []byte(sampleAPI)), describe(t, []byte(strings.Replace(sampleAPI, c.from, c.to, 1))))
			if strings.Join(found, "\n") != c.finds {
				t.Errorf("found %q, want %q", found, c.finds)
			}
		})
	}
}

// TestWhatBreaksClientsOfOurs looks into the real document: nothing of it may be hidden from the check.
func TestWhatBreaksClientsOfOurs(t *testing.T) {
	t.Parallel()
	was := describeFile(t, "openapi.yaml")
	if found := breaking(was, was); found != nil {
		t.Fatalf("the document breaks with itself: %q", found)
	}
	for name, c := range map[string]struct {
		change func(*described)
		finds  string
	}{
		"a field of a list": {func(d *described) { delete(d.Components.Schemas["Order"].Properties, "amount") }, "Order.amount: the field is gone"},
		"a value of a verb": {func(d *described) {
			step := d.Components.Schemas["StepResultBody"].Properties["outcome"]
			step.Enum = step.Enum[1:]
		}, "StepResultBody.outcome: the value done is gone"},
		"an operation": {func(d *described) { delete(d.Paths, "/api/orders/{orderId}/cancel") }, "POST /api/orders/{orderId}/cancel: the operation is gone"},
		"a schema":     {func(d *described) { delete(d.Components.Schemas, "Refund") }, "Refund: the schema is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := describeFile(t, "openapi.yaml")
			c.change(is)
			if found := breaking(was, is); !slices.Equal(found, []string{c.finds}) {
				t.Errorf("found %q, want %q", found, c.finds)
			}
		})
	}
}
