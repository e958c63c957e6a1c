package engine

import (
	"time"

	"pawl/provider"
)

// expired reports whether the key of an attempt was too old to be sent when the attempt
// was committed. now is the time of that statement, as the age of the key is: no clock of
// this machine, nor its sleep, has a part in it.
func (a *attempt) expired(r *run, now time.Time) bool {
	o := &r.order
	if a.operation == provider.Undo && a.generation == o.Generation {
		return r.undo.forgotten(a.lane.cfg, o, o.InDoubtSince, now)
	}
	return a.slot.forgotten(o, now)
}

// stoodStillCode is the code of a call that was not made because it would have come too late.
const stoodStillCode = "stood_still"

// stoodStill reports whether so much time has passed since the attempt was committed that
// its key may be too old by now, whatever its age was then: the process was stopped, or the
// machine slept. The monotonic clock does not see the second and the wall clock may miss
// either, so the one that counts more time is believed. If it is wrong, the call is only
// made a little later, by another attempt.
func (a *attempt) stoodStill() bool {
	now := time.Now()
	return max(now.Sub(a.asked), now.Round(0).Sub(a.asked.Round(0))) > retentionMargin/2
}
