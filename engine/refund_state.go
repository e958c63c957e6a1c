package engine

import (
	"time"

	"pawl/orders"
	"pawl/provider"
)

// state is the state of the refund after the call. One in doubt stays in doubt until somebody says what became of it.
func (c *refundCall) state() string {
	switch c.result.(type) {
	case provider.Done:
		return orders.RefundDone
	case provider.Refused:
		return c.stateRefused()
	case provider.Waiting:
		return c.unlessDone(orders.RefundAccepted)
	case provider.Retry:
		if c.unseen() { // it is sent again
			return c.unlessDone(orders.RefundPending)
		}
	case provider.Unknown:
		if c.row.State == orders.RefundPending && c.number != 0 {
			return orders.RefundInDoubt
		}
	}
	return c.row.State
}

// stateRefused: as with steps, a refusal says nothing of an earlier request with the key, unless the provider remembers what it
// refused.
func (c *refundCall) stateRefused() string {
	if _, remembers := c.exec.(provider.Looker); remembers || c.row.State == orders.RefundPending {
		return orders.RefundFailed
	}
	return c.row.State
}

// unlessDone: of a refund that is done, only a failure is news.
func (c *refundCall) unlessDone(state string) string {
	if c.row.State == orders.RefundDone {
		return orders.RefundDone
	}
	return state
}

// unseen reports whether a look-up found that the provider has not seen the key.
func (c *refundCall) unseen() bool {
	r, ok := c.result.(provider.Retry)
	return ok && c.number != 0 && c.operation == lookup && r.Code != stoodStillCode
}

// settled reports whether nobody is to ask again.
func (c *refundCall) settled(state string) bool {
	_, unknown := c.result.(provider.Unknown)
	_, person := c.result.(attention)
	return state == orders.RefundFailed || state == orders.RefundDone && !unknown && !person
}

// delay is when to go on with it.
func (c *refundCall) delay() time.Duration {
	switch result := c.result.(type) {
	case attention:
		return sideCallPause
	case provider.Retry:
		if c.unseen() {
			return 0
		}
		return sidePause(c.row.Claims, result.After)
	case provider.Unknown:
		return sidePause(c.row.Claims, result.After)
	}
	return sidePause(c.row.Claims, 0)
}
