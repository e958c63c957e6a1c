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
	return c.stateUnanswered()
}

// stateUnanswered: that the key was not seen says nothing of an earlier request, which may still be on its way.
func (c *refundCall) stateUnanswered() string {
	if c.row.State == orders.RefundPending && c.row.SentAt != nil {
		return orders.RefundInDoubt
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
	_, retry := c.result.(provider.Retry)
	unheard := unknown || person || retry && !c.unseen()
	return state == orders.RefundFailed || state == orders.RefundDone && !unheard
}

// unsent reports whether no request with the key can have an effect any more: none but this one was sent, or Stripe, who
// knows refunds of any age, has not seen one in all the time that it knows a key.
func (c *refundCall) unsent(state string) bool {
	return state == orders.RefundPending && (c.row.SentAt == nil || c.unseen() && c.keyOld(c.asked))
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
