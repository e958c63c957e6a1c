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
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
)

//go:embed docs.html
var docsHTML string

//go:embed docs.js
var docsScript string

var docsTemplate = template.Must(template.New("docs").Funcs(template.FuncMap{
	"split": strings.Split, "count": strings.Count, "trim": strings.TrimSuffix, "base": path.Base,
	"members": membersOf, "list": listOf, "indented": indented, "limits": limitsOf, "script": func() template.JS { return template.JS(docsScript) },
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
	}{kinds[at], indented(sample.Bytes())}))
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

// shown is an operation in the documentation, with its own problems, and those of most operations.
type shown struct {
	*huma.Operation
	Example     example
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
		described := shown{Operation: op, Example: examples()[op.OperationID]}
		for _, code := range problemsOf(op) {
			if k := *kindOf(code); uses[code] > len(s.documented)/2 || slices.Contains(ofEdge, k.Status) {
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

// listOf are the entries of a paragraph of a description that is a list.
func listOf(paragraph string) []string {
	text, is := strings.CutPrefix(paragraph, "- ")
	if !is {
		return nil
	}
	return strings.Split(text, "\n- ")
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

// example is a request to the service and its answer, as TestExamples sent and got them.
type example struct {
	Request string            `json:"request"` // method and target
	Headers map[string]string `json:"headers,omitempty"`
	Body    json.RawMessage   `json:"body,omitempty"`
	Status  int               `json:"status"`
	Answer  json.RawMessage   `json:"answer,omitempty"`
}

//go:embed examples.json
var examplesJSON []byte

// examples are those of each operation, by its id, and of some problems, by their code.
var examples = sync.OnceValue(func() (out map[string]example) {
	if err := json.Unmarshal(examplesJSON, &out); err != nil {
		panic("httpapi: examples.json: " + err.Error())
	}
	return out
})

// Command sends the request.
func (e example) Command() string {
	method, target, _ := strings.Cut(e.Request, " ")
	command := "curl '" + docsOrigin + target + "'"
	if method != http.MethodGet && (method != http.MethodPost || e.Body == nil) {
		command = strings.Replace(command, "curl", "curl -X "+method, 1)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		command += " \\\n  -H '" + name + ": " + e.Headers[name] + "'"
	}
	if e.Body == nil {
		return command
	}
	var body strings.Builder
	_ = writeJSON(&body, e.Body) // on one line
	return command + " \\\n  --json '" + body.String() + "'"
}

// inner are short objects and lists without others in them, and newline is what makes them long.
var inner, newline = regexp.MustCompile(`[\[{]\n[^\[\]{}]{1,80}[\]}]`), regexp.MustCompile(`\n *`)

// indented is JSON for people to read.
func indented(text json.RawMessage) string {
	var b bytes.Buffer
	_ = json.Indent(&b, text, "", "  ") // it is JSON
	return inner.ReplaceAllStringFunc(b.String(), func(short string) string { return newline.ReplaceAllString(short, " ") })
}

// sampleProblem is an example of a problem.
func sampleProblem(code problemCode) any {
	if e, known := examples()[string(code)]; known {
		return e.Answer
	}
	return newProblem(code, "")
}
