package books

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Verification runs Verify in the background of a service, one at a time, and keeps the last result in memory. Its
// methods are safe for concurrent use.
type Verification struct {
	pool Database
	cfg  VerificationConfig

	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup

	mu    sync.Mutex // guards state
	state VerificationState
}

// VerificationConfig configures a Verification.
type VerificationConfig struct {
	Options Options          // without Background and Progress
	Now     func() time.Time // nil: the clock of this machine
	Log     *slog.Logger     // nil: discarded
}

// VerificationState is the progress of the last verification, and the report of the last complete one.
type VerificationState struct {
	Running     bool
	StartedAt   time.Time // zero: none was started
	StartedBy   string
	Done, Total int64 // see Options.Progress
	Failed      bool  // it could not read everything, which says nothing about the books

	Report     *Report // nil: none was complete
	ReportedAt time.Time
}

// ErrStopped is returned by Start after Stop.
var ErrStopped = errors.New("verification was stopped")

// NewVerification returns a verification that does nothing until Start.
func NewVerification(pool Database, cfg VerificationConfig) *Verification {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	v := &Verification{pool: pool, cfg: cfg}
	v.life, v.end = context.WithCancel(context.Background())
	return v
}

// Start begins a verification on behalf of a principal, unless one is running, and returns its state. Errors:
// ErrStopped.
func (v *Verification) Start(by string) (VerificationState, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.life.Err() != nil {
		return v.state, ErrStopped
	}
	if !v.state.Running {
		last := v.state
		v.state = VerificationState{Running: true, StartedAt: v.cfg.Now(), StartedBy: by, Report: last.Report, ReportedAt: last.ReportedAt}
		v.running.Go(v.run)
	}
	return v.state, nil
}

// State returns the current state. Its report must not be changed.
func (v *Verification) State() VerificationState {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state
}

// Stop ends a running verification, and waits for it. Start then returns ErrStopped.
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
