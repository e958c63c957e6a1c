package batch_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pawl/engine/batch"
	"pawl/test/assert"
)

// service is four queues whose flushes share one core and then wait for their commits. Its callers send an order, and the
// next one some time after it has passed all four.
func service(t *testing.T, turns *batch.Turns, callers int, commit time.Duration) (batches, moved *atomic.Int64) {
	t.Helper()
	takes := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-t.Context().Done():
		}
	}
	core := make(chan struct{}, 1)
	random := rand.New(rand.NewPCG(1, 2)) // whose turn it is, has the core
	batches, moved = new(atomic.Int64), new(atomic.Int64)
	var queues [4]*batch.Queue[int]
	for i := range queues {
		queues[i] = batch.New(batch.Options{Turns: turns}, func(orders []int) {
			core <- struct{}{}
			takes(200*time.Microsecond + time.Duration(len(orders))*20*time.Microsecond)
			commits := commit/2 + time.Duration(random.Int64N(int64(commit)+1))
			pauses := make([]time.Duration, len(orders))
			for j := range pauses {
				pauses[j] = time.Duration(random.Int64N(int64(2 * time.Millisecond)))
			}
			<-core
			takes(commits)
			batches.Add(1)
			moved.Add(int64(len(orders)))
			if i < 3 {
				queues[i+1].Add(orders...)
				return
			}
			for j, pause := range pauses {
				order := orders[j]
				time.AfterFunc(pause, func() { queues[0].Add(order) })
			}
		})
	}
	for _, q := range queues {
		go q.Run(t.Context())
	}
	for i := range callers {
		queues[0].Add(i)
	}
	return batches, moved
}

// Where the core is what is scarce, batches take turns. Where a commit takes long, they don't: the core is idle meanwhile.
func TestTurns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		callers int
		commit  time.Duration
		atOnce  int
	}{
		"commits are fast":               {64, 100 * time.Microsecond, 1},
		"commits take long":              {64, 5 * time.Millisecond, 4},
		"commits take long, many wait":   {256, 5 * time.Millisecond, 4},
		"one caller, whom nothing stops": {1, time.Millisecond, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				turns := batch.NewTurns()
				batches, moved := service(t, turns, c.callers, c.commit)
				<-time.After(time.Minute)
				t.Logf("%d at once: %d items in %d batches", turns.AtOnce(), moved.Load(), batches.Load())
				assert.Equal(t, turns.AtOnce(), c.atOnce, "at once")
			})
		})
	}
}

func TestLateFlushHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := batch.NewTurns()
		late := batch.New(batch.Options{Turns: turns}, func([]int) { <-t.Context().Done() })
		flushed := make(chan time.Duration, 1)
		begin := time.Now()
		other := batch.New(batch.Options{Turns: turns}, func([]int) { flushed <- time.Since(begin) })
		go late.Run(t.Context())
		go other.Run(t.Context())
		late.Add(1)
		synctest.Wait()
		other.Add(1)
		if waited := <-flushed; waited > 20*time.Millisecond {
			t.Errorf("the other queue's batch was flushed after %s", waited)
		}
	})
}

// After an outage, a batch that hangs is known as late as soon as before.
func TestOutageIsNotUsual(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := batch.NewTurns()
		late := batch.New(batch.Options{Turns: turns}, func(minutes []int) {
			select {
			case <-time.After(time.Duration(minutes[0]) * time.Minute):
			case <-t.Context().Done():
			}
		})
		flushed := make(chan struct{}, 1)
		other := batch.New(batch.Options{Turns: turns}, func([]int) { flushed <- struct{}{} })
		go late.Run(t.Context())
		go other.Run(t.Context())
		<-time.After(60 * time.Millisecond)
		late.Add(0) // ends a window of a trial
		<-time.After(60 * time.Millisecond)
		late.Add(10)
		<-time.After(11 * time.Minute)
		late.Add(60)
		synctest.Wait()
		begin := time.Now()
		other.Add(1)
		<-flushed
		if waited := time.Since(begin); waited > time.Second {
			t.Errorf("the other queue's batch was flushed after %s", waited)
		}
	})
}

// No turn is given for items that have gone already, and none is lost. Items go round two queues whose flushes take no time,
// so that a flush can begin and end while Add is under way.
func TestNoTurnIsLost(t *testing.T) {
	t.Parallel()
	const items = 50_000
	turns := batch.NewTurns()
	var flushed atomic.Int64
	all := make(chan struct{})
	var queues [2]*batch.Queue[int]
	for i := range queues {
		queues[i] = batch.New(batch.Options{Turns: turns}, func(batch []int) {
			for _, item := range batch {
				if flushed.Add(1) == items {
					close(all)
				}
				go queues[1-i].Add(item)
			}
		})
		go queues[i].Run(t.Context())
	}
	for i := range 3 {
		queues[0].Add(i)
	}
	for before := int64(-1); ; {
		select {
		case <-all:
			return
		case <-time.After(10 * time.Second):
			if now := flushed.Load(); now == before {
				t.Fatalf("%d of %d items were flushed; %d and %d wait", now, items, queues[0].Len(), queues[1].Len())
			}
			before = flushed.Load()
		}
	}
}

// Where a batch is left in parts when the context ends, all of them are flushed, and Run returns.
func TestEndWithABacklog(t *testing.T) {
	t.Parallel()
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		began := make(chan struct{}, 6)
		queue := batch.New(batch.Options{Most: 1, Turns: batch.NewTurns()}, func([]int) { began <- struct{}{}; <-ctx.Done() })
		queue.Add(1, 2, 3, 4, 5, 6)
		ended := make(chan struct{})
		go func() { queue.Run(ctx); close(ended) }()
		<-began
		cancel()
		for range 5 {
			<-began
			queue.Add(7) // and nobody who adds something is held up
		}
		<-ended
	}
}
