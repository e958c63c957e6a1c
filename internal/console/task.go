package console

import (
	"cmp"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"pawl/client"
)

// task is something that a person can do to an order, an item, an endpoint or a delivery. Its first page asks
// questions. The second shows what will be so afterwards, asks for the other fields, and has the button that does it.
// The answers are in its URL, so that it can be reloaded, shared and gone back to; the reason is in none. Without
// questions, there is only the second page.
type task struct {
	Name      string // the last part of the path of its pages
	Label     string // of the link to it
	operation string // of the API
	hidden    bool   // the API would refuse it now

	Heading, Button string
	Danger          bool            // it can't be undone
	Quiet           bool            // it is of no use now
	Notes           []string        // what to know before
	Cautions        []template.HTML // what to know before anything else
	questions       []field
	fields          []field
	seen            map[string]string // the state that the person saw, such as a version; a hidden field of both pages

	Outcomes   []string  // what will be so afterwards, set by preview
	Meanwhile  []chapter // what has happened since a form was refused, set by preview
	comparison           // of policies
	Warnings   []string  // of a policy
	Link, Back string    // the URLs of its page, and of the page before it
	details    []string  // parameters of its URL, besides those of Link

	preview  func(form url.Values) ([]change, []string, error) // what will change, and notes on it; nil: nothing to show
	do       func(form url.Values) error                       // does it, and sends the next page
	conflict func(*client.Problem) error                       // handles a change in between; nil: shows the form again
}

// tasksOf sets the URLs of tasks: below a path, with the query of the page before them.
func tasksOf(path string, query url.Values, tasks ...*task) []*task {
	for _, t := range tasks {
		t.Link, t.Back = address(path+"/"+t.Name, query), address(path, query)
	}
	return tasks
}

// offered returns the tasks that the API would allow.
func (v *visit) offered(tasks []*task) []*task {
	return slices.DeleteFunc(tasks, func(t *task) bool { return t.hidden || !v.may(t.operation) })
}

// perform serves the pages of the task in the path. It acts only on a form that it has shown; a link changes nothing.
func (v *visit) perform(tasks []*task) error {
	i := slices.IndexFunc(tasks, func(t *task) bool { return t.Name == v.r.PathValue("task") })
	if i < 0 {
		return errNoPage
	}
	t := tasks[i]
	if err := v.needs(t.operation); err != nil {
		return err
	}
	if err := v.r.ParseForm(); err != nil {
		return unusable("The form could not be read.")
	}
	v.form = v.r.PostForm
	if v.r.Method == http.MethodGet {
		v.form = t.answersIn(v.r.URL.Query())
	}
	sent := v.r.PostForm
	does := sent.Has("requestId") && !sent.Has("edit") && !sent.Has("look")
	if by := v.r.Form.Get("person"); by != "" && by != v.me.Name && !does {
		for _, f := range t.fields {
			v.form.Del(f.Name) // somebody else typed it before their session ended
		}
	}
	v.typedBefore()
	switch {
	case v.r.Method == http.MethodGet && t.questions != nil && !v.r.Form.Has(previewed), sent.Has("edit"):
		return v.ask(t, nil)
	case !does:
		return v.confirm(t, nil)
	case v.ofAnother():
		return v.confirm(t, errOfAnother)
	}
	return v.mend(t, t.do(v.r.PostForm), v.confirm)
}

// errOfAnother is the error of a form that was shown to another person: it would be done under the wrong name.
var errOfAnother = newProblem(http.StatusConflict, "Nothing was done.",
	"This page was opened by somebody else: look at it again, it would be done under your name.")

// ofAnother reports whether a form was shown to another person than the one who is signed in now.
func (v *visit) ofAnother() bool { return v.r.PostForm.Get("person") != v.me.Name }

// Asks reports whether the task has questions, whose answers can be changed.
func (t *task) Asks() bool { return t.questions != nil }

// previewed is in the URL of a page that shows what will change, beside the answers to the questions.
const previewed = "preview"

// answersIn are the fields that the URL of a page may fill in: the page shows them, and the others are of the person.
func (t *task) answersIn(query url.Values) url.Values {
	answers := url.Values{}
	for name, values := range query {
		_, seen := t.seen[name]
		if t.asks(name) || seen && t.questions != nil && query.Has(previewed) {
			answers[name] = values
		}
	}
	return answers
}

// place is the part of the URL that says what the task is about.
func (v *visit) place(t *task) url.Values {
	_, query, _ := strings.Cut(t.Link, "?")
	about, _ := url.ParseQuery(query) // tasksOf made it
	for _, name := range t.details {
		if value := v.query(name); value != "" {
			about.Set(name, value)
		}
	}
	return about
}

// asks reports whether a field is a question.
func (t *task) asks(name string) bool {
	return slices.ContainsFunc(t.questions, func(f field) bool { return f.Name == name })
}

// ask shows the questions of a task. After a refusal, it shows the reason and the given answers.
func (v *visit) ask(t *task, refused *client.Problem) error {
	if t.questions == nil {
		return v.confirm(t, refused)
	}
	for name := range t.seen {
		if v.r.PostForm.Has("edit") {
			v.form.Del(name) // the answers are for the order as it is now
		}
	}
	p := v.formOf(t, t.questions, refused)
	p.Method, p.Button = http.MethodGet, "Show what will change"
	for name, values := range v.place(t) { // a form replaces the query
		p.Hidden[name] = values[0]
	}
	if reason := v.form.Get(whyField.Name); reason != "" {
		p.Hidden[whyField.Name], p.Hidden["person"] = reason, v.me.Name // the next page asks for it
		p.Method = http.MethodPost                                      // no URL has the reason
	}
	p.Hidden[previewed] = "yes"
	return v.showAs(p.status, "confirm", page{Title: t.Heading, Data: p})
}

// confirm shows what will change, and the button that does it.
func (v *visit) confirm(t *task, refused *client.Problem) error {
	var changes []change
	var notes []string
	if t.preview != nil {
		var err error
		if changes, notes, err = t.preview(v.form); err != nil {
			return v.mend(t, err, func(t *task, refused *client.Problem) error {
				if t.questions == nil {
					return err
				}
				return v.ask(t, refused)
			})
		}
	}
	p := v.formOf(t, t.fields, refused)
	p.Hidden["requestId"] = client.NewID() // a repeated form has no further effect
	p.Hidden["person"] = v.me.Name
	for _, question := range t.questions {
		p.Hidden[question.Name] = strings.Join(v.form[question.Name], "\n")
	}
	p.Changes, p.Notes = changes, slices.Concat(t.Notes, notes)
	return v.showAs(p.status, "confirm", page{Title: t.Heading, Data: p})
}

// mend handles a refusal that the person can correct. It returns other errors.
func (v *visit) mend(t *task, err error, again func(*task, *client.Problem) error) error {
	problem, ok := errors.AsType[*client.Problem](err)
	if !ok {
		return err
	}
	changed := problem.Status == http.StatusConflict || problem.Status == http.StatusPreconditionFailed
	switch {
	case problem.Status == http.StatusBadRequest || problem.Status == http.StatusUnprocessableEntity || t.conflict != nil && len(problem.Errors) > 0:
		return again(t, problem)
	case t.conflict != nil && (changed || problem.Code == "own_order"):
		return t.conflict(problem)
	case changed:
		for name := range t.seen {
			v.form.Del(name) // outdated
		}
		return v.ask(t, problem)
	}
	return err
}

// formPage is a page of a task. Its form is sent to the URL of the page.
type formPage struct {
	*task
	Method  string
	Button  string
	Refused []string // why it was not done, as far as it is not about a field
	Changes []change
	Notes   []string
	Hidden  map[string]string // earlier answers, the request ID and seen
	Fields  []field
	status  int
}

func (v *visit) formOf(t *task, fields []field, refused *client.Problem) formPage {
	p := formPage{
		task: t, Method: http.MethodPost, Button: t.Button, Notes: t.Notes, Hidden: map[string]string{}, Fields: slices.Clone(fields),
		status: http.StatusOK,
	}
	form := v.form
	for name, value := range t.seen {
		p.Hidden[name] = cmp.Or(form.Get(name), value)
	}
	wrong, known := map[string]string{}, false
	if refused != nil {
		for _, fault := range refused.Errors {
			wrong[strings.TrimPrefix(fault.Pointer, "/")] = fault.Detail
		}
	}
	for i := range p.Fields {
		f := &p.Fields[i]
		if form.Has(f.Name) {
			f.Value = strings.Join(form[f.Name], "\n")
		}
		f.Wrong = wrong[f.Name]
		known = known || f.Wrong != ""
	}
	if refused != nil {
		p.status, p.Refused = int(refused.Status), sentences(refused)
		if known && len(refused.Errors) <= len(wrong) {
			p.Refused = p.Refused[:1] // the others are beside their fields
		}
	}
	return p
}

// sentences says why something was refused.
func sentences(p *client.Problem) []string {
	said := []string{strings.TrimSpace(p.Title + " " + sentence(p.Detail))}
	for _, fault := range p.Errors {
		said = append(said, strings.TrimPrefix(fault.Pointer, "/")+fault.Parameter+fault.Header+" "+fault.Detail+".")
	}
	return said
}

// sentence is a detail of a problem after its title: with a capital letter, unless it begins with a name such as orderId,
// and a full stop.
func sentence(detail string) string {
	first, _, more := strings.Cut(detail, " ")
	if !more || strings.ContainsFunc(first, func(r rune) bool { return r < 'a' || r > 'z' }) {
		return detail
	}
	return strings.ToUpper(detail[:1]) + strings.TrimSuffix(detail[1:], ".") + "."
}

// change is a value before and after.
type change struct{ What, Before, After string }

// different returns the changes that change something.
func different(all ...change) []change {
	return slices.DeleteFunc(all, func(c change) bool { return c.Before == c.After })
}

// previewOf returns the changes of a form, or an error if there are none.
func previewOf(changes ...change) ([]change, []string, error) {
	if changes = different(changes...); len(changes) == 0 {
		return nil, nil, unusable("Nothing would change.")
	}
	return changes, nil, nil
}

// field is an input of a form.
type field struct {
	Name, Label, Help, Value string
	Type                     string            // of the input; also textarea, select, decimal and opaque: not remembered by the browser
	Options                  []string          // of a select, radio or checkbox, whose values are one per line
	Most                     int               // of a number; 0: any
	Amount                   string            // what the script needs for the total
	Heads                    []string          // of the table that begins with the field
	Kind, Paid, Left         string            // in its row
	Ends                     bool              // the table
	Words                    map[string]string // labels of options, if they differ from the option
	Required                 bool
	Wrong                    string // what is wrong with the value
	Fold                     string // the title behind which the field is hidden; empty: it is not
	Looks                    bool   // a folded field has a button that shows what its value would change
}

// whyField asks for the reason.
var whyField = field{Name: "reason", Label: "Reason", Help: "It is kept, with your name."}

// Ticked reports whether an option of radio buttons or check boxes is chosen.
func (f field) Ticked(option string) bool { return slices.Contains(strings.Fields(f.Value), option) }

func required(f field) field {
	f.Required = true
	return f
}

// result is a page after a task, with what no other page shows.
type result struct {
	Heading string
	Notes   []string
	Text    string // verbatim, to be copied or read
	Test    *client.TestOutcome
	Again   url.Values // a form to send again
	Button  string     // that does so
	Back    string
}

func (v *visit) tell(r result) error { return v.show("result", page{Title: r.Heading, Data: r}) }

// backTo redirects to a page after success, and returns errors.
func (v *visit) backTo(page string) func(done any, err error) error {
	return func(_ any, err error) error {
		if err != nil {
			return err
		}
		return v.redirect(page)
	}
}
