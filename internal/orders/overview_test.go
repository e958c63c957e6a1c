package orders

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"pawl/db"
	"pawl/fsm"
	"pawl/test/assert"
)

// However many callers there are, and however long the read takes, one read serves them all for a while.
func TestReadsAreShared(t *testing.T) {
	t.Parallel()
	never := func(func()) { t.Error("read in the background") }
	var kept shared[int64]
	var reads atomic.Int64
	slow, release := make(chan struct{}), make(chan struct{})
	read := func(ctx context.Context, _ int32) (int64, bool, error) {
		close(slow)
		<-release
		return reads.Add(1), false, ctx.Err()
	}
	gone, leave := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			n, err := kept.get(gone, never, read)
			assert.True(t, n == 1 && err == nil, n, err)
		})
	}
	<-slow
	leave() // the others still wait for it
	close(release)
	callers.Wait()
	n, err := kept.get(t.Context(), never, read)
	assert.True(t, n == 1 && err == nil, n, err)
	var failing shared[int64]
	broken := errors.New("broken")
	for range 2 {
		assert.ErrorIs(t, assert.Err(failing.get(t.Context(), never, func(context.Context, int32) (int64, bool, error) { reads.Add(1); return 0, false, broken })), broken)
	}
	assert.Equal(t, reads.Load(), 3, "reads: what failed is not kept")
}

// A caller gets what counts less far, or the last result of a read that takes long, while it is read to the end.
func TestNobodyWaitsForASlowRead(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var kept shared[int32]
	var background int
	get := func(stored int32) int32 {
		value, err := kept.get(t.Context(), func(do func()) { background++; do() }, func(_ context.Context, most int32) (int32, bool, error) {
			return min(stored, most), stored >= most, nil
		})
		assert.NoError(t, err)
		return value
	}
	keep := func(until, stale time.Duration) { kept.last.Store(&result[int32]{1, now.Add(until), now.Add(stale)}) }
	assert.Equal(t, get(5000), FirstMost, "at first")
	assert.Equal(t, get(5000), 5000, "then all of them")
	assert.Equal(t, background, 1, "reads")
	keep(-time.Second, time.Hour)
	assert.Equal(t, get(2), 1, "the last one")
	assert.Equal(t, get(2), 2, "the next one")
	assert.Equal(t, background, 2, "reads")
	keep(-time.Hour, -time.Second)
	assert.Equal(t, get(20_000), FirstMost, "instead of one that is too old")
	assert.Equal(t, get(20_000), CountsMost, "as far as is counted")
	assert.Equal(t, background, 3, "reads")
	keep(-time.Second, -time.Second)
	assert.Equal(t, get(5000), 5000, "of a read that was quick")
	assert.Equal(t, get(5000), 5000, "again")
	assert.Equal(t, background, 3, "reads")
}

// TestMarkReplaced: each younger replica takes the place of one that was lost and has no orders left, unless both have run for long.
func TestMarkReplaced(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return time.Unix(int64(60*minute), 0) }
	for want, starts := range map[string][]int{"": {10, 13}, "a": {0, 15}, "b": {12, 0}, "ba": {0, 9}} {
		var replicas []db.ReplicaReportsRow
		for _, start := range starts {
			replicas = append(replicas, db.ReplicaReportsRow{Since: at(start)})
		}
		names, all := "", []LostReplica{{Name: "a", At: at(10), since: at(5)}, {Name: "b", At: at(12), since: at(12)}}
		markReplaced(all, replicas)
		for _, lost := range all {
			if !lost.replaced {
				names += lost.Name
			}
		}
		assert.Equal(t, want, names, "lost")
	}
	one, next := []LostReplica{{At: at(10), Orders: 1}}, []db.ReplicaReportsRow{{Since: at(10)}}
	markReplaced(one, next)
	assert.True(t, !one[0].replaced, "its order is not taken over yet")
	one = []LostReplica{{Name: "a", replaced: true}, {Name: "b", owner: uuid.Max}}
	v := Overview{Lost: one, Ended: []Outage{{Step: fsm.Charge}, {Replica: uuid.Nil.String(), Outcomes: Outcomes{Waited: 2}},
		{Replica: uuid.Max.String(), Outcomes: Outcomes{Waited: 3}}, {Replica: uuid.NewString()}}}
	v.placeTakeOvers()
	assert.True(t, len(v.Lost) == 1 && v.Lost[0].TakenOver.Waited == 3 && len(v.Ended) == 2 && v.Ended[1].Replica == "a" && v.Ended[1].Waited == 2, v.Lost, v.Ended)
}

// TestJoined: replicas see parts of an outage, and the same orders wait at several of them.
func TestJoined(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return time.Unix(int64(60*minute), 0) }
	var text string
	for _, o := range joined([]Outage{
		{Step: fsm.Charge, Since: at(2), Until: at(7), Orders: []int64{1, 3}, Host: "pay.example", Failure: "timeout"},
		{Step: fsm.Charge, Since: at(1), Until: at(6), Orders: []int64{2, 3}, Failure: "HTTP 500"}, {Step: fsm.Confirm, Since: at(1), Until: at(2)},
		{Step: fsm.Reserve, Since: at(4), Until: at(5), Host: "pay.example", Failure: "HTTP 503"}, {Step: fsm.Confirm, Since: at(4), Until: at(5)},
		{Step: fsm.Confirm, Since: at(0), Until: at(1)}, {Step: fsm.Charge, Route: "cards", Host: "pay.example", Since: at(0), Until: at(0)},
	}) {
		text += fmt.Sprintln(o.Steps, o.Since.Unix()/60, o.Until.Unix()/60, o.Orders, o.Failure)
	}
	assert.Equal(t, text, "[charge reserve] 1 7 [1 2 3] charge: timeout; reserve: HTTP 503\n[confirm] 4 5 [] \n[confirm] 0 2 [] \n[charge cards] 0 0 [] \n", "outages")
	v := Overview{Steps: []ProviderStep{{Step: fsm.Charge, FailingSince: new(at(1))}}}
	assert.True(t, v.goesOn(&Outage{Step: fsm.Charge, Until: at(2)}) && !v.goesOn(&Outage{Step: fsm.Charge, Until: at(1)}), "an outage since which a step fails is not over")
}
