package simulator

import (
	"time"

	"github.com/govalues/decimal"
)

// State is what has become of the do of a key.
type State string

// The states of a key. A key without one has been asked for and nothing was done.
const (
	Pending State = "pending" // taken on, not decided; a callback will tell
	Live    State = "live"    // the effect is there
	Refused State = "refused" // the effect is not there and never will be
	Undone  State = "undone"  // the effect was there and has been taken back
	Voided  State = "voided"  // undone before there was an effect: there never will be one
)

// Subject is what a request, and what is done for it, is about.
type Subject struct {
	OrderID    string `json:"orderId"`
	Step       string `json:"step"`
	Generation int32  `json:"generation"`
	Amount     string `json:"amount"` // decimal, as it was sent
	Currency   string `json:"currency"`
	Quantity   int32  `json:"quantity"`
	Item       string `json:"item"`
	RefundID   string `json:"refundId,omitempty"`
}

// Entry is what the books say of one key of a do.
type Entry struct {
	Key string `json:"key"`
	Subject
	State     State  `json:"state"`
	Reference string `json:"reference,omitempty"` // our name for the latest effect
	Code      string `json:"code,omitempty"`      // why it was refused
	Detail    string `json:"detail,omitempty"`
	// Effects is how many times the effect happened under this key, whether it was
	// undone or not. More than one is a double charge, or the like.
	Effects int `json:"effects"`
	// Requests is how many times the do was asked for since the simulator was started.
	Requests int       `json:"requests"`
	At       time.Time `json:"at"` // when the state was last changed
}

// entry is an Entry and what is needed to go on with it.
type entry struct {
	Entry
	body     string // fingerprint of the do; empty while none was taken on
	undoName string // our name for the taking back
	promise  *promise
	running  bool            // a request is between its check of the key and its effect
	refunded decimal.Decimal // of a charge: what was given back of it by refunds
}

// promise is an answer owed by callback. It is kept with a pending key, so that it is
// not forgotten by a restart.
type promise struct {
	URL   string        `json:"url"`
	Delay time.Duration `json:"delay"` // in nanoseconds
	Times int           `json:"times"` // how often it is told
	Code  string        `json:"code,omitempty"`
	From  time.Time     `json:"from"` // when it was taken on
}
