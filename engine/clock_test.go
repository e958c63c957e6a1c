package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"pawl/fsm"
	"pawl/internal/provider"
)

func TestClockGoesByTheDatabase(t *testing.T) {
	t.Parallel()
	e := &Engine{}
	near := func(want time.Time) {
		t.Helper()
		if off := e.Now().Sub(want); off < 0 || off > time.Minute {
			t.Errorf("the clock is off by %s", off)
		}
	}
	database := time.Now().Round(0).Add(-300 * time.Hour)
	e.tickOn(database)
	near(database)
	e.tickOn(database.Add(-time.Hour)) // it waited for an hour
	near(database)
	e.tickOn(database.Add(time.Hour))
	near(database.Add(time.Hour))
	e.tick(database.Add(-time.Hour)) // another server
	near(database.Add(-time.Hour))
}

func TestStoodStill(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		asked time.Time
		want  bool
	}{
		"just now":                       {now, false},
		"a statement that took long":     {now.Add(-time.Minute / 2), false},
		"a process that was stopped":     {now.Add(-retentionMargin), true},
		"a machine that slept":           {now.Round(0).Add(-retentionMargin), true},
		"a wall clock that was set back": {now.Round(0).Add(retentionMargin), false},
	} {
		called := false
		made := &call{pool: &callPool{exec: caller(func() { called = true })}, operation: provider.Do, step: fsm.Charge, asked: c.asked}
		result := made.perform(t.Context(), &provider.Call{})
		retry, _ := result.(provider.Retry)
		if called == c.want || c.want != (retry.Code == stoodStillCode && errors.Is(failureOf(result), errUncalled)) {
			t.Errorf("%s: called %v, %+v", name, called, result)
		}
	}
}

// caller is an executor that only notes that it was called.
type caller func()

func (c caller) Do(context.Context, *provider.Call) provider.Result {
	c()
	return provider.Done{}
}

func (c caller) Refund(context.Context, *provider.Call) provider.Result {
	c()
	return provider.Done{}
}

func (c caller) Undo(context.Context, *provider.Call) provider.Result {
	c()
	return provider.Done{}
}
