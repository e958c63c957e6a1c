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
func (in *input) terms(d *decoder, name string) {
	t := &in.order.Terms
	switch name {
	case "customerId":
		t.CustomerID = d.visibleText("/customerId")
	case "paymentMethod":
		t.PaymentMethod = d.text("/paymentMethod", maxText)
	case "concurrencyKey":
		t.ConcurrencyKey = d.visibleText("/concurrencyKey")
	case "startAt":
		in.timed = true
		t.StartAt = d.time("/startAt")
	case "completeBy":
		in.timed = true
		t.CompleteBy = d.time("/completeBy")
	case "reservationTtl":
		t.ReservationTTL = time.Duration(d.integer("/reservationTtl", 1, maxTTL)) * time.Second
	}
}

// checkTimes compares times with each other and with now. A deadline that is over is no
// fault of an order that is stored: the caller may only ask how it ended.
func (in *input) checkTimes(d *decoder, now time.Time) {
	t := &in.order.Terms
	if t.StartAt.After(now.Add(maxAhead)) {
		d.fault("/startAt", "out_of_range", "must be at most one year in the future, not "+t.StartAt.Format(time.RFC3339Nano))
	}
	switch {
	case t.CompleteBy.IsZero():
	case !t.CompleteBy.After(t.StartAt):
		d.fault("/completeBy", "out_of_range", "must be after startAt, not "+t.CompleteBy.Format(time.RFC3339Nano))
	case !t.CompleteBy.After(now):
		d.fault("/completeBy", "in_the_past", "must be in the future, not "+t.CompleteBy.Format(time.RFC3339Nano))
		in.rejectIfNew++
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
func (d *decoder) time(pointer string) time.Time {
	raw, ok := d.stringOf(pointer)
	if !ok {
		return time.Time{}
	}
	at := readTime(raw)
	if at.IsZero() {
		d.fault(pointer, "not_time", "must be an RFC 3339 time with a time zone, from 1970 to 9998")
		return at
	}
	return at.UTC().Truncate(time.Microsecond)
}
