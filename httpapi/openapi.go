package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/danielgtaylor/huma/v2/validation"

	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/spelling"
	"pawl/internal/version"
)

const problemMedia = "application/problem+json"

const apiDescription = `Processes orders through charge, reserve and confirm, each exactly once.

- Any request can be repeated if its response was lost: nothing is done twice.
- Errors are application/problem+json (RFC 9457) with a stable code.
- Unknown fields in a body have no effect: the response lists them in ignoredFields. With Prefer: handling=strict they are rejected.
- A field whose name is one letter off the name of an important field is always rejected.
- A verb on an order waits and responds as for processing. If it does not apply, the response is 409 with the verbs that do. With the same requestId it is done once.
- Unknown, empty and repeated query parameters are always rejected. No path redirects.
- Every response has an X-Request-Id: the one of the request, or a new one.`

// Huma creates errors through a package variable. Its own ones contain values of the request; ours never do.
func init() {
	validation.MsgExpectedOneOf = mustBeOneOf + "%s" // as for bodies
	huma.NewError = func(status int, _ string, errs ...error) huma.StatusError { return humaProblem(status, errs) }
}

// newAPI makes the OpenAPI document, and the handlers of operations without a body.
func newAPI(s *server) huma.API {
	format := huma.Format{Marshal: writeJSON, Unmarshal: json.Unmarshal}
	api := humago.New(humaRoutes{s}, huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Pawl", Version: version.Number, Description: apiDescription,
				Contact: &huma.Contact{Name: "Pawl"}, License: &huma.License{Name: "Apache License 2.0", Identifier: "Apache-2.0"},
			},
			Servers:  []*huma.Server{{URL: "/", Description: "The service that served this document."}},
			Security: []map[string][]string{}, // each operation has its own; linters require this
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{tokenScheme: {Type: "http", Scheme: "bearer",
					Description: "A token from `pawl token create`. Until the first one is created, the service can be used without."}},
			},
			OnAddOperation: []huma.AddOpFunc{func(_ *huma.OpenAPI, op *huma.Operation) { s.documented = append(s.documented, op) }},
			Tags: []*huma.Tag{
				{Name: "orders", Description: "Orders and their history."},
				{Name: "customers", Description: "Erasing customers."},
				{Name: "providers", Description: "Requests from providers."},
				{Name: "inventory", Description: "Stock."},
				{Name: "events", Description: "Events, as they happen."},
				{Name: "policies", Description: "Policies: how orders are processed."},
				{Name: "webhooks", Description: "Webhook endpoints and deliveries."},
				{Name: "service", Description: "State of the service."},
			},
		},
		Formats:       map[string]huma.Format{"application/json": format, "json": format}, // the second is for types that end in +json
		DefaultFormat: "application/json",
	})
	api.UseMiddleware(func(ctx huma.Context, next func(huma.Context)) {
		r, w := humago.Unwrap(ctx)
		next(huma.WithValue(ctx, exchangeKey{}, exchange{w, r}))
	})
	return api
}

type exchangeKey struct{}

// exchange is a request and the writer of its answer.
type exchange struct {
	w http.ResponseWriter
	r *http.Request
}

// writerOf is the writer of the answer.
func writerOf(ctx context.Context) http.ResponseWriter {
	at, _ := ctx.Value(exchangeKey{}).(exchange)
	return at.w
}

// httpRequestOf is the original request.
func httpRequestOf(ctx context.Context) *http.Request {
	at, _ := ctx.Value(exchangeKey{}).(exchange)
	return at.r
}

// writeJSON writes a value in one piece. A caller that has disconnected is not an error: huma would panic.
func writeJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	_, _ = w.Write(bytes.TrimSuffix(b.Bytes(), []byte{'\n'}))
	return nil
}

// answerJSON answers a request with 200 and a value.
func answerJSON(w http.ResponseWriter, v any) error {
	w.Header()["Content-Type"] = jsonType
	return writeJSON(w, v)
}

// humaProblem turns huma's errors of parameters into a problem. Its messages contain no values; its details do, and
// are left out.
func humaProblem(status int, errs []error) *problem {
	if status >= http.StatusInternalServerError {
		return newProblem("internal", "")
	}
	p := newProblem("invalid_parameter", "")
	for _, err := range errs {
		if detail, ok := err.(huma.ErrorDetailer); ok {
			p.Errors = append(p.Errors, parameterFault(detail.ErrorDetail()))
		}
	}
	return p
}

func parameterFault(d *huma.ErrorDetail) fieldError {
	fault := fieldError{Code: "invalid", Detail: d.Message}
	if number, ok := d.Value.(int64); ok { // out of range; a text that is not a number is a string here
		fault.Detail += ", not " + decimalText(number)
	}
	if words, ok := strings.CutPrefix(d.Message, mustBeOneOf); ok {
		given, _ := d.Value.(string)
		fault.Detail += spelling.Suggestion(given, strings.Split(words, ", "))
	}
	place, name, _ := strings.Cut(d.Location, ".")
	if place == "header" {
		fault.Header = name
		return fault
	}
	fault.Parameter, _, _ = strings.Cut(name, "[") // without the index of a list entry
	return fault
}

// mustBeOneOf begins the detail of a word that is none of the known ones, which follow it.
const mustBeOneOf = "must be one of "

// accepted documents the 202 with an order that is not final. Only the 202 has the headers Location and Retry-After.
func accepted(op *huma.Operation) {
	final := op.Responses["200"]
	final.Description = "The order is final: completed, failed or canceled."
	op.Responses["202"] = &huma.Response{
		Description: "The order is not final; it continues without the caller.",
		Headers:     maps.Clone(final.Headers), Content: map[string]*huma.MediaType{jsonMedia: {Schema: final.Content[jsonMedia].Schema}},
	}
	delete(final.Headers, "Location")
	delete(final.Headers, "Retry-After")
}

// streams documents that an operation also takes many orders, one on each line of the body.
func streams(op *huma.Operation, schemas huma.Registry) {
	op.RequestBody.Description = "An order; or as " + ndjson + " an order on each line."
	op.RequestBody.Content[ndjson] = &huma.MediaType{Schema: op.RequestBody.Content[jsonMedia].Schema}
	op.Responses["200"].Description = "The order is final: completed, failed or canceled. To " + ndjson + ": a line for each order."
	op.Responses["200"].Content[ndjson] = &huma.MediaType{Schema: schemas.Schema(reflect.TypeFor[processedLine](), true, "")}
}

// failing adds the problems of an operation.
func failing(op huma.Operation, codes ...problemCode) huma.Operation {
	secure(&op)
	codes = append(accessProblems(op.OperationID), codes...)
	codes = append(codes, edgeProblems(&op, codes)...)
	op.Metadata = map[string]any{"problems": codes}
	for _, code := range codes {
		if status := kindOf(code).Status; !slices.Contains(op.Errors, status) {
			op.Errors = append(op.Errors, status)
		}
	}
	op.Errors = slices.Clip(op.Errors) // huma appends to it for every handler
	return op
}

// withBody is failing for an operation that reads a body.
func withBody(op huma.Operation, codes ...problemCode) huma.Operation {
	return failing(op, append([]problemCode{
		"cross_origin", "malformed_json", "request_timeout", "body_too_large", "unsupported_media_type", "invalid_input", "invalid_parameter",
	}, codes...)...)
}

func problemsOf(op *huma.Operation) []problemCode {
	codes, _ := op.Metadata["problems"].([]problemCode)
	return codes
}

// explain lists the problems with each status of an operation: huma only knows the status.
func explain(op *huma.Operation) {
	named := map[int][]string{}
	for _, code := range problemsOf(op) {
		k := kindOf(code)
		named[k.Status] = append(named[k.Status], string(code))
		response := op.Responses[strconv.Itoa(k.Status)]
		response.Description = "Problem: " + strings.Join(named[k.Status], ", ") + "."
		if k.retryAfter != "" {
			response.Headers = map[string]*huma.Param{"Retry-After": {Schema: &huma.Schema{
				Type: huma.TypeString, Description: "Seconds to wait before retrying.",
			}}}
		}
		if k.Status == http.StatusTooManyRequests {
			response.Headers["RateLimit-Policy"] = &huma.Param{Schema: &huma.Schema{Type: huma.TypeString, Description: "The limits of the token."}}
			response.Headers["RateLimit"] = &huma.Param{Schema: &huma.Schema{Type: huma.TypeString, Description: "What is left of the limits."}}
		}
	}
	if named[http.StatusUnprocessableEntity] == nil {
		delete(op.Responses, "422") // huma adds it to operations with a parameter or a body
	}
}

// addExample adds what was sent and answered.
func addExample(op *huma.Operation) {
	e := examples()[op.OperationID]
	if e.Body != nil {
		op.RequestBody.Content[jsonMedia].Example = e.Body
	}
	if e.Answer != nil {
		op.Responses[strconv.Itoa(e.Status)].Content[jsonMedia].Example = e.Answer
	}
}

// ignoreUnknown documents that unknown fields of a body have no effect.
func ignoreUnknown(components *huma.Components, op *huma.Operation) {
	if op.RequestBody == nil {
		return
	}
	if body := components.Schemas.SchemaFromRef(op.RequestBody.Content[jsonMedia].Schema.Ref); body != nil {
		body.AdditionalProperties = true
		op.RequestBody.Required = len(body.Required) > 0
	}
}

// publish serves the OpenAPI document and the page made from it. It must run last, when the document is complete.
// Both are rendered on the first request, because that takes longer than the rest of a start.
func (s *server) publish() {
	document := s.api.OpenAPI()
	accepted(document.Paths[processOperation.Path].Post)
	for _, verb := range orders.Verbs {
		accepted(document.Paths[verbPath(verb)].Post)
	}
	streams(document.Paths[processOperation.Path].Post, document.Components.Schemas)
	for _, op := range []huma.Operation{refundOperation, captureOperation, voidOperation} {
		responses, name := document.Paths[op.Path].Post.Responses, strings.TrimSuffix(op.OperationID, "Order")
		responses["200"].Description = "The " + name + " has succeeded or failed."
		responses["202"].Description = "The " + name + " is open; Pawl continues it."
	}
	for _, op := range s.documented {
		explain(op)
		addExample(op)
		ignoreUnknown(document.Components, op)
		for _, parameter := range op.Parameters {
			parameter.Schema.Description = ""        // the parameter has one
			parameter.Schema.PatternDescription = "" // not part of any specification; huma has used it in its messages
		}
	}
	document.Paths[bulkOperation.Path].Post.RequestBody.Required = true // ids or a filter
	for pattern := range csvTables {
		table := &huma.Schema{Type: huma.TypeString, Description: "A table with a line of names. The header Link has the next page."}
		document.Paths[strings.TrimPrefix(pattern, "GET ")].Get.Responses["200"].Content[csvMedia] = &huma.MediaType{Schema: table}
	}
	document.Paths[getOrderOperation.Path].Get.Responses["304"] = &huma.Response{
		Description: "The order has not changed since the ETag in If-None-Match."}
	document.Paths[listEventsOperation.Path].Get.Responses["200"].Content[eventStream] = &huma.MediaType{Schema: &huma.Schema{
		Type: huma.TypeString, Description: "An endless stream of server-sent events. The data of each is an event, as in the JSON response.",
	}}
	s.shareProblems(document)
	s.document = sync.OnceValue(func() []byte { return rendered(document.YAML()) })
	asJSON := sync.OnceValue(func() []byte { return rendered(json.Marshal(document)) })
	s.handle("GET /openapi.yaml", fixed("application/openapi+yaml", s.document)) // generators of clients
	s.handle("GET /openapi.json", fixed("application/openapi+json", asJSON))
	s.docs = sync.OnceValue(s.docsPages)
	s.handle("GET /docs", s.page(s.docsPage)) // people
	s.handle("GET /docs/{page}", s.page(s.docsPage))
}

// shareProblems moves the problems of the operations, with their examples, to the components: most operations have the
// same ones. The operations that huma has keep theirs, for the page /docs.
func (s *server) shareProblems(document *huma.OpenAPI) {
	document.Components.Examples = map[string]*huma.Example{}
	document.Components.Responses = map[string]*huma.Response{}
	for _, op := range s.documented {
		shared := *op
		shared.Responses = maps.Clone(op.Responses)
		named := map[int][]problemCode{}
		for _, code := range problemsOf(op) {
			named[kindOf(code).Status] = append(named[kindOf(code).Status], code)
		}
		for status, codes := range named {
			name := problemsName(status, codes)
			response := op.Responses[strconv.Itoa(status)]
			document.Components.Responses[name] = response
			response.Content[problemMedia].Examples = map[string]*huma.Example{}
			for _, code := range codes {
				document.Components.Examples[string(code)] = &huma.Example{Value: sampleProblem(code)}
				response.Content[problemMedia].Examples[string(code)] = &huma.Example{Ref: "#/components/examples/" + string(code)}
			}
			shared.Responses[strconv.Itoa(status)] = &huma.Response{Ref: "#/components/responses/" + name}
		}
		document.Paths[op.Path] = withOperation(document.Paths[op.Path], &shared)
	}
}

// problemsName names a response with this status and these problems: by the problems or, if there are many, by the
// status.
func problemsName(status int, codes []problemCode) string {
	if len(codes) > 4 {
		return fmt.Sprintf("%s-%d", strings.ReplaceAll(http.StatusText(status), " ", "-"), len(codes))
	}
	names := make([]string, len(codes))
	for i, code := range codes {
		names[i] = string(code)
	}
	slices.Sort(names)
	return strings.Join(names, "-")
}

func withOperation(item *huma.PathItem, op *huma.Operation) *huma.PathItem {
	switch op.Method {
	case http.MethodGet:
		item.Get = op
	case http.MethodPost:
		item.Post = op
	case http.MethodPut:
		item.Put = op
	case http.MethodDelete:
		item.Delete = op
	}
	return item
}

// rendered is the text of a document that is the same for all requests.
func rendered(text []byte, err error) []byte {
	if err != nil {
		panic("httpapi: OpenAPI document: " + err.Error())
	}
	return text
}

// fixed always answers with the same bytes.
func fixed(contentType string, body func() []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "no-cache")
		w.Write(body()) //nolint:errcheck // the caller has gone
	}
}

// Schemas of the types that JSON Schema can't be derived from.

// named adds a schema to the components, so that generated clients have a type for it, and returns the reference.
func named(r huma.Registry, name string, s *huma.Schema) *huma.Schema {
	if _, known := r.Map()[name]; !known {
		r.Map()[name] = s
	}
	return &huma.Schema{Ref: "#/components/schemas/" + name}
}

// Schema lists the states of the machine.
func (state) Schema(r huma.Registry) *huma.Schema {
	s := &huma.Schema{
		Type:        huma.TypeString,
		Description: "The status of the order. completed, failed and canceled are final.",
	}
	for _, known := range fsm.States() {
		s.Enum = append(s.Enum, string(known))
	}
	s.PrecomputeMessages()
	return named(r, "Status", s)
}

// Schema lists the codes of the table of problems.
func (problemCode) Schema(r huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString, Description: "A stable code, for programs."}
	for i := range kinds {
		s.Enum = append(s.Enum, string(kinds[i].Code))
	}
	return named(r, "ProblemCode", s)
}

// Schema implements huma.SchemaProvider.
func (amount) Schema(r huma.Registry) *huma.Schema {
	return named(r, "Decimal", &huma.Schema{
		Type: huma.TypeString, Pattern: `^(0|[1-9][0-9]*)(\.[0-9]+)?$`,
		Description: "A decimal number as a string, so that it is not rounded.",
	})
}

// Schema implements huma.SchemaProvider.
func (waitTime) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString, Pattern: `^([1-5]?[0-9]|60)s?$`, PatternDescription: "0 to 60 seconds"}
	s.PrecomputeMessages()
	return s
}

// Schema implements huma.SchemaProvider.
func (stringMap) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: &huma.Schema{Type: huma.TypeString}}
}

// Schema implements huma.SchemaProvider.
func (object) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
}

const (
	amountPattern    = `^[0-9]{1,15}(\.[0-9]{1,4})?$`
	anAmount         = "a decimal with up to 15 digits before the decimal point and 4 after it"
	amountBoundLimit = 20
)

// Schema implements huma.SchemaProvider.
func (amountBound) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString, Pattern: amountPattern, MinLength: new(1), MaxLength: new(amountBoundLimit)}
	s.PrecomputeMessages()
	return s
}
