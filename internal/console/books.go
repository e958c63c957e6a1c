package console

import (
	"fmt"
	"net/url"

	"pawl/client"
)

// booksPage is how far the proof of the books is, and what the last one found.
type booksPage struct {
	*client.Verification
	Wrong []client.VerificationCheck // violated, warnings last
	Right []client.VerificationCheck
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
	v.live = "/console/live?books=" + url.QueryEscape(proofStep(state))
	return v.show("books", page{Title: "Books", Data: p})
}

func (v *visit) proveBooks() error {
	return v.backTo("/console/books")(v.api.StartVerification(v.r.Context()))
}

// proofStep is how far a proof has come.
func proofStep(v *client.Verification) string {
	return fmt.Sprint(v.StartedAt.UnixMicro(), " ", v.State, " ", v.Done)
}
