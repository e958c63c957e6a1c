package console

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"pawl/client"
)

// policies shows the versions, a page of them at a time.
func (v *visit) policies() error {
	const most = 50
	list, err := v.api.ListPolicies(v.r.Context(), &client.ListPoliciesParams{Before: max(number(v.query("before")), 0), Limit: most})
	if err != nil {
		return err
	}
	older := 0
	if n := len(list.Policies); n == most && list.Policies[n-1].Version > 1 {
		older = list.Policies[n-1].Version
	}
	return v.show("policies", page{Title: "Policies", Data: struct {
		*client.PolicyList
		Older int // the next page is of versions below this one
	}{list, older}})
}

// policyPage is a version, and what it changes.
type policyPage struct {
	*client.PolicyVersion
	comparison
}

// policy shows a version, compared with another one or else with the active one.
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

// readPolicy reads the version that a parameter names.
func (v *visit) readPolicy(parameter string, options ...client.CallOption) (*client.PolicyVersion, error) {
	version := number(v.query(parameter))
	if version < 1 {
		return nil, errNoPage
	}
	return v.api.GetPolicy(v.r.Context(), version, options...)
}

// policyForm is a policy that a person writes.
type policyForm struct {
	Source  string
	Checked *client.StoredPolicy // the API found no mistake
	Problem *client.Problem      // what it found
	comparison
}

// writePolicy shows the text of a version, to be changed.
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

// checkPolicy says what is wrong with a text, or what it would change. It stores a text that was checked.
func (v *visit) checkPolicy() error {
	if err := v.needs("storePolicy"); err != nil {
		return err
	}
	text := func(name string) string { return strings.ReplaceAll(v.r.PostFormValue(name), "\r\n", "\n") } // browsers end lines so
	source := text("source")
	store := text("store") != "" && text("checked") == source
	stored, err := v.api.StorePolicy(v.r.Context(), &client.StorePolicyParams{DryRun: !store}, client.StorePolicyBody{Source: source})
	form := policyForm{Source: source}
	form.Problem, _ = errors.AsType[*client.Problem](err) // whatever it is, the text is not to be lost
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
	Against int // the version; 0: there is none
	Diff    []diffLine
}

// compared compares a policy with a version, or with the active one, which is 0.
func (v *visit) compared(against int, p *client.PolicyVersion) (c comparison, err error) {
	if against == 0 {
		list, err := v.api.ListPolicies(v.r.Context(), &client.ListPoliciesParams{Limit: 1})
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

// policyActivation is the page between a version and its activation.
type policyActivation struct {
	*client.PolicyVersion        // as a dry run says
	comparison                   // what changes for new orders
	ETag                  string // of what the person has seen
	Fields                []field
	Changed               bool // another version was activated since the person looked
}

func (v *visit) activation() error { return v.showActivation(false) }

func (v *visit) showActivation(changed bool) error {
	var answer http.Response
	p, err := v.readPolicy("version", client.WithResponse(&answer))
	if err != nil {
		return err
	}
	tried, err := v.api.ActivatePolicy(v.r.Context(), p.Version, &client.ActivatePolicyParams{DryRun: true}, client.ActivatePolicyBody{})
	if err != nil {
		return err
	}
	data := policyActivation{PolicyVersion: tried, ETag: answer.Header.Get("ETag"), Changed: changed,
		Fields: []field{{Name: "reason", Label: "Reason", Help: "Kept with the activation.", Value: v.r.PostForm.Get("reason")}}}
	if data.comparison, err = v.compared(0, &client.PolicyVersion{Source: p.Source}); err != nil {
		return err
	}
	status := http.StatusOK
	if changed {
		status = http.StatusPreconditionFailed
	}
	return v.showAs(status, "policy_activate", page{Title: "Activate policy " + strconv.Itoa(p.Version), Data: data})
}

func (v *visit) activate() error {
	if err := v.needs("activatePolicy"); err != nil {
		return err
	}
	p, err := v.readPolicy("version")
	if err != nil {
		return err
	}
	seen := client.ActivatePolicyParams{IfMatch: v.r.PostFormValue("etag")}
	_, err = v.api.ActivatePolicy(v.r.Context(), p.Version, &seen, client.ActivatePolicyBody{Reason: v.r.PostFormValue("reason")})
	if hasStatus(err, http.StatusPreconditionFailed) {
		return v.showActivation(true)
	}
	return v.backTo(policyURL(p.Version))(nil, err)
}

// policyURL is the page of a version.
func policyURL(version int) string {
	return address("/console/policy", url.Values{"version": {strconv.Itoa(version)}})
}

// diffLine is a line of a comparison. Its first character says what becomes of it, so that nobody needs colours.
type diffLine struct {
	Kind string // added, removed, place or same
	Text string
}

// diff compares the texts of two policies. There are no lines where nothing has changed.
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
