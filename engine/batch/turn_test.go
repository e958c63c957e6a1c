package batch_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pawl/engine/batch"
	"pawl/test/assert"
)

// Three queues that share a turn flush one batch at a time, in the order in which they got items, and what comes meanwhile
// joins the next batch.
func TestTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turn, begin := batch.NewTurn(), time.Now()
		var flushed []string
		var queues [3]*batch.Queue[int]
		for i := range queues {
			queues[i] = batch.New(batch.Options{Turn: turn}, func(items []int) {
				flushed = append(flushed, fmt.Sprint(time.Since(begin), " ", i, items))
				<-time.After(time.Millisecond)
			})
			go queues[i].Run(t.Context())
		}
		for _, i := range []int{2, 0, 1, 2, 0} {
			queues[i].Add(len(flushed))
			synctest.Wait()
		}
		<-time.After(time.Second)
		assert.Equal(t, flushed, []string{"0s 2 [0]", "1ms 0 [1 1]", "2ms 1 [1]", "3ms 2 [1]"})
	})
}

func TestLateFlushLosesItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turn := batch.NewTurn()
		late := batch.New(batch.Options{Turn: turn}, func([]int) { <-t.Context().Done() })
		flushed := make(chan time.Duration, 1)
		begin := time.Now()
		other := batch.New(batch.Options{Turn: turn}, func([]int) { flushed <- time.Since(begin) })
		go late.Run(t.Context())
		go other.Run(t.Context())
		late.Add(1)
		synctest.Wait()
		other.Add(1)
		waited := <-flushed
		assert.True(t, waited <= 20*time.Millisecond, "the other queue's batch was flushed after", waited)
	})
}

// No turn is lost. Items go round two queues whose flushes take no time,
// so that a flush can begin and end while Add is under way.
func TestNoTurnIsLost(t *testing.T) {
	t.Parallel()
	const items = 50_000
	turn := batch.NewTurn()
	var flushed atomic.Int64
	all := make(chan struct{})
	var queues [2]*batch.Queue[int]
	for i := range queues {
		queues[i] = batch.New(batch.Options{Turn: turn}, func(batch []int) {
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
			now := flushed.Load()
			assert.Require(t, now != before, now, "of", items, "items were flushed", queues[0].Len(), "and", queues[1].Len(), "wait")
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
		queue := batch.New(batch.Options{Most: 1, Turn: batch.NewTurn()}, func([]int) { began <- struct{}{}; <-ctx.Done() })
		queue.Add(1, 2, 3, 4, 5, 6)
		ended := make(chan struct{})
		go func() { queue.Run(ctx); close(ended) }()
		<-began
		cancel()
		for range 5 {
			<-began
			queue.Add(7) // Add does not block
		}
		<-ended
	}
}
