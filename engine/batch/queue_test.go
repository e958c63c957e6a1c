package batch_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pawl/engine/batch"
	"pawl/test/assert"
)

// started is a queue whose batches are kept with the time at which each was flushed.
func started(t *testing.T, options batch.Options, takes time.Duration) (q *batch.Queue[int], flushed func() []string) {
	t.Helper()
	var batches []string
	start := time.Now()
	q = batch.New(options, func(items []int) {
		batches = append(batches, fmt.Sprint(time.Since(start), items))
		select {
		case <-time.After(takes):
		case <-t.Context().Done():
		}
	})
	go q.Run(t.Context())
	return q, func() []string {
		t.Helper()
		synctest.Wait()
		return batches
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pace = 20 * time.Millisecond
		q, flushed := started(t, batch.Options{Pace: func() time.Duration { return pace }}, time.Millisecond)
		q.Add(1)
		<-time.After(5 * time.Millisecond)
		q.Add(2)
		<-time.After(5 * time.Millisecond)
		q.Add(3)
		<-time.After(time.Second)
		q.Add(4)
		assert.Equal(t, flushed(), []string{"0s [1]", "20ms [2 3]", "1.01s [4]"}, "flushed")
	})
}

func TestBehind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options batch.Options
		takes   time.Duration
		want    bool
	}{
		"a queue that moves":          {batch.Options{Most: 1}, time.Second, true},
		"a flush that hangs":          {batch.Options{Most: 1}, time.Hour, false},
		"a queue that is no backlog":  {batch.Options{Most: 1, NoBacklog: true}, time.Second, false},
		"a queue that takes them all": {batch.Options{}, time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q, _ := started(t, c.options, c.takes)
				for i := range 20 {
					q.Add(i)
				}
				<-time.After(time.Nanosecond)
				q.Add(20) // waits until those before it are through
				<-time.After(10*time.Second + time.Nanosecond)
				assert.Equal(t, q.Behind(5*time.Second), c.want)
				assert.True(t, !q.Behind(time.Minute), "nobody has waited for a minute")
			})
		})
	}
}

func TestEndLeavesWhatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		q := batch.New(batch.Options{Pace: func() time.Duration { return time.Hour }}, func([]int) {})
		ran := make(chan struct{})
		go func() { q.Run(ctx); close(ran) }()
		q.Add(1)
		synctest.Wait()
		q.Add(2)
		end()
		<-ran
		assert.Equal(t, q.Len(), 1, "wait")
	})
}

// What comes while a batch commits goes together with the next one.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	commits, done := make(chan struct{}), make(chan struct{})
	queue := batch.New(batch.Options{Most: 3}, func(orders []string) {
		fmt.Println(orders)
		<-commits
	})
	go func() { queue.Run(ctx); close(done) }()

	queue.Add("alone")
	for queue.Len() > 0 {
		<-time.After(time.Millisecond) // until its commit is under way
	}
	queue.Add("one", "two")
	queue.Add("three", "four")
	for range 3 {
		commits <- struct{}{}
	}
	stop()
	<-done
	// Output:
	// [alone]
	// [one two three]
	// [four]
}
