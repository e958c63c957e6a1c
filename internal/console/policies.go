package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
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

// activePolicy is the active version; empty: there is none, or the person may not know.
func (v *visit) activePolicy() (*client.PolicyVersion, error) {
	if !v.may("listPolicies") {
		return &client.PolicyVersion{}, nil
	}
	list, err := v.api.ListPolicies(v.r.Context(), client.ListPoliciesParams{Limit: 1})
	if err != nil || list.Active == 0 {
		return &client.PolicyVersion{}, err
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
	return v.showPolicyForm(http.StatusOK, form)
}

// checkPolicy shows the mistakes of a text, or what it would change. It stores a checked text.
func (v *visit) checkPolicy() error {
	if err := v.needs("storePolicy"); err != nil {
		return err
	}
	text := func(name string) string { return strings.ReplaceAll(v.r.PostFormValue(name), "\r\n", "\n") } // of browsers
	form := policyForm{Source: text("source")}
	store := text("store") != "" && text("checked") == form.Source && !v.ofAnother() // otherwise, it is checked again
	body := client.StorePolicyBody{Source: form.Source}
	stored, err := v.api.StorePolicy(v.r.Context(), body, client.StorePolicyParams{DryRun: !store})
	if problem, ok := errors.AsType[*client.Problem](err); ok { // the text must not be lost
		form.Problem = problem
		return v.showPolicyForm(int(problem.Status), form)
	}
	if err != nil {
		return err
	}
	if store {
		return v.redirect(policyURL(stored.Version))
	}
	form.Checked = stored
	if form.comparison, err = v.compared(0, &client.PolicyVersion{Source: form.Source}); err != nil {
		return err
	}
	return v.showPolicyForm(http.StatusOK, form)
}

func (v *visit) showPolicyForm(status int, form policyForm) error {
	return v.showAs(status, "policy_form", page{Title: "New policy", Data: form})
}

// comparison is what a policy changes of a version.
type comparison struct {
	Against int // the version; 0: none
	Diff    []diffLine
}

// compared compares a policy with a version; 0: the active one.
func (v *visit) compared(against int, p *client.PolicyVersion) (comparison, error) {
	other := v.activePolicy
	if against > 0 {
		other = func() (*client.PolicyVersion, error) { return v.api.GetPolicy(v.r.Context(), against) }
	}
	before, err := other()
	if err != nil {
		return comparison{}, err
	}
	return comparison{before.Version, diff(before, p)}, nil
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
	if v.r.Method == http.MethodGet && p.Active {
		return v.tell(result{Heading: fmt.Sprintf("Policy %d is already the active version", p.Version), Back: policyURL(p.Version)})
	}
	dryRun := client.ActivatePolicyParams{DryRun: true}
	tried, err := v.api.ActivatePolicy(v.r.Context(), p.Version, client.ActivatePolicyBody{}, dryRun)
	if err != nil {
		return err
	}
	changes, err := v.compared(0, p)
	if err != nil {
		return err
	}
	return v.perform(tasksOf("/console/policy", url.Values{"version": {strconv.Itoa(p.Version)}}, &task{
		Name: "activate", operation: "activatePolicy", Danger: len(tried.Warnings) > 0, Warnings: tried.Warnings, comparison: changes,
		Heading: fmt.Sprintf("Activate policy %d?", p.Version), Button: fmt.Sprintf("Activate policy %d", p.Version),
		Notes:  []string{"New orders start with it. Orders that have started keep their policy."},
		fields: []field{whyField}, seen: map[string]string{"etag": answer.Header.Get("ETag")},
		do: func(form url.Values) error {
			seen := client.ActivatePolicyParams{IfMatch: form.Get("etag")}
			body := client.ActivatePolicyBody{Reason: form.Get("reason")}
			return v.backTo(policyURL(p.Version))(v.api.ActivatePolicy(v.r.Context(), p.Version, body, seen))
		},
	}))
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
	kinds := map[byte]string{'@': "place", '\\': "place", '+': "added", '-': "removed"}
	text := udiff.Unified(policyName(before), policyName(after), before.Source, after.Source)
	for line := range strings.Lines(text) {
		kind := cmp.Or(kinds[line[0]], "same")
		if len(lines) < 2 { // they name the texts
			kind = "place"
		}
		lines = append(lines, diffLine{kind, strings.TrimSuffix(line, "\n")})
	}
	return lines
}

func policyName(p *client.PolicyVersion) string {
	if p.Version == 0 {
		return "policy"
	}
	return "policy " + strconv.Itoa(p.Version)
}
