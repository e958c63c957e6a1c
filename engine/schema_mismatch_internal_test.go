package engine

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// What preparing the statements shows is over as soon as it no longer shows. What it does not show comes again, maybe: the
// engine stands still twice as long each time.
func TestStandstill(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		shown bool
		wants []time.Duration
	}{
		"a column is missing, again and again": {true, []time.Duration{0, 0, 0}},
		"a trigger fails, again and again":     {false, []time.Duration{standMin, 2 * standMin, 4 * standMin}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newSchemaHealth(slog.New(slog.DiscardHandler))
				for _, want := range c.wants {
					f.standStill("move orders", errors.New("undefined column"))
					if c.shown {
						f.failed(ErrNotMigrated)
					}
					f.failed(errors.New("the connection was lost"))
					begin := time.Now()
					for f.goOn() != nil {
						<-time.After(standMin / 10)
					}
					if lasted := time.Since(begin); lasted != want {
						t.Errorf("stood still for %s, want %s", lasted, want)
					}
				}
			})
		})
	}
}
