package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

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
