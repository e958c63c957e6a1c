package cli

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"syscall"
	"time"
)

// garbagePercent is how much garbage there may be, in percent of what is live (runtime/debug.SetGCPercent): twice as much
// while that is little, because it saves much CPU time, then 48 MiB, and at least a quarter.
func garbagePercent(live uint64) int {
	const enough = 48 << 20
	return int(min(max(100*enough/max(live, 1), 25), 200))
}

// collectGarbage adapts the amount of garbage to a heap that has grown or shrunk by a fifth, and returns the percent in use.
func collectGarbage(percent int) int {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}
	metrics.Read(live)
	wanted := garbagePercent(live[0].Value.Uint64() + live[1].Value.Uint64())
	if 5*max(wanted, percent) > 6*min(wanted, percent) {
		debug.SetGCPercent(wanted)
		return wanted
	}
	return percent
}

// processors decides whether Go runs on one processor or on all. While a processor is idle, Go wakes a thread for each
// goroutine that becomes ready. A single order is a dozen goroutines one after the other, and each woken thread finds
// no work and sleeps again, which took a third of the CPU time (https://go.dev/issue/54622). So the service uses one
// processor until it is busy half of the time, when goroutines begin to wait for each other.
type processors struct {
	all   bool
	since time.Time
	pause time.Duration // until one is tried again; doubles while one is not enough
}

const (
	processorsLook   = 100 * time.Millisecond
	processorsBusy   = 0.5
	processorsSettle = time.Second // how long one must be enough to count as enough
	processorsRest   = time.Minute // the longest pause
)

// change takes how many processors were busy since the last call, and reports whether to switch between one and all.
func (p *processors) change(busy float64, now time.Time) bool {
	switch {
	case !p.all && busy > processorsBusy && now.Sub(p.since) > processorsSettle:
		p.pause = processorsSettle
	case !p.all && busy > processorsBusy:
		p.pause = min(max(2*p.pause, processorsSettle), processorsRest)
	case p.all && busy < 2*processorsBusy && now.Sub(p.since) >= p.pause:
	default:
		return false
	}
	p.all, p.since = !p.all, now
	return true
}

// tuneRuntime adapts the number of processors and the amount of garbage until stop, which waits. What GOMAXPROCS or GOGC
// sets stays.
func tuneRuntime() (stop func()) {
	var ended sync.WaitGroup
	end := make(chan struct{})
	ended.Go(func() {
		look := time.NewTicker(processorsLook)
		defer look.Stop()
		adaptProcessors, adaptGarbage := os.Getenv("GOMAXPROCS") == "", os.Getenv("GOGC") == ""
		if adaptProcessors {
			defer runtime.SetDefaultGOMAXPROCS()
		}
		p, percent, before, usedBefore := processors{all: true}, 100, time.Now(), processorTime()
		for {
			select {
			case <-end:
				return
			case <-look.C:
			}
			if adaptGarbage {
				percent = collectGarbage(percent)
			}
			now, used := time.Now(), processorTime()
			if adaptProcessors && p.change(float64(used-usedBefore)/float64(now.Sub(before)), now) {
				if p.all {
					runtime.SetDefaultGOMAXPROCS()
				} else {
					runtime.GOMAXPROCS(1)
				}
			}
			before, usedBefore = now, used
		}
	})
	return func() { close(end); ended.Wait() }
}

func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // can't fail with these arguments
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
