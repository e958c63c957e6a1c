package console

import (
	"bytes"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"pawl/client"
)

// visit is a request of a person.
type visit struct {
	console *console
	w       http.ResponseWriter
	r       *http.Request
	api     *client.Client
	me      *client.Caller // who may do nothing, as long as it is not known who asks
	live    string         // where the page hears that it has changed; empty: it stays as it is
}

// may says whether the API would let the person do an operation, by its id in the description of the API.
func (v *visit) may(operation string) bool { return slices.Contains(v.me.Operations, operation) }

// needs is the error of a person who may not do an operation. It comes before a form is read.
func (v *visit) needs(operation string) error {
	switch {
	case v.may(operation):
		return nil
	case len(v.me.Roles) == 0:
		return errUnknown
	}
	return errForbidden
}

// query is a parameter of the page, or empty.
func (v *visit) query(name string) string { return v.r.URL.Query().Get(name) }

// number is that of a parameter or a field, or 0.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0 // and not the largest, for what is larger
	}
	return n
}

// page is what a screen shows in the frame that all have.
type page struct {
	Title string
	Data  any
}

// frame is what the templates see.
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
}

// sessionCookie is the cookie of a login, as the API sets it.
const sessionCookie = "__Host-pawl-session"

// show answers with a template of that name.
func (v *visit) show(name string, p page) error { return v.showAs(http.StatusOK, name, p) }

func (v *visit) showAs(status int, name string, p page) error {
	f := frame{
		page: p, Me: v.me, Path: v.r.URL.Path, Live: v.live, Reload: v.r.URL.RequestURI(), Asset: v.console.assets.path, May: v.may, Query: v.query, Lab: v.console.Lab != nil,
	}
	_, err := v.r.Cookie(sessionCookie) // and not one that something else on this machine has set
	f.SignedIn = err == nil && len(v.me.Roles) > 0
	var body bytes.Buffer
	if err := templates[name].ExecuteTemplate(&body, "layout", f); err != nil {
		return err
	}
	header := v.w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	v.w.WriteHeader(status)
	v.w.Write(body.Bytes()) //nolint:errcheck // the person has gone
	return nil
}

// redirect leads to another page after a form was dealt with.
func (v *visit) redirect(to string) error {
	http.Redirect(v.w, v.r, to, http.StatusSeeOther)
	return nil
}

// maxForm is how long a form may be, in bytes: a thousand ids of 255 characters, each of them perhaps escaped.
const maxForm = 4 << 20

// answered identifies the person, and shows what goes wrong.
func (c *console) answered(serve func(*visit) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := c.visit(w, r)
		err := v.identify()
		if err == nil {
			err = serve(v)
		}
		if err != nil {
			v.showError(err)
		}
	}
}

func (c *console) visit(w http.ResponseWriter, r *http.Request) *visit {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	return &visit{console: c, w: w, r: r, me: &client.Caller{}}
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

// The URLs by which screens lead to each other.

func address(path string, query url.Values) string { return path + "?" + query.Encode() }

// orderURL is the page of an order.
func orderURL(id string) string { return address("/console/order", url.Values{"id": {id}}) }

// actionURL is the page where a verb is asked of an order.
func actionURL(verb, id string) string {
	return address("/console/order/"+verb, url.Values{"id": {id}})
}

// bulkURL is the page where a verb is asked of many orders: of those of a filter, whose fields have the names that the API
// gives them. A form posted to /console/bulk names the orders, each as id, and the verb.
func bulkURL(verb string, filter url.Values) string {
	query := url.Values{"verb": {verb}}
	for name, values := range filter {
		query[name] = values
	}
	return address("/console/bulk", query)
}

// ordersURL is the list of the orders that a search finds.
func ordersURL(search string) string { return address("/console/orders", url.Values{"q": {search}}) }

var (
	errUnknown   = newProblem(http.StatusUnauthorized, "Authentication is required.", "")
	errForbidden = newProblem(http.StatusForbidden, "Your roles do not allow this.", "")
	errNoPage    = newProblem(http.StatusNotFound, "There is no such page.", "") // the path has no screen
)

// newProblem is a problem that the console itself has found, as the API would put it.
func newProblem(status int64, title, detail string) *client.Problem {
	return &client.Problem{ProblemBody: client.ProblemBody{Status: status, Title: title, Detail: detail}}
}

// unusable is the error of a form that nothing can be made of.
func unusable(why string) error { return newProblem(http.StatusUnprocessableEntity, why, "") }

// showError shows an error in the frame. What is not the API's is the console's fault, or the API can't be reached.
func (v *visit) showError(err error) {
	problem, ok := errors.AsType[*client.Problem](err)
	if !ok {
		problem = newProblem(http.StatusBadGateway, "The service did not answer.", err.Error())
	}
	v.live = ""
	if err := v.showAs(int(problem.Status), "problem", page{Title: problem.Title, Data: problem}); err != nil {
		http.Error(v.w, "This page could not be made: "+err.Error(), http.StatusInternalServerError)
	}
}

// hasStatus says whether the API has answered with a status.
func hasStatus(err error, status int64) bool {
	problem, ok := errors.AsType[*client.Problem](err)
	return ok && problem.Status == status
}

// refusedInput is the problem of an input that the API refuses, nil for all other errors.
func refusedInput(err error) *client.Problem {
	if problem, ok := errors.AsType[*client.Problem](err); ok && problem.Status == http.StatusUnprocessableEntity {
		return problem
	}
	return nil
}
