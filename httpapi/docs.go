package httpapi

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/orders"
	"pawl/internal/policy"
)

//go:embed docs.html
var docsHTML string

//go:embed docs.js
var docsScript string

var docsTemplate = template.Must(template.New("docs").Funcs(template.FuncMap{
	"split": strings.Split, "trim": strings.TrimSuffix, "base": path.Base,
	"members": membersOf, "limits": limitsOf, "script": func() template.JS { return template.JS(docsScript) },
}).Parse(docsHTML + loginHTML))

// The pages load nothing, so they can be read anywhere. Their only script is docs.js, and they work without it.
var pagePolicy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + hashOf(docsScript) +
	"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func hashOf(script string) string {
	sum := sha256.Sum256([]byte(script))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func writePage(w http.ResponseWriter, body []byte) {
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", pagePolicy)
	header.Set("Referrer-Policy", "no-referrer")
	w.Write(body) //nolint:errcheck // the caller has gone
}

// docsOrigin is replaced in the page by the origin of the service, which depends on the request.
const docsOrigin = "http://localhost:3000"

// originOf is the URL of the service, as a browser reached it.
func originOf(r *http.Request) string {
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// problemPage explains one problem code. The type of a problem links to it.
func (s *server) problemPage(w http.ResponseWriter, r *http.Request) error {
	at := slices.IndexFunc(kinds, func(k kind) bool { return string(k.Code) == r.PathValue("code") })
	if at < 0 {
		return newProblem("unknown_route", "")
	}
	var sample bytes.Buffer
	if err := writeJSON(&sample, sampleProblem(kinds[at].Code)); err != nil {
		return err
	}
	writePage(w, render("problem", struct {
		kind
		Sample string
	}{kinds[at], indented(sample.String())}))
	return nil
}

// docsPage shows the OpenAPI document: how to begin, the operations of a tag, all problems, or all types. Its commands
// use the address of the request.
func (s *server) docsPage(w http.ResponseWriter, r *http.Request) error {
	page, ok := s.docs()[r.PathValue("page")]
	if !ok {
		return newProblem("unknown_route", "")
	}
	writePage(w, bytes.ReplaceAll(page, []byte(docsOrigin), []byte(template.HTMLEscapeString(originOf(r)))))
	return nil
}

// shown is an operation in the documentation. Its answers come first, then its own problems, and then those of most
// operations.
type shown struct {
	*huma.Operation
	Sample      string
	Samples     map[string]string
	Own, Common []kind // problems
}

// ofEdge are the statuses that have nothing to do with what an operation does.
var ofEdge = []int{400, 401, 403, 408, 413, 415, 421, 429}

// docsPages are the pages by their name in the path. Operations are in the order of the routes.
func (s *server) docsPages() map[string][]byte {
	page := struct {
		*huma.OpenAPI
		Page       string
		Documented []shown
		Problems   []kind
	}{OpenAPI: s.api.OpenAPI(), Problems: kinds}
	uses := map[problemCode]int{}
	for _, op := range s.documented {
		for _, code := range problemsOf(op) {
			uses[code]++
		}
	}
	for _, op := range s.documented {
		described := shown{Operation: op, Sample: s.sampleRequest(op), Samples: s.sampleAnswers(op)}
		for _, code := range problemsOf(op) {
			if k := *kindOf(code); uses[code] > len(s.documented)/2 || k.Status >= 500 || slices.Contains(ofEdge, k.Status) {
				described.Common = append(described.Common, k)
			} else {
				described.Own = append(described.Own, k)
			}
		}
		slices.SortStableFunc(described.Own, func(a, b kind) int { return a.Status - b.Status })
		page.Documented = append(page.Documented, described)
	}
	pages := map[string][]byte{"": nil, "problems": nil, "types": nil}
	for _, tag := range page.Tags {
		pages[tag.Name] = nil
	}
	for page.Page = range pages {
		pages[page.Page] = render("docs", page)
	}
	return pages
}

func render(name string, content any) []byte {
	var b bytes.Buffer
	if err := docsTemplate.ExecuteTemplate(&b, name, content); err != nil {
		panic("httpapi: page " + name + ": " + err.Error()) // all of it is known at start
	}
	return b.Bytes()
}

// membersOf lists the members of an object like parameters.
func membersOf(s *huma.Schema) (out []*huma.Param) {
	names := slices.Sorted(maps.Keys(s.Properties))
	required := func(name string) int { return slices.Index(s.Required, name) }
	slices.SortStableFunc(names, func(a, b string) int { // required ones first, in the order of the type
		return cmp.Compare(uint(required(a)), uint(required(b)))
	})
	for _, name := range names {
		out = append(out, &huma.Param{Name: name, Required: required(name) >= 0, Schema: s.Properties[name]})
	}
	return out
}

// limitsOf describes the limits of a value.
func limitsOf(s *huma.Schema) string {
	var limits []string
	note := func(format string, limit any) {
		if value := reflect.ValueOf(limit); !value.IsNil() {
			limits = append(limits, fmt.Sprintf(format, value.Elem()))
		}
	}
	if s.Format == "date-time" {
		limits = append(limits, "a time (RFC 3339)")
	}
	note("at least %.f", s.Minimum)
	note("at most %.f", s.Maximum)
	note("at most %d characters", s.MaxLength)
	note("at most %d entries", s.MaxProperties)
	if s.Default != nil {
		limits = append(limits, fmt.Sprintf("%v when left out", s.Default))
	}
	return strings.Join(limits, ", ")
}

// Examples of requests and answers are made from the schemas: of each object the required members, and those whose
// field has an example.

var exampleTime = time.Date(2026, 11, 20, 9, 30, 0, 118000000, time.UTC)

// sampleOf is an example of a schema, as JSON on one line.
func sampleOf(components *huma.Components, s *huma.Schema) string {
	return string(appendSample(nil, components, s))
}

func appendSample(b []byte, components *huma.Components, s *huma.Schema) []byte {
	if s.Ref != "" {
		s = components.Schemas.SchemaFromRef(s.Ref)
	}
	switch {
	case len(s.Examples) > 0:
		return appendRare(b, s.Examples[0])
	case len(s.Enum) > 0:
		return appendRare(b, s.Enum[0])
	case len(s.OneOf) > 0:
		return appendSample(b, components, s.OneOf[0])
	case s.Format == "date-time":
		return appendTime(b, exampleTime)
	}
	switch s.Type {
	case huma.TypeObject:
		b = append(b, '{')
		for _, m := range membersOf(s) {
			if m.Required || len(m.Schema.Examples) > 0 {
				if b[len(b)-1] != '{' {
					b = append(b, ',')
				}
				b = append(appendString(b, m.Name), ':')
				b = appendSample(b, components, m.Schema)
			}
		}
		return append(b, '}')
	case huma.TypeArray:
		return append(appendSample(append(b, '['), components, s.Items), ']')
	case huma.TypeBoolean:
		return append(b, "false"...)
	case huma.TypeString:
		return append(b, `"…"`...)
	}
	if s.Minimum != nil {
		return appendRare(b, max(*s.Minimum, 0))
	}
	return append(b, '0')
}

// indented is JSON for people to read.
func indented(text string) string {
	var b bytes.Buffer
	_ = json.Indent(&b, []byte(text), "", "  ") // it is JSON
	return b.String()
}

// sampleBody is an example of the body of an operation, or empty.
func (s *server) sampleBody(op *huma.Operation) string {
	if op.RequestBody == nil || op.RequestBody.Content[jsonMedia] == nil {
		return ""
	}
	return sampleOf(s.api.OpenAPI().Components, op.RequestBody.Content[jsonMedia].Schema)
}

// sampleAnswers are examples of the successful answers of an operation, by status.
func (s *server) sampleAnswers(op *huma.Operation) map[string]string {
	samples := map[string]string{}
	for status, response := range op.Responses {
		if media := response.Content[jsonMedia]; media != nil {
			samples[status] = indented(sampleOf(s.api.OpenAPI().Components, media.Schema))
		}
	}
	return samples
}

// samplePath replaces the parameters of a path by values.
var samplePath = strings.NewReplacer("{orderId}", "order-123", "{requestId}", "ticket-4712", "{item}", "widget", "{endpointId}", "whe_1", "{delivery}", "1042", "{version}", "1", "{number}", "1",
	"{verb}", "cancel", "{token}", "aaaaaaaaaaaad3dv4yz7k5ym2qaaaaaaaaaaazc6ahqy7m2v3fpd7x6yuebq")

// sampleRequest is the command that sends an example of an operation.
func (s *server) sampleRequest(op *huma.Operation) string {
	query, headers := url.Values{}, ""
	for _, p := range op.Parameters {
		if p.Schema == nil || len(p.Schema.Examples) == 0 {
			continue
		}
		value := fmt.Sprint(p.Schema.Examples[0])
		switch p.In {
		case "query":
			query.Set(p.Name, value)
		case "header":
			headers += " \\\n  -H '" + p.Name + ": " + value + "'"
		}
	}
	target := docsOrigin + samplePath.Replace(op.Path)
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	command := "curl '" + target + "'" + headers
	if op.Method == http.MethodPut || op.Method == http.MethodDelete {
		command = strings.Replace(command, "curl", "curl -X "+op.Method, 1)
	}
	if body := s.sampleBody(op); body != "" {
		command += " \\\n  --json '" + body + "'"
	}
	return command
}

// sampleProblem is an example of a problem.
func sampleProblem(code problemCode) *problem {
	stored := orders.Order{OrderID: "order-123", Status: "completed", Currency: "USD", Item: "widget", Quantity: 1, CreatedAt: exampleTime, Seq: 4}
	switch code {
	case "order_conflict":
		return problemOf(&orders.Conflict{Order: stored, Differences: []orders.Difference{{Pointer: "/amount", Stored: "99.99", Sent: "100"}}})
	case "not_applicable":
		return problemOf(&orders.NotApplicable{Verb: orders.Cancel, Code: orders.RefusedState, Order: stored})
	case "invalid_policy":
		return problemOf(policy.Problems{{Line: 2, Column: 12, Path: "charge.executor", Text: "must be ledger, http, stripe or simulator"}})
	case "stock_too_low":
		return problemOf(&orders.StockTooLow{Item: orders.Stock{Item: "widget", Reserved: 2}})
	case "invalid_input":
		return newProblem(code, "", fieldError{Pointer: "/amount", Code: tooManyDigits, Detail: "must have at most 2 digits after the decimal point"})
	case "invalid_parameter":
		return invalidParameter("limit", "invalid", "expected number <= 200")
	}
	return newProblem(code, "")
}
