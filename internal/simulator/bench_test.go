package simulator_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"pawl/internal/simulator"
)

// BenchmarkCharge is charges from many callers at a time, each on disk before its answer,
// without the network.
func BenchmarkCharge(b *testing.B) {
	sim, err := simulator.Open(simulator.Config{File: b.TempDir() + "/simulator.jsonl"})
	if err != nil {
		b.Fatal(err)
	}
	var number atomic.Int64
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			key := fmt.Sprint(number.Add(1))
			if got := ask(b.Context(), sim, call{key: key, order: key}); got[:4] != "200 " {
				b.Errorf("answered %s", got)
			}
		}
	})
	if err := sim.Close(); err != nil {
		b.Error(err)
	}
}
