package batch_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pawl/batch"
)

// circle sends orders round four queues, whose flushes share one core and then wait for their commits.
func circle(t *testing.T, limit *batch.Limit, orders int, commit time.Duration) (flushes, moved *atomic.Int64) {
	t.Helper()
	takes := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-t.Context().Done():
		}
	}
	core := make(chan struct{}, 1)
	random := rand.New(rand.NewPCG(1, 2))
	var queues [4]*batch.Queue[int]
	flushes, moved = new(atomic.Int64), new(atomic.Int64)
	for i := range queues {
		queues[i] = batch.New(batch.Options{Limit: limit}, func(items []int) {
			core <- struct{}{}
			takes(500*time.Microsecond + time.Duration(len(items))*20*time.Microsecond)
			flushes.Add(1)
			moved.Add(int64(len(items)))
			commits := commit/2 + time.Duration(random.Int64N(int64(commit)+1))
			<-core
			takes(commits)
			queues[(i+1)%4].Add(items...)
		})
	}
	for _, q := range queues {
		go q.Run(t.Context())
	}
	for i := range orders {
		queues[i%4].Add(i)
	}
	return flushes, moved
}

// Where the core is what is scarce, one batch at a time is best. Where a commit takes long, the core is idle meanwhile.
func TestLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		orders      int
		commit      time.Duration
		least, most int
	}{
		"the core is scarce": {64, 0, 1, 1},
		"commits take long":  {256, 5 * time.Millisecond, 2, 4},
		"a lone order":       {1, 5 * time.Millisecond, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limit := batch.NewLimit(4)
				flushes, moved := circle(t, limit, c.orders, c.commit)
				<-time.After(time.Minute)
				t.Logf("%d at a time: %d items in %d batches", limit.Allowed(), moved.Load(), flushes.Load())
				if got := limit.Allowed(); got < c.least || got > c.most {
					t.Errorf("%d at a time, want %d to %d", got, c.least, c.most)
				}
			})
		})
	}
}

func TestLateFlushHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limit := batch.NewLimit(2)
		late := batch.New(batch.Options{Limit: limit}, func([]int) { <-t.Context().Done() })
		flushed := make(chan time.Duration, 1)
		begin := time.Now()
		other := batch.New(batch.Options{Limit: limit}, func([]int) { flushed <- time.Since(begin) })
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
