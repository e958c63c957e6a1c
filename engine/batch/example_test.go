package batch_test

import (
	"context"
	"fmt"
	"time"

	"pawl/engine/batch"
)

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
