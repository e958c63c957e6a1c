package console

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"pawl/client"
)

type visit struct {
	console *console
	w       http.ResponseWriter
	r       *http.Request
	api     *client.Client
	me      *client.Caller // without rights until identify
	live    string         // the URL of the stream of changes; empty: none
	form    url.Values     // what was typed into the pages of a task
}

// may reports whether the person may do an operation of the API, by its operationId.
func (v *visit) may(operation string) bool { return slices.Contains(v.me.Operations, operation) }

// needs returns an error if the person may not do an operation.
func (v *visit) needs(operation string) error {
	switch roles := v.me.Forbidden[operation]; {
	case v.may(operation):
		return nil
	case len(v.me.Roles) == 0:
		return errUnknown
	case roles == "":
		return newProblem(http.StatusForbidden, "This is not possible here.", "")
	default:
		return newProblem(http.StatusForbidden, "You do not have permission to do this.",
			fmt.Sprintf("This needs the role %s; %s has %s.", roles, v.me.Name, strings.Join(v.me.Roles, ", ")))
	}
}

// query is a parameter of the page, or empty.
func (v *visit) query(name string) string { return v.r.URL.Query().Get(name) }

// number parses a parameter or field. Anything else is 0.
func number(text string) int { return numberOr(text, 0) }

// numberOr parses a number, or returns otherwise. An empty text is 0.
func numberOr(text string, otherwise int) int {
	text = strings.TrimSpace(text)
	n, err := strconv.Atoi(text)
	if err != nil && text != "" {
		return otherwise
	}
	return n
}

// page is the content of a screen.
type page struct {
	Title string
	Data  any
}

// frame is the data of templates.
type frame struct {
	page
	Me       *client.Caller
	Path     string // of the page
	Live     string // as in visit
	Reload   string // the URL of the page
	Asset    func(name string) string
	May      func(operation string) bool
	Query    func(name string) string
	Lab      bool // there is one
	SignedIn bool
	Address  string // of the service, as in the request
}

// Origin is the URL of the service, without a path.
func (f frame) Origin() string {
	if strings.Contains(f.Address, "://") {
		return f.Address
	}
	return "http://" + f.Address
}

// docsAddress is the address of the service in documents.
const docsAddress = "localhost:3000"

// Here is a document with the address of this service.
func (f frame) Here(document template.HTML) template.HTML {
	return template.HTML(strings.ReplaceAll(string(document), docsAddress, template.HTMLEscapeString(f.Address)))
}

// sessionCookie is the cookie of a login, as the API sets it.
const sessionCookie = "__Host-pawl-session"

// returnCookie is the cookie of the page that a person without a session asked for, and begins the names of those of forms.
// The page after the login leads there.
const (
	returnCookie  = "__Host-pawl-return"
	returnSeconds = 900
)

func (v *visit) show(name string, p page) error { return v.showAs(http.StatusOK, name, p) }

func (v *visit) showAs(status int, name string, p page) error {
	f := frame{
		page: p, Me: v.me, Path: v.r.URL.Path, Live: v.live, Reload: v.r.URL.RequestURI(),
		Asset: v.console.assets.path, May: v.may, Query: v.query, Lab: v.console.Lab != nil, Address: v.address(),
	}
	_, err := v.r.Cookie(sessionCookie) // other cookies may belong to another service on this machine
	f.SignedIn = err == nil && len(v.me.Roles) > 0
	var body bytes.Buffer
	if err := templates[name].ExecuteTemplate(&body, "layout", f); err != nil {
		return err
	}
	header := v.w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	v.w.WriteHeader(status)
	v.w.Write(body.Bytes()) //nolint:errcheck // fails if the browser has disconnected
	return nil
}

// address is where the service was reached, as commands name it.
func (v *visit) address() string {
	if v.r.TLS != nil || v.r.Header.Get("X-Forwarded-Proto") == "https" {
		return "https://" + v.r.Host
	}
	return v.r.Host
}

func (v *visit) redirect(to string) error {
	http.Redirect(v.w, v.r, to, http.StatusSeeOther)
	return nil
}

// maxForm is the size limit of a form in bytes: a thousand ids of 255 escaped characters.
const maxForm = 4 << 20

// answered serves the page to a person who is identified, and shows errors.
func (c *console) answered(serve func(*visit) error) http.HandlerFunc {
	return c.visited(func(v *visit) error {
		if err := v.identify(); err != nil {
			return err
		}
		return serve(v)
	})
}

func (c *console) visited(serve func(*visit) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		v := &visit{console: c, w: w, r: r, me: &client.Caller{}}
		if err := serve(v); err != nil {
			v.showError(err)
		}
	}
}

func (v *visit) identify() (err error) {
	if v.api, err = v.console.Client(v.r); err != nil {
		return err
	}
	me, err := v.api.GetCaller(v.r.Context())
	if err == nil {
		v.me = me
	}
	return err
}

// The URLs of links between screens.

func address(path string, query url.Values) string { return path + "?" + query.Encode() }

// with is the URL of this page with another value of a parameter.
func (v *visit) with(name, value string) string {
	query := v.r.URL.Query()
	query.Set(name, value)
	return address(v.r.URL.Path, query)
}

// nextPage is the URL of the page at a cursor, or empty.
func (v *visit) nextPage(cursor string) string {
	if cursor == "" {
		return ""
	}
	return v.with("cursor", cursor)
}

func orderURL(id string) string { return address("/console/order", url.Values{"id": {id}}) }

func actionURL(verb, id string) string {
	return address("/console/order/"+verb, url.Values{"id": {id}})
}

// customerURL is the list of the orders of a customer.
func customerURL(id string) string { return ordersURL("customer:" + quoted(id)) }

// quoted is a text in the quotes of a search.
func quoted(text string) string { return `"` + strings.ReplaceAll(text, `"`, `""`) + `"` }

// bulkURL is the page of a verb for the orders of a search.
func bulkURL(verb, search string) string {
	return address("/console/bulk", url.Values{"verb": {verb}, "q": {search}})
}

func ordersURL(search string) string { return address("/console/orders", url.Values{"q": {search}}) }

var (
	errUnknown = newProblem(http.StatusUnauthorized, "Authentication is required.", "")
	errNoPage  = newProblem(http.StatusNotFound, "There is no such page.", "The address may be mistyped.") // the path has no screen
)

// newProblem is a problem found by the console itself.
func newProblem(status int64, title, detail string) *client.Problem {
	return &client.Problem{ProblemBody: client.ProblemBody{Status: status, Title: title, Detail: detail}}
}

// unusable is the error of an invalid form.
func unusable(why string) error { return newProblem(http.StatusUnprocessableEntity, why, "") }

// problemPage is a problem, with what was typed into the form that met it.
type problemPage struct {
	*client.Problem
	Typed     url.Values
	Returns   bool   // the login leads back to the form, with its reason
	Away      bool   // the service or its database does not answer
	Retries   bool   // the browser loads the page again after a while
	Elsewhere bool   // the person came from a page of another site: the session does not count
	OrderID   string // the order that the page is about, or empty
	About     string // the same in words, also of items and lists; empty: its URL does not say
	Stranger  bool   // nothing was sent to sign in with, which the page says in other words
}

// showError shows a problem. Other errors mean that the API did not answer. Whoever is not signed in comes back to the
// page after that.
func (v *visit) showError(err error) {
	problem, ok := errors.AsType[*client.Problem](err)
	if !ok {
		problem = newProblem(http.StatusBadGateway, "The service did not answer.", err.Error())
	}
	from, signIn, post := v.r.Header.Get("Sec-Fetch-Site"), problem.Status == http.StatusUnauthorized, v.r.Method == http.MethodPost
	p := problemPage{Problem: problem, About: v.about(), Elsewhere: from == "cross-site" || from == "same-site"}
	_, err = v.r.Cookie(sessionCookie)
	p.Stranger = err != nil && v.r.Header.Get("Authorization") == "" && signIn
	if strings.HasPrefix(v.r.URL.Path, "/console/order/") {
		p.OrderID = v.query("id")
	}
	p.Away = problem.Status >= http.StatusBadGateway && problem.Status <= http.StatusGatewayTimeout
	p.Retries = p.Away && !post
	switch {
	case post && (p.Away || signIn):
		_ = v.r.ParseForm() // what can't be read was not typed
		p.Typed = v.r.PostForm
		if !p.Away { // nothing was done: the person sees first what it would do
			for _, decides := range []string{"requestId", "confirm", "store"} {
				p.Typed.Del(decides)
			}
			p.Returns = v.keepForm(p.About, p.Typed)
		}
	case signIn:
		v.keep(returnCookie, url.Values{"page": {v.r.URL.RequestURI()}}.Encode(), returnSeconds)
	}
	v.live = ""
	if err := v.showAs(int(problem.Status), "problem", page{Title: problem.Title, Data: p}); err != nil {
		http.Error(v.w, "The page could not be rendered: "+err.Error(), http.StatusInternalServerError)
	}
}

// about says what the page is about, as far as its URL does.
func (v *visit) about() string {
	id, item, search := visible(v.query("id")), visible(v.query("item")), visible(cmp.Or(v.query("q"), v.query("all"), v.query("search")))
	switch path := v.r.URL.Path; {
	case id != "" && (path == "/console/order" || strings.HasPrefix(path, "/console/order/")):
		return "order " + id
	case item != "" && strings.HasPrefix(path, "/console/item"):
		return "the stock of " + item
	case path == "/console/orders" && search != "":
		return "the orders of the search " + search
	case path == "/console/bulk":
		return strings.TrimSpace("many orders at once " + search)
	}
	return ""
}

// keep has the login lead to a page, with what was typed there: a cookie of each form, so that forms in two tabs both come
// back. URLs, which logs and histories keep, have no reasons. A long URL does not fit, and then the login leads to the start.
func (v *visit) keep(name, values string, seconds int) {
	http.SetCookie(v.w, &http.Cookie{Name: name, Value: values, Path: "/", MaxAge: seconds, HttpOnly: true, Secure: true, SameSite: http.SameSiteLaxMode})
}

// formCookie is the cookie of the form at this page.
func (v *visit) formCookie() string {
	page := fnv.New32a()
	page.Write([]byte(v.r.URL.RequestURI()))
	return fmt.Sprintf("%s-%x", returnCookie, page.Sum32())
}

// keepForm keeps the reason that was typed into the form of a task: its answers are in the URL. All cookies together must
// fit into the header of a request.
func (v *visit) keepForm(about string, typed url.Values) bool {
	const most, mostOfAll = 3 << 10, 8 << 10
	kept := url.Values{"page": {v.r.URL.RequestURI()}, "about": {v.r.PathValue("task") + ", " + about},
		"person": typed["person"], whyField.Name: typed[whyField.Name]}.Encode()
	if v.r.PathValue("task") == "" || len(kept) > most || len(kept)+len(v.r.Header.Get("Cookie")) > mostOfAll {
		return false
	}
	v.keep(v.formCookie(), kept, returnSeconds)
	return true
}

// typedBefore fills in the reason that the same person typed into this page before the session ended, once.
func (v *visit) typedBefore() {
	cookie, err := v.r.Cookie(v.formCookie())
	if err != nil || v.r.Method != http.MethodGet {
		return
	}
	typed, err := url.ParseQuery(cookie.Value)
	if err != nil || typed.Get("page") != v.r.URL.RequestURI() {
		return
	}
	if v.keep(cookie.Name, "", -1); typed.Get("person") == v.me.Name {
		v.form.Set(whyField.Name, typed.Get(whyField.Name))
	}
}

func hasStatus(err error, status int64) bool {
	problem, ok := errors.AsType[*client.Problem](err)
	return ok && problem.Status == status
}

// refusedInput is the problem of an input that the API rejects, or nil.
func refusedInput(err error) *client.Problem {
	if !hasStatus(err, http.StatusUnprocessableEntity) {
		return nil
	}
	problem, _ := errors.AsType[*client.Problem](err)
	return problem
}
