package console

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	"pawl/client"
)

func (c *console) booksRoutes() {
	c.get("/console/books", (*visit).showBooks)
	c.post("/console/books", (*visit).proveBooks)
}

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
	return v.show("books", page{Title: "Books", Data: p, Pokes: "/console/live?books=" + url.QueryEscape(proofStep(state))})
}

// Reported says whether there is a report.
func (p booksPage) Reported() bool { return !p.Report.FinishedAt.IsZero() }

func (v *visit) proveBooks() error {
	if _, err := v.api.StartVerification(v.r.Context()); err != nil {
		return err
	}
	return v.redirect("/console/books")
}

// proofSteps is changes for the page of the books, which are no events.
func (v *visit) proofSteps() func(context.Context) (bool, error) {
	last := v.query("books")
	return func(ctx context.Context) (bool, error) {
		for range 5 {
			now, err := v.api.GetVerification(ctx)
			if err != nil {
				return false, err
			}
			if step := proofStep(now); step != last {
				last = step
				return true, nil
			}
			if now.State == client.VerificationStateRunning {
				return false, nil // it is asked again in a second
			}
			select {
			case <-ctx.Done():
				return false, ctx.Err()
			case <-time.After(lookEvery):
			}
		}
		return false, nil
	}
}

// proofStep is how far a proof has come.
func proofStep(v *client.Verification) string {
	return fmt.Sprint(v.StartedAt.UnixMicro(), " ", v.State, " ", v.Done)
}

// lookEvery is how long the page of the books waits between two looks whether somebody has had a proof started.
const lookEvery = 5 * time.Second
