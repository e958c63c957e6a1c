package fsm

import (
	"context"
	"testing"

	"github.com/looplab/fsm"
	"pgregory.net/rapid"
)

// The library walks along events, the table is asked for pairs of states. Whatever
// comes, both must stand at the same place, and refuse the same.
func TestWalks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		library := fsm.NewFSM(string(Pending), Lifecycle, nil)
		at := Pending
		for range rapid.IntRange(1, 60).Draw(t, "length") {
			event := rapid.SampledFrom(events()).Draw(t, "event")
			to, legal := follows(at, event)
			if can := library.Can(string(event)); can != legal {
				t.Fatalf("%s in %s: library %v, table %v", event, at, can, legal)
			}
			err := library.Event(context.Background(), string(event)) //nolint:usetesting // rapid's own t
			if (err == nil) != legal {
				t.Fatalf("%s in %s: %v", event, at, err)
			}
			if legal {
				at = to
			}
			if State(library.Current()) != at {
				t.Fatalf("%s: library at %s, table at %s", event, library.Current(), at)
			}
		}
	})
}

func events() (out []Event) {
	for _, desc := range Lifecycle {
		out = append(out, Event(desc.Name))
	}
	return out
}

// follows finds where an event leads, by the pairs alone.
func follows(from State, event Event) (State, bool) {
	for _, to := range States() {
		if e, ok := EventOf(from, to); ok && e == event {
			return to, true
		}
	}
	return "", false
}
