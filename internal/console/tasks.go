package console

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"pawl/client"
)

// task is what a person can do about a thing: its page asks what has to be known, and the button of the page does it. Where it
// can be told what will change, a second page says so first.
type task struct {
	Label     string // of the link that leads to it
	Link      string // the URL of its page
	operation string // of the API
	hidden    bool   // it would be refused now

	asks    confirmation
	changes func(url.Values) ([]change, error) // nil: the page has said all there is to say
	do      func(url.Values) error             // answers, too
}

// offered are the tasks that would not be refused.
func (v *visit) offered(tasks ...task) []task {
	return slices.DeleteFunc(tasks, func(t task) bool { return t.hidden || !v.may(t.operation) })
}

// perform serves the page of the task that it is asked for, and its form.
func (v *visit) perform(tasks ...task) error {
	i := slices.IndexFunc(tasks, func(t task) bool { path, _, _ := strings.Cut(t.Link, "?"); return path == v.r.URL.Path })
	if i < 0 {
		return errNoPage
	}
	t := &tasks[i]
	if err := v.needs(t.operation); err != nil {
		return err
	}
	if v.r.Method != http.MethodPost {
		return v.ask(t, nil)
	}
	if err := v.r.ParseForm(); err != nil {
		return unusable("The form could not be read.")
	}
	err := v.submit(t, v.r.PostForm)
	if problem, refused := errors.AsType[*client.Problem](err); refused && mendable[problem.Status] {
		return v.ask(t, problem)
	}
	return err
}

// mendable are the statuses of refusals after which a person corrects the form, or decides anew.
var mendable = map[int64]bool{http.StatusBadRequest: true, http.StatusConflict: true, http.StatusPreconditionFailed: true, http.StatusUnprocessableEntity: true}

// ask shows the form of a task, after a refusal as the person had filled it in.
func (v *visit) ask(t *task, refused *client.Problem) error {
	c, status := t.asks, http.StatusOK
	c.Hidden = map[string]string{"requestId": client.NewID()}
	maps.Copy(c.Hidden, t.asks.Hidden)
	if refused != nil {
		status = int(refused.Status)
		c.Notes = slices.Insert(c.Notes, 0, sentences(refused)...)
		for i := range c.Fields {
			c.Fields[i].Value = v.r.PostForm.Get(c.Fields[i].Name)
		}
	}
	if t.changes != nil {
		c.Button = "Show what will change"
	}
	return v.showAs(status, "confirm", page{Title: c.Heading, Data: c})
}

// sentences say why something was refused.
func sentences(p *client.Problem) []string {
	said := []string{strings.TrimSpace(p.Title + " " + p.Detail)}
	for _, fault := range p.Errors {
		said = append(said, strings.TrimPrefix(fault.Pointer, "/")+fault.Parameter+fault.Header+" "+fault.Detail+".")
	}
	return said
}

// submit does what was asked for. What will change is shown first, if that is known.
func (v *visit) submit(t *task, form url.Values) error {
	if t.changes == nil || form.Has("confirmed") {
		return t.do(form)
	}
	changes, err := t.changes(form)
	switch {
	case err != nil:
		return err
	case len(changes) == 0:
		return unusable("Nothing would change.")
	}
	c := t.asks
	c.Fields, c.Changes, c.Back, c.Hidden = nil, changes, t.Link, map[string]string{"confirmed": "yes"}
	for name := range maps.Keys(form) {
		c.Hidden[name] = form.Get(name)
	}
	return v.show("confirm", page{Title: c.Heading, Data: c})
}

// told is what a page says after a task, where no other page shows it.
type told struct {
	Heading string
	Notes   []string
	Text    string // as it is, to be copied or read
	Back    string
}

// backTo leads to a page after something was done, or hands on why it was not.
func (v *visit) backTo(page string) func(done any, err error) error {
	return func(_ any, err error) error {
		if err != nil {
			return err
		}
		return v.redirect(page)
	}
}

func (v *visit) tell(t told) error {
	return v.show("told", page{Title: t.Heading, Data: t})
}

// confirmation is the page between what a person asks for and what is done. It shows what would change; its button sends the
// form to the URL of the page.
type confirmation struct {
	Heading string
	Changes []change          // what a dry run said
	Notes   []string          // what else there is to know, in sentences
	Hidden  map[string]string // of the form: what was decided before, with the request id and the version that was looked at
	Fields  []field           // what the person can still say
	Button  string            // what it does, as a verb
	Danger  bool              // it can't be taken back
	Back    string            // where a person goes who does not want it
}

// change is something that will be different.
type change struct{ What, Before, After string }

// different are those of them that are changes.
func different(all ...change) []change {
	return slices.DeleteFunc(all, func(c change) bool { return c.Before == c.After })
}

// field is an input of a form.
type field struct {
	Name, Label, Help, Value string
	Type                     string // of the input; textarea and select are ones, too
	Options                  []string
	Words                    map[string]string // for options that are none
	Required                 bool
}

// said is the value as a person has chosen it.
func (f *field) said() string { return cmp.Or(f.Words[f.Value], f.Value) }
