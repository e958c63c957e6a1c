package engine

import (
	"context"
	"time"
)

const (
	sideCallsAtOnce  = 8                // of a kind
	sideCallPause    = 10 * time.Minute // between two tries at most
	longestSidePause = time.Hour        // unless an answer asks for more, which is heeded up to this
)

// sideCalls makes the calls of one kind that move no order: the undoing of late effects, or refunds. What is due is
// claimed by its row, as orders are, and tried again until there is an answer or a person settles it.
type sideCalls struct {
	engine *Engine
	claim  func(most int32) (calls []func()) // claims what is due; each call is made by itself
	places chan struct{}                     // one for each call under way
	wake                                     // says that something may be due
}

func newSideCalls(e *Engine, claim func(most int32) []func()) *sideCalls {
	return &sideCalls{e, claim, make(chan struct{}, sideCallsAtOnce), newWake()}
}

// loop claims what is due whenever somebody, mostly the timer, says that something is.
func (s *sideCalls) loop(ctx context.Context) {
	for s.heard(ctx) {
		if !s.engine.stopping.Load() {
			s.start()
		}
	}
}

// start begins as many calls as there are places. The engine waits for them when it stops.
func (s *sideCalls) start() {
	free := cap(s.places) - len(s.places)
	if free == 0 {
		return
	}
	for _, call := range s.claim(int32(free)) {
		s.places <- struct{}{}
		s.engine.wg.Go(func() {
			call()
			<-s.places
			s.nudge() // more may be due than there were places for
		})
	}
}

// sidePause is how long to wait after so many tries. An answer may ask for more.
func sidePause(claims int32, after time.Duration) time.Duration {
	return max(min(time.Second<<min(claims, 10), sideCallPause), min(after, longestSidePause))
}
