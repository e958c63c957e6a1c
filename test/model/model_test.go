package model_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"pawl/fsm"
)

// What the models promise, in their words.
const (
	nothingLive   = "nothing of a failed or canceled order is live, then or later"
	whole         = "completed is charged, reserved and confirmed"
	charged       = "confirming is charged and reserved"
	single        = "never two live charges"
	stopped       = "what was to stop is not completed"
	oneDriver     = "one fence, one driver"
	ownerWrites   = "who writes owns the order"
	committedOnce = "a call is committed once"
	callCommitted = "no call that was not committed before"
	noWait        = "an answered order does not wait for its time-out"
	firstAnswer   = "the first answer is used, once"
	inTheBooks    = "what is charged in the books is charged"
	sameUndo      = "an undo says the same on every call"
	eventsInOrder = "each event once, and in the order of seq"
	noEventLost   = "no event is left out"
	atDisk        = "what is told is at the disk"
	oneOrder      = "a number is that of one order"
	namesStored   = "no order names one that is lost"
)

// safe variants hold. Of those with drivers, each statement of theirs is come to: what
// holds does not hold because nothing happens.
var safe = []struct{ name, model, switches, drivers string }{
	{"saga", "saga", "", "worker people network"},
	{"saga, refusals are remembered and settle all", "saga", "KEEPS REFUSALCLEARS", ""},
	{"saga, refusals are forgotten and settle all, old keys are voided, two charges", "saga", "CHARGEONLY REFUSALCLEARS", ""},
	{"lease", "lease", "", "people"},
	{"callback, second look and sweep", "callback", "", "replica callback sweep"},
	{"callback, seq raised", "callback", "RAISESEQ", "replica callback"},
	{"retention", "retention", "", "driver people time"},
	{"feed", "feed", "", "writer relay"},
	{"commit", "commit", "", "server replica caller reader relay"},
	{"retention, the keys of what stands are never forgotten", "retention", "KEEPSDONE DOUBTAGE", ""},
}

// weakened variants break at least one of the promises named. The first of each model is checked every time, the others where
// PAWL_FAULT_ROUNDS is set: they are about the models, not about the program.
var weakened = []struct {
	model, switches string
	breaks          []string
}{
	{"saga", "NOFENCE", []string{nothingLive, whole, charged, single}},
	{"saga", "EFFECTFIRST", []string{charged, whole}},
	{"saga", "NOTOMB", []string{nothingLive}},
	{"saga", "CALLKEY", []string{single, whole, charged}},
	{"saga", "ONEKEY", []string{nothingLive}},
	{"saga", "DOUBTASFAILED", []string{nothingLive}},
	{"saga", "STOPLOST", []string{stopped}},
	{"saga", "RETRYCLEARS", []string{nothingLive}},
	{"saga", "REFUSALCLEARS", []string{nothingLive}},
	{"saga", "CHARGEONLY REFUSALCLEARS NOVOID", []string{single}},
	{"lease", "NOOWNER", []string{oneDriver}},
	{"lease", "NOFENCE", []string{ownerWrites}},
	{"lease", "NOSEQ", []string{committedOnce}},
	{"lease", "SEQTELLS", []string{callCommitted}},
	{"lease", "BLIND", []string{oneDriver, ownerWrites}},
	{"callback", "NOSECONDLOOK", []string{noWait}},
	{"callback", "NOTOKENFIRST", []string{noWait}},
	{"callback", "NOSWEEP", []string{noWait}},
	{"callback", "SKIPLOCKED", []string{noWait}},
	{"callback", "ONESTATEMENT", []string{noWait}},
	{"callback", "ONLYCALLBACK", []string{noWait}},
	{"callback", "NOTSINGLEUSE", []string{firstAnswer}},
	{"feed", "PLAIN", []string{eventsInOrder}},
	{"feed", "NOHORIZON", []string{noEventLost}},
	{"feed", "FORGETS", []string{eventsInOrder}},
	{"feed", "BLIND", []string{eventsInOrder}},
	{"commit", "NOMARKER", []string{oneOrder}},
	{"commit", "UNCOMPARED", []string{oneOrder}},
	{"commit", "UNCOMPAREDCALL", []string{oneOrder}},
	{"commit", "NOSKIP", []string{oneOrder}},
	{"commit", "EARLYSKIP", []string{oneOrder}},
	{"commit", "EARLYANSWER", []string{atDisk}},
	{"commit", "EARLY202", []string{atDisk}},
	{"commit", "EARLY409", []string{atDisk}},
	{"commit", "BLIND202", []string{atDisk}},
	{"commit", "OTHER202", []string{atDisk}},
	{"commit", "EARLYREAD", []string{atDisk}},
	{"commit", "EARLYCALL", []string{atDisk}},
	{"commit", "EARLYEVENT", []string{atDisk}},
	{"commit", "NAMESLOST", []string{namesStored}},
	{"commit", "REMEMBERS", []string{atDisk}},
	{"retention", "SENDSOLD", []string{single, inTheBooks}},
	{"retention", "UNDOESOLD", []string{nothingLive}},
	{"retention", "DOUBTAGE", []string{nothingLive}},
	{"retention", "LATENAME", []string{sameUndo}},
	{"retention", "NOMARGIN", []string{single, nothingLive, inTheBooks}},
	{"retention", "UNSEENCLEARS", []string{nothingLive, single}},
	{"retention", "UNSEENSENDS", []string{single, inTheBooks}},
	{"retention", "PAUSECLEARS", []string{nothingLive, single}},
	{"retention", "PAUSEYOUNG", []string{single, inTheBooks, nothingLive}},
	{"retention", "RETRYYOUNG", []string{single, inTheBooks, nothingLive}},
}

func TestProtocolHolds(t *testing.T) {
	t.Parallel()
	for _, variant := range safe {
		t.Run(variant.name, func(t *testing.T) {
			t.Parallel()
			found := check(t, variant.model, strings.Fields(variant.switches)...)
			if !found.clean || !found.complete {
				t.Errorf("violated: %q, search complete: %t", found.violated, found.complete)
			}
			for _, driver := range strings.Fields(variant.drivers) {
				for _, statement := range found.unreached[driver] {
					t.Errorf("%s never comes to %s", driver, statement)
				}
			}
		})
	}
}

func TestWithoutSafeguardItBreaks(t *testing.T) {
	t.Parallel()
	checked := map[string]bool{}
	for _, variant := range weakened {
		if checked[variant.model] && os.Getenv("PAWL_FAULT_ROUNDS") == "" {
			continue
		}
		checked[variant.model] = true
		t.Run(variant.model+" "+variant.switches, func(t *testing.T) {
			t.Parallel()
			found := check(t, variant.model, strings.Fields(variant.switches)...)
			if found.clean {
				t.Fatalf("nothing is violated in %s states", found.states)
			}
			for _, promise := range found.violated {
				if !slices.Contains(variant.breaks, promise) {
					t.Errorf("violated: %s; want %q", promise, variant.breaks)
				}
			}
			if len(found.violated) == 0 {
				t.Error("an error that is no promise broken")
			}
		})
	}
}

// An edge the machine gets and the model does not is not checked.
func TestSagaWalksEveryEdge(t *testing.T) {
	t.Parallel()
	walked := check(t, "saga", "WALK", "CHARGEONLY").walked
	for _, e := range fsm.Edges() {
		if !walked[numbered(e)] {
			t.Errorf("the model never goes from %s to %s", e.From, e.To)
		}
		delete(walked, numbered(e))
	}
	if len(walked) > 0 {
		t.Errorf("the model goes where the machine does not: %q", slices.Sorted(maps.Keys(walked)))
	}
}
