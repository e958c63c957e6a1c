package engine

import (
	"context"
	"errors"

	"pawl/db"
	"pawl/orders"
)

// untilKnown repeats a read until it succeeds; nil when the engine stops first. The one error
// it returns is that of a statement that can't run on the schema (db.SchemaMismatch).
func untilKnown[T any](e *Engine, what string, read func() ([]T, error)) ([]T, error) {
	for try := 0; ; try++ {
		rows, err := read()
		if err == nil || db.SchemaMismatch(err) {
			return rows, err
		}
		if e.ctx.Err() != nil {
			return nil, nil //nolint:nilerr // callers look at the engine's context
		}
		if try%20 == 0 {
			e.log.Warn("database does not answer", "statement", what, "tries", try+1, "error", err)
		}
		e.backOff(try)
	}
}

// detached runs do to its end, even if its caller goes: what is written has to be known to this process. A caller
// whose time is up is told that the outcome is not known. The context of do sends no statement for a caller who has gone.
func detached[T any](ctx context.Context, e *Engine, do func(context.Context) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	e.wg.Go(func() {
		value, err := do(db.WhileWanted(e.ctx, ctx))
		done <- result{value, err}
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ended(ctx)
	}
}

// ended names the end of a wait during which the order did not become known.
func ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Canceled
	}
	return orders.ErrUnavailable
}

// or is what a column holds, and the zero value where it holds nothing.
func or[T any](column *T) (value T) {
	if column != nil {
		value = *column
	}
	return value
}
