package cli

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
)

// collectGarbage says how much garbage there may be. Mostly the heap is a few megabytes: to collect it less often costs little
// memory and saves a good part of the service's CPU time. What thousands hold who listen to events is not little.
func collectGarbage(crowd bool) {
	switch {
	case os.Getenv("GOGC") != "":
	case crowd:
		debug.SetGCPercent(50)
	default:
		debug.SetGCPercent(200)
	}
}

// processors decides whether Go runs the service on one processor or on all of them. As long as one is idle, Go wakes a thread for
// each goroutine that can go on. A lone order is a dozen goroutines one after the other: each time, a thread is woken, finds
// nothing to do and sleeps again, which took a third of the service's CPU time (https://go.dev/issue/54622). So one
// processor has to do until it is busy for half of its time, when goroutines begin to wait for each other.
type processors struct {
	all   bool
	since time.Time
	pause time.Duration // before one is tried again; it doubles where one does not suffice
}

const (
	processorsLook   = 100 * time.Millisecond
	processorsBusy   = 0.5
	processorsSettle = time.Second // one that has sufficed for as long has sufficed
	processorsRest   = time.Minute // the longest pause
)

// change takes how many processors the service kept busy since the last look, and reports whether it changes from one to
// all, or from all to one.
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

// useProcessors lets the service have as many processors as it needs, until stop, which waits. Whoever sets GOMAXPROCS decides.
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

// processorTime is how long this process has kept processors busy.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail: both arguments are right
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
