package httpapi

import (
	"bytes"
	"time"
)

const (
	maxTTL   = 365 * 24 * 60 * 60 // seconds
	maxAhead = 365 * 24 * time.Hour
)

// terms reads the fields that most orders do without.
func (in *input) terms(d *decoder, name string) (err error) {
	t := &in.order.Terms
	switch name {
	case "customerId":
		t.CustomerID, err = d.text("/customerId", maxText)
	case "paymentMethod":
		t.PaymentMethod, err = d.text("/paymentMethod", maxText)
	case "concurrencyKey":
		t.ConcurrencyKey, err = d.text("/concurrencyKey", maxText)
	case "startAt":
		in.timed = true
		t.StartAt, err = d.time("/startAt")
	case "completeBy":
		in.timed = true
		t.CompleteBy, err = d.time("/completeBy")
	case "reservationTtl":
		var seconds int64
		seconds, err = d.integer("/reservationTtl", 1, maxTTL)
		t.ReservationTTL = time.Duration(seconds) * time.Second
	}
	return err
}

// checkTimes compares times with each other and with now. A deadline that is over is no
// fault of an order that is stored: the caller may only ask how it ended.
func (in *input) checkTimes(d *decoder, now time.Time) {
	t := &in.order.Terms
	if t.StartAt.After(now.Add(maxAhead)) {
		d.fault("/startAt", "out_of_range", "must not be more than a year ahead")
	}
	switch {
	case t.CompleteBy.IsZero():
	case !t.CompleteBy.After(t.StartAt):
		d.fault("/completeBy", "out_of_range", "must be after startAt")
	case !t.CompleteBy.After(now):
		d.fault("/completeBy", "in_the_past", "must be in the future")
		in.newOnly++
	}
}

// readTime is zero for what is no time that an order can have.
func readTime(raw []byte) (at time.Time) {
	if err := at.UnmarshalText(raw); err != nil || bytes.ContainsRune(raw, ',') || at.Year() < 1970 || at.Year() > 9998 {
		return time.Time{}
	}
	return at
}

// time reads a time with its zone (RFC 3339), to the microsecond.
func (d *decoder) time(pointer string) (at time.Time, err error) {
	raw, ok, err := d.stringOf(pointer)
	if !ok {
		return at, err
	}
	if at = readTime(raw); at.IsZero() {
		d.fault(pointer, "not_time", "must be a time of RFC 3339 with its zone, from 1970 to 9998")
		return time.Time{}, nil
	}
	return at.UTC().Truncate(time.Microsecond), nil
}
