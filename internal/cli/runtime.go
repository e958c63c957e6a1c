package cli

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
)

// collectGarbage sets how much garbage the heap may have. It is usually a few megabytes, so collecting less often costs
// little memory and saves much CPU time. Thousands of listeners to events make it large.
func collectGarbage(crowd bool) {
	switch {
	case os.Getenv("GOGC") != "":
	case crowd:
		debug.SetGCPercent(50)
	default:
		debug.SetGCPercent(200)
	}
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

// useProcessors adapts the number of processors until stop, which waits. With GOMAXPROCS it does nothing.
func useProcessors() (stop func()) {
	if os.Getenv("GOMAXPROCS") != "" {
		return func() {}
	}
	var ended sync.WaitGroup
	end := make(chan struct{})
	ended.Go(func() {
		look := time.NewTicker(processorsLook)
		defer look.Stop()
		defer runtime.SetDefaultGOMAXPROCS()
		p, before, usedBefore := processors{all: true}, time.Now(), processorTime()
		for {
			select {
			case <-end:
				return
			case <-look.C:
			}
			now, used := time.Now(), processorTime()
			if p.change(float64(used-usedBefore)/float64(now.Sub(before)), now) {
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
