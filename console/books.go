package console

import (
	"fmt"
	"maps"
	"net/url"
	"slices"

	"pawl/client"
)

// booksPage is how far the proof of the books is, and what the last one found.
type booksPage struct {
	*client.Verification
	Wrong    []client.VerificationCheck // violated, warnings last
	Right    []client.VerificationCheck
	Statuses []statusCount
}

type statusCount struct {
	Status string
	Orders int64
}

func (v *visit) showBooks() error {
	state, err := v.api.GetVerification(v.r.Context())
	if err != nil {
		return err
	}
	p := booksPage{Verification: state}
	var warnings []client.VerificationCheck
	for _, check := range state.Report.Checks {
		switch {
		case check.Violations == 0:
			p.Right = append(p.Right, check)
		case check.Warning:
			warnings = append(warnings, check)
		default:
			p.Wrong = append(p.Wrong, check)
		}
	}
	p.Wrong = append(p.Wrong, warnings...)
	for _, status := range slices.Sorted(maps.Keys(state.Report.Orders)) {
		p.Statuses = append(p.Statuses, statusCount{status, state.Report.Orders[status]})
	}
	v.live = "/console/live?books=" + url.QueryEscape(proofStep(state))
	return v.show("books", page{Title: "Books", Data: p})
}

// Reported says whether there is a report.
func (p booksPage) Reported() bool { return !p.Report.FinishedAt.IsZero() }

func (v *visit) proveBooks() error {
	if _, err := v.api.StartVerification(v.r.Context()); err != nil {
		return err
	}
	return v.redirect("/console/books")
}

// proofStep is how far a proof has come.
func proofStep(v *client.Verification) string {
	return fmt.Sprint(v.StartedAt.UnixMicro(), " ", v.State, " ", v.Done)
}
