package engine

import (
	"context"

	"pawl/db"
	"pawl/fsm"
	"pawl/orders"
)

// The names of package orders, until those who use them here name it.
type (
	Order         = orders.Order         // see orders
	Filter        = orders.Filter        // see orders
	Stock         = orders.Stock         // see orders
	Verb          = orders.Verb          // see orders
	Conflict      = orders.Conflict      // see orders
	Difference    = orders.Difference    // see orders
	NotApplicable = orders.NotApplicable // see orders
	StockTooLow   = orders.StockTooLow   // see orders
)

const (
	Cancel                = orders.Cancel                // see orders
	Retry                 = orders.Retry                 // see orders
	Pause                 = orders.Pause                 // see orders
	Resume                = orders.Resume                // see orders
	Approve               = orders.Approve               // see orders
	Reject                = orders.Reject                // see orders
	StepResult            = orders.StepResult            // see orders
	RefusedState          = orders.RefusedState          // see orders
	RefusedConfirmInDoubt = orders.RefusedConfirmInDoubt // see orders
	RefusedUnknown        = orders.RefusedUnknown        // see orders
	RefusedStillUndoing   = orders.RefusedStillUndoing   // see orders
	RefusedPolicySwitch   = orders.RefusedPolicySwitch   // see orders
	RefusedBusy           = orders.RefusedBusy           // see orders
	RefusedAnswered       = orders.RefusedAnswered       // see orders
	RefusedNoLateUndo     = orders.RefusedNoLateUndo     // see orders
	RefusedNotCalled      = orders.RefusedNotCalled      // see orders
	voidRefused           = orders.VoidRefused

	holdRetry     = fsm.HoldRetry
	holdCallback  = fsm.HoldCallback
	holdScheduled = fsm.HoldScheduled
	holdQueued    = fsm.HoldQueued
	holdApproval  = fsm.HoldApproval
	holdPaused    = fsm.HoldPaused
	holdAttention = fsm.HoldAttention
)

var (
	ErrNotFound     = orders.ErrNotFound     // see orders
	ErrOverloaded   = orders.ErrOverloaded   // see orders
	ErrStopping     = orders.ErrStopping     // see orders
	ErrUnavailable  = orders.ErrUnavailable  // see orders
	ErrPrecondition = orders.ErrPrecondition // see orders
	ErrRequestID    = orders.ErrRequestID    // see orders
	Verbs           = orders.Verbs           // see orders
)

// AllowedActions: see orders.
func AllowedActions(o *Order) []string          { return orders.AllowedActions(o) }
func heldFor(o *db.Order, holds ...string) bool { return orders.HeldFor(o, holds...) }
func pausing(o *db.Order) bool                  { return orders.Pausing(o) }
func stopping(o *db.Order) bool                 { return orders.Stopping(o) }
func unavailable(doing string, err error) error { return orders.Unavailable(doing, err) }

func again[P, T any](ctx context.Context, _ *Engine, read func(context.Context, P) (T, error), params P) (T, error) {
	return orders.Read(ctx, read, params)
}

// Get: see orders.
func (e *Engine) Get(ctx context.Context, orderID string) (Order, error) {
	return e.Orders.Get(ctx, orderID)
}

func (e *Engine) get(ctx context.Context, orderID string, durable bool) (Order, error) {
	if durable {
		return e.Orders.GetDurable(ctx, orderID)
	}
	return e.Orders.Get(ctx, orderID)
}

// List: see orders.
func (e *Engine) List(ctx context.Context, f Filter) ([]Order, error) { return e.Orders.List(ctx, f) }

// Transitions: see orders.
func (e *Engine) Transitions(ctx context.Context, orderID string, after, limit int32) ([]db.Transition, error) {
	return e.Orders.Transitions(ctx, orderID, after, limit)
}

// Attempts: see orders.
func (e *Engine) Attempts(ctx context.Context, orderID string, after, limit int32) ([]db.StepAttempt, error) {
	return e.Orders.Attempts(ctx, orderID, after, limit)
}

// StockOf: see orders.
func (e *Engine) StockOf(ctx context.Context, item string) (Stock, error) {
	return e.Orders.StockOf(ctx, item)
}

// StockList: see orders.
func (e *Engine) StockList(ctx context.Context, after string, limit int32) ([]Stock, error) {
	return e.Orders.StockList(ctx, after, limit)
}
