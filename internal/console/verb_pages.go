package console

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"pawl/client"
)

// request is a verb for an order as a person has put it together, in a form.
type request struct {
	*verb
	order *client.Order // as the person has seen it
	form  url.Values
}

// readRequest reads the order and which verb is asked of it.
func (v *visit) readRequest() (*request, error) {
	a := verbNamed(verbs, v.r.PathValue("verb"))
	if a == nil {
		return nil, errNoPage
	}
	if err := v.needs(a.operation); err != nil {
		return nil, err
	}
	order, err := v.api.GetOrder(v.r.Context(), v.query("id"), nil)
	if err != nil {
		return nil, err
	}
	if err := v.r.ParseForm(); err != nil {
		return nil, unusable("The form could not be read.")
	}
	return &request{a, order, v.verbForm(a)}, nil
}

// verbForm is what was said of a verb: by a link, of which the page shows what counts, or by a form. Then all that counts of the URL
// is what the page is about: whoever made the link must not have decided anything that the person has not seen.
func (v *visit) verbForm(a *verb) url.Values {
	if v.r.Method != http.MethodPost {
		return v.r.Form
	}
	form := v.r.PostForm
	for _, name := range a.about() {
		if !form.Has(name) {
			form.Set(name, v.query(name))
		}
	}
	return form
}

// about are the parameters that name what the verb is asked of beside the order.
func (a *verb) about() []string {
	if a.Name == "step-result" {
		return []string{"refund", "generation", "step"}
	}
	return nil
}

// askVerb shows the form of what has to be known, or where that is nothing, at once what would change.
func (v *visit) askVerb() error {
	q, err := v.readRequest()
	if err != nil {
		return err
	}
	if fields := q.decisions(); len(fields) > 0 {
		return v.showForm(q, fields, nil)
	}
	return v.preview(q, nil)
}

// submitVerb does what a form with a request id asks, and shows what one without would change.
func (v *visit) submitVerb() error {
	q, err := v.readRequest()
	if err != nil {
		return err
	}
	if q.form.Get("requestId") == "" {
		return v.preview(q, nil)
	}
	seq, err := strconv.Atoi(q.form.Get("seq"))
	if err != nil {
		return errNoPage
	}
	q.order.Seq = seq // that the person has seen
	if _, err = q.send(v.r.Context(), v.api, false); err != nil {
		if faults := faultsOf(err); faults != nil {
			return v.preview(q, faults)
		}
		return v.refused(q, err)
	}
	return v.redirect(orderURL(q.order.OrderID) + "&done=" + q.Name)
}

func (v *visit) showForm(q *request, fields []field, notes []string) error {
	return v.show("confirm", page{Title: q.Label, Data: confirmation{
		Heading: q.heading(), Notes: append(notes, q.Meaning), Fields: fields, Button: "Show what would change", Back: orderURL(q.order.OrderID),
	}})
}

// decided are the names of what was decided before the preview, which shows what comes of it.
func (q *request) decided() []string {
	names := []string{"requestId"}
	for _, f := range q.decisions() {
		names = append(names, f.Name)
	}
	return append(names, q.about()...)
}

// heading names the verb and what it is asked of.
func (q *request) heading() string {
	text := q.Label + ": order " + visible(q.order.OrderID)
	if n := q.form.Get("refund"); n != "" {
		text += ", refund " + n
	}
	return text
}

// preview shows what would change, and takes the reason. After a refusal it says what was wrong with that.
func (v *visit) preview(q *request, faults []string) error {
	q.form.Set("requestId", client.NewID())
	would, err := q.send(v.r.Context(), v.api, true)
	if err != nil {
		return v.refused(q, err)
	}
	hidden := map[string]string{"seq": strconv.Itoa(q.order.Seq)}
	for _, name := range q.decided() {
		hidden[name] = q.form.Get(name)
	}
	fields := []field{{Name: "reason", Label: "Reason", Help: "It is kept in the history of the order.", Type: "textarea", Required: q.needsReason, Value: v.r.PostForm.Get("reason")}}
	if slices.Contains(v.me.Roles, "delegate") {
		fields = append(fields, field{Name: "onBehalfOf", Label: "On behalf of", Help: "For whom you ask; it is kept beside your own name.", Value: v.r.PostForm.Get("onBehalfOf")})
	}
	return v.show("confirm", page{Title: q.Label, Data: confirmation{
		Heading: q.heading(), Changes: changesOf(q.order, would), Notes: slices.Concat(faults, q.said(), []string{q.Meaning}), Hidden: hidden, Fields: fields,
		Button: cmp.Or(q.confirm, q.Label), Danger: q.Danger, Back: orderURL(q.order.OrderID),
	}})
}
