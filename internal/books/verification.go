package books

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Verification runs Verify for a service, one at a time and in the background, and keeps what came of the last one in
// memory. Its methods are safe for concurrent use.
type Verification struct {
	pool Database
	cfg  VerificationConfig

	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex // guards state
	state VerificationState
}

// VerificationConfig is what a Verification can be told.
type VerificationConfig struct {
	Options Options          // but for Background and Progress, which are its own
	Now     func() time.Time // nil: the clock of this machine
	Log     *slog.Logger     // logs the end of each verification; nil: no log
}

// VerificationState is how far the last verification is, and what came of the last one that reached the end.
type VerificationState struct {
	Running     bool
	StartedAt   time.Time // zero: none was started
	StartedBy   string
	Done, Total int64 // how much was read of how much; see Options.Progress
	Failed      bool  // it could not read everything, and says nothing about the books

	Report     *Report // nil: none has reached the end
	ReportedAt time.Time
}

// ErrStopped: the service is shutting down, and starts no verification any more.
var ErrStopped = errors.New("verification was stopped")

// NewVerification returns one that does nothing until Start.
func NewVerification(pool Database, cfg VerificationConfig) *Verification {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	v := &Verification{pool: pool, cfg: cfg}
	v.life, v.end = context.WithCancel(context.Background())
	return v
}

// Start begins a verification on behalf of a principal, unless one is running, and returns the state of it. Errors: ErrStopped.
func (v *Verification) Start(by string) (VerificationState, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.life.Err() != nil {
		return v.state, ErrStopped
	}
	if !v.state.Running {
		v.state = VerificationState{Running: true, StartedAt: v.cfg.Now(), StartedBy: by, Report: v.state.Report, ReportedAt: v.state.ReportedAt}
		v.running.Go(v.run)
	}
	return v.state, nil
}

// State returns how far the last one is. Its report must not be changed.
func (v *Verification) State() VerificationState {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state
}

// Stop ends the one that is running, and waits for it. None is started afterwards.
func (v *Verification) Stop() {
	v.mu.Lock()
	v.end()
	v.mu.Unlock()
	v.running.Wait()
}

func (v *Verification) run() {
	options := v.cfg.Options
	options.Background, options.Progress = true, v.progress
	report, err := Verify(v.life, v.pool, options)
	switch {
	case err == nil && report.OK():
		v.cfg.Log.Info("the books are right", "seconds", report.Seconds)
	case err == nil:
		v.cfg.Log.Error("the books are wrong", "checks", report.wrong())
	case v.life.Err() == nil:
		v.cfg.Log.Error("verify books", "error", err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.state.Running, v.state.Failed = false, err != nil
	if err == nil {
		v.state.Report, v.state.ReportedAt = &report, v.cfg.Now()
	}
}

func (v *Verification) progress(done, total int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.state.Done, v.state.Total = done, total
}
