package console

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"pawl/client"
)

func (v *visit) policies() error {
	const most = 50
	params := client.ListPoliciesParams{Before: max(number(v.query("before")), 0), Limit: most}
	list, err := v.api.ListPolicies(v.r.Context(), params)
	if err != nil {
		return err
	}
	older := 0
	if n := len(list.Policies); n == most && list.Policies[n-1].Version > 1 {
		older = list.Policies[n-1].Version
	}
	return v.show("policies", page{Title: "Policies", Data: struct {
		*client.PolicyList
		Older int // the next page has the versions below
	}{list, older}})
}

type policyPage struct {
	*client.PolicyVersion
	comparison
}

// policy shows a version, compared with another one or with the active one.
func (v *visit) policy() error {
	p, err := v.readPolicy("version")
	if err != nil {
		return err
	}
	data := policyPage{PolicyVersion: p}
	if against := max(number(v.query("against")), 0); against > 0 || !p.Active {
		if data.comparison, err = v.compared(against, p); err != nil {
			return err
		}
	}
	return v.show("policy", page{Title: "Policy " + strconv.Itoa(p.Version), Data: data})
}

func (v *visit) readPolicy(parameter string, options ...client.CallOption) (*client.PolicyVersion, error) {
	version := number(v.query(parameter))
	if version < 1 {
		return nil, errNoPage
	}
	return v.api.GetPolicy(v.r.Context(), version, options...)
}

// activePolicy is the active version without its source; empty: there is none, or the person may not know.
func (v *visit) activePolicy() (*client.PolicyVersion, error) {
	if !v.may("listPolicies") {
		return &client.PolicyVersion{}, nil
	}
	list, err := v.api.ListPolicies(v.r.Context(), client.ListPoliciesParams{Limit: 20})
	if err != nil || list.Active == 0 {
		return &client.PolicyVersion{}, err
	}
	if i := slices.IndexFunc(list.Policies, func(p client.PolicyVersion) bool { return p.Active }); i >= 0 {
		return &list.Policies[i], nil
	}
	return v.api.GetPolicy(v.r.Context(), list.Active)
}

type policyForm struct {
	Source  string
	Checked *client.StoredPolicy // without mistakes
	Problem *client.Problem      // its mistakes
	comparison
}

// writePolicy shows the form for a new version, with the text of another one.
func (v *visit) writePolicy() error {
	if err := v.needs("storePolicy"); err != nil {
		return err
	}
	form := policyForm{}
	if v.query("from") != "" {
		from, err := v.readPolicy("from")
		if err != nil {
			return err
		}
		form.Source = from.Source
	}
	return v.showPolicyForm(form)
}

// checkPolicy shows the mistakes of a text, or what it would change. It stores a checked text.
func (v *visit) checkPolicy() error {
	if err := v.needs("storePolicy"); err != nil {
		return err
	}
	text := func(name string) string { return strings.ReplaceAll(v.r.PostFormValue(name), "\r\n", "\n") } // of browsers
	source := text("source")
	store := text("store") != "" && text("checked") == source && !v.ofAnother() // otherwise, it is checked again
	body := client.StorePolicyBody{Source: source}
	stored, err := v.api.StorePolicy(v.r.Context(), body, client.StorePolicyParams{DryRun: !store})
	form := policyForm{Source: source}
	form.Problem, _ = errors.AsType[*client.Problem](err) // the text must not be lost
	if err != nil && form.Problem == nil {
		return err
	}
	if store && err == nil {
		return v.redirect(policyURL(stored.Version))
	}
	if err == nil {
		form.Checked = stored
		if form.comparison, err = v.compared(0, &client.PolicyVersion{Source: source}); err != nil {
			return err
		}
	}
	return v.showPolicyForm(form)
}

func (v *visit) showPolicyForm(form policyForm) error {
	status := http.StatusOK
	if form.Problem != nil {
		status = int(form.Problem.Status)
	}
	return v.showAs(status, "policy_form", page{Title: "New policy", Data: form})
}

// comparison is what a policy changes of a version.
type comparison struct {
	Against int // the version; 0: none
	Diff    []diffLine
}

// compared compares a policy with a version; 0: the active one.
func (v *visit) compared(against int, p *client.PolicyVersion) (c comparison, err error) {
	if against == 0 {
		list, err := v.api.ListPolicies(v.r.Context(), client.ListPoliciesParams{Limit: 1})
		if err != nil {
			return c, err
		}
		against = list.Active
	}
	other := &client.PolicyVersion{}
	if against > 0 {
		if other, err = v.api.GetPolicy(v.r.Context(), against); err != nil {
			return c, err
		}
	}
	return comparison{against, diff(other, p)}, nil
}

// activatePolicy serves the pages to activate a version.
func (v *visit) activatePolicy() error {
	var answer http.Response
	p, err := v.readPolicy("version", client.WithResponse(&answer))
	if err != nil {
		return err
	}
	if err := v.needs("activatePolicy"); err != nil {
		return err
	}
	query := url.Values{"version": {strconv.Itoa(p.Version)}}
	t := &task{
		Name: "activate", operation: "activatePolicy",
		Heading: fmt.Sprintf("Activate policy %d?", p.Version), Button: fmt.Sprintf("Activate policy %d", p.Version),
		Notes:  []string{"New orders start with it. Orders that have started keep their policy."},
		fields: []field{whyField}, seen: map[string]string{"etag": answer.Header.Get("ETag")},
		do: func(form url.Values) error {
			seen := client.ActivatePolicyParams{IfMatch: form.Get("etag")}
			body := client.ActivatePolicyBody{Reason: form.Get("reason")}
			_, err := v.api.ActivatePolicy(v.r.Context(), p.Version, body, seen)
			return v.backTo(policyURL(p.Version))(nil, err)
		},
	}
	if v.r.Method == http.MethodGet && p.Active {
		return v.tell(result{Heading: fmt.Sprintf("Policy %d is already the active version", p.Version), Back: policyURL(p.Version)})
	}
	dryRun := client.ActivatePolicyParams{DryRun: true}
	tried, err := v.api.ActivatePolicy(v.r.Context(), p.Version, client.ActivatePolicyBody{}, dryRun)
	if err != nil {
		return err
	}
	t.Danger, t.Warnings = len(tried.Warnings) > 0, tried.Warnings
	if t.comparison, err = v.compared(0, p); err != nil {
		return err
	}
	return v.perform(tasksOf("/console/policy", query, t))
}

func policyURL(version int) string {
	return address("/console/policy", url.Values{"version": {strconv.Itoa(version)}})
}

// diffLine is a line of a comparison. Its first character says what changes, without color.
type diffLine struct {
	Kind string // added, removed, place or same
	Text string
}

// diff compares the texts of two policies. It is empty if they are the same.
func diff(before, after *client.PolicyVersion) (lines []diffLine) {
	text := udiff.Unified(policyName(before), policyName(after), before.Source, after.Source)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		kind := "same"
		switch {
		case len(lines) < 2, strings.HasPrefix(line, "@"), strings.HasPrefix(line, `\`): // the first two name the texts
			kind = "place"
		case strings.HasPrefix(line, "+"):
			kind = "added"
		case strings.HasPrefix(line, "-"):
			kind = "removed"
		}
		lines = append(lines, diffLine{kind, line})
	}
	return lines
}

func policyName(p *client.PolicyVersion) string {
	if p.Version == 0 {
		return "policy"
	}
	return "policy " + strconv.Itoa(p.Version)
}
