package engine

import (
	"context"

	"pawl/db"
)

// Attempts reads the calls of an order with a larger number than the given one, by
// number. Numbers below zero are those of calls that undid what was reported too late.
// Errors: ErrNotFound.
func (e *Engine) Attempts(ctx context.Context, orderID string, after, limit int32) ([]db.StepAttempt, error) {
	order, err := e.Get(ctx, orderID)
	if err != nil {
		return nil, err
	}
	rows, err := again(ctx, e, e.query.AttemptsOf, db.AttemptsOfParams{OrderNo: order.Order.OrderNo, After: after, Most: limit})
	if err != nil {
		return nil, unavailable("read attempts", err)
	}
	out := make([]db.StepAttempt, len(rows))
	for i, r := range rows {
		out[i] = r.StepAttempt
	}
	return out, nil
}
