package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"pawl/db"
	"pawl/internal/books"
	"pawl/internal/console"
	"pawl/internal/pg"
	"pawl/internal/simulator"
)

// watched is what the lab shows of the books, and who reads them. They are read while the page is open, and not more often than
// a person can see: then the reading is no part of what the demonstration shows.
type watched struct {
	pool   *pg.Pool
	prove  chan struct{} // wakes the prover
	proven chan struct{} // closed when it has ended

	stopProving context.CancelFunc
	closing     sync.Once

	reading sync.Mutex // one reads at a time
	readAt  time.Time
	books   console.LabBooks

	said  sync.Mutex
	proof console.LabProof
}

const (
	readEvery   = 500 * time.Millisecond
	readLimit   = 3 * time.Second
	proveEvery  = 5 * time.Second
	proveSparse = 4 // times as long as a proof took, at least, until the next one
)

// watch returns the books as they are now, and what was last proved of them.
func (s *stage) watch(ctx context.Context) (console.LabBooks, console.LabProof) {
	select {
	case s.prove <- struct{}{}:
	default: // it knows
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	if time.Since(s.readAt) > readEvery {
		s.books = s.readBooks(ctx)
		s.readAt = time.Now()
	}
	s.said.Lock()
	defer s.said.Unlock()
	return s.books, s.proof
}

// currency of all orders that the callers send.
const currency = "USD"

// readBooks reads both books, for all who look. In between something may be done, so they need not agree.
func (s *stage) readBooks(ctx context.Context) console.LabBooks {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	ours, err := db.New(s.pool).DemoBooks(ctx, currency)
	if err != nil {
		return console.LabBooks{Wrong: "Pawl's: " + err.Error()}
	}
	theirs, err := s.summary(ctx)
	if err != nil {
		return console.LabBooks{Wrong: "the provider's: " + err.Error()}
	}
	kept := "0"
	for _, m := range theirs.Money {
		if m.Currency == currency {
			kept = m.Kept
		}
	}
	line := func(what string, ours, theirs any) console.LabLine {
		return console.LabLine{What: what, Pawl: fmt.Sprint(ours), Provider: fmt.Sprint(theirs)}
	}
	return console.LabBooks{
		Lines: []console.LabLine{
			line("charges that stand", ours.Charges, theirs.Steps["charge"].Live),
			line("reservations that stand", ours.Reservations, theirs.Steps["reserve"].Live),
			line("confirmations", ours.Confirmations, theirs.Steps["confirm"].Live),
			line("refunds that were asked for", ours.Refunds, theirs.Steps["refund"].Live),
			line("money kept, "+currency, ours.Kept, kept),
		},
		Unfinished: ours.Unfinished, Repeated: theirs.DuplicatesSuppressed,
		Twice: theirs.DoubleLive + theirs.Overlaps + theirs.RepeatedEffects,
	}
}

func (s *stage) summary(ctx context.Context) (sum simulator.Summary, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.provider.url+"/summary", nil)
	if err != nil {
		return sum, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return sum, err
	}
	defer response.Body.Close()
	return sum, json.NewDecoder(response.Body).Decode(&sum)
}

// prover proves the books of both sides while the page is open, until ctx ends.
func (s *stage) prover(ctx context.Context) {
	defer close(s.proven)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.prove:
		}
		began := time.Now()
		proof := s.proveOnce(ctx)
		s.said.Lock()
		s.proof = proof
		s.said.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(proveEvery, proveSparse*time.Since(began))):
		}
	}
}

// proveOnce runs pawl verify.
func (s *stage) proveOnce(ctx context.Context) console.LabProof {
	var out bytes.Buffer
	complaint, _, err := s.verify(ctx, &out, "--output", "json")
	if err != nil {
		return console.LabProof{At: time.Now(), Wrong: err.Error()}
	}
	var report books.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		return console.LabProof{At: time.Now(), Wrong: complaint}
	}
	proof := console.LabProof{At: time.Now(), Checks: len(report.Checks)}
	for _, check := range report.Checks {
		if check.Violations > 0 && !check.Warning {
			proof.Broken = append(proof.Broken, fmt.Sprintf("%s %d times it is not so", check.Proves, check.Violations))
		}
	}
	return proof
}

// balance proves the books of both sides and prints what they come to.
func (s *stage) balance() error {
	fmt.Fprintln(s.Out, "\npawl verify compares the books of the service with those of the provider:")
	complaint, holds, err := s.verify(context.Background(), s.Out)
	if err != nil {
		return err
	}
	if !holds {
		return fmt.Errorf("pawl verify: %s", complaint)
	}
	s.provider.end()
	_, summary, _ := strings.Cut(s.provider.out.String(), "\n") // the first line was its address
	fmt.Fprintf(s.Out, "\nthe provider's own count:\n%s\n", strings.TrimPrefix(summary, "\n"))
	if !s.provider.cmd.ProcessState.Success() {
		return errors.New("the provider did something twice")
	}
	c := s.tally.look()
	waiting := ""
	if lost := c.sent - c.completed - c.failed; lost > 0 && s.byHand.Load() {
		waiting = fmt.Sprintf(", %d wait for a person", lost)
	} else if lost > 0 {
		return fmt.Errorf("%d of %d orders did not come to their end", lost, c.sent)
	}
	fmt.Fprintf(s.Out, "%d orders through %d faults: %d completed, %d failed and were undone%s, none is lost, none was charged twice.\n",
		c.sent, s.struck, c.completed, c.failed, waiting)
	fmt.Fprintln(s.Out, "The books balance, on both sides.")
	if s.temporary == "" {
		fmt.Fprintf(s.Out, "The data is kept: pawl verify --data-dir %s\n", s.Dir)
	}
	return nil
}
