package httpapi

import (
	"bytes"
	"slices"
	"time"

	"pawl/engine"
	"pawl/internal/iso4217"
)

// maxQuantity is the largest quantity of one order.
const maxQuantity = 1_000_000

var inputNames = []string{
	"orderId", "amount", "item", "quantity", "currency", "metadata",
	"customerId", "paymentMethod", "startAt", "completeBy", "reservationTtl", "concurrencyKey",
}

// termNames are those that say what is bought, and when.
var termNames = slices.DeleteFunc(slices.Clone(inputNames), func(name string) bool { return name == "metadata" })

// input is the body of a process request while it is read.
type input struct {
	order engine.Input
	// The amount can only be checked when the currency is known, which may come
	// behind it. Nil when there is none, or a fault has been noted.
	amount      []byte
	currency    iso4217.Currency
	given       struct{ orderID, amount, item bool }
	timed       bool             // it has times
	clock       func() time.Time // what they are compared with
	rejectIfNew int              // faults that only a new order has
}

// decodeInput reads and checks the body of a process request. The amount of an
// order that names no currency is checked as if it had named the fallback; its
// Currency stays empty. Times are compared with the clock. Ignored are the names of fields
// that are not known. When all that is wrong would not be with an order that is stored
// already, the error is a *rejectIfNew. Nothing in the result refers to data.
func decodeInput(data []byte, fallback iso4217.Currency, clock func() time.Time) (order engine.Input, ignored []string, err error) {
	in := input{currency: fallback, clock: clock}
	ignored, err = decode(data, inputNames, in.field, in.finish)
	if err == nil {
		return in.order, ignored, nil
	}
	// What stands behind the object is another fault.
	if p := problemOf(err); p.Code == "invalid_input" && len(p.Errors) == in.rejectIfNew {
		err = &rejectIfNew{order: in.order, error: err}
	}
	return engine.Input{}, ignored, err
}

// rejectIfNew refuses an order that would be good if it were stored: the deadline was not over
// when it came first, and its amount had no more fraction digits than the fallback of that
// day. Only the books tell.
type rejectIfNew struct {
	order engine.Input
	error
}

func (n *rejectIfNew) Unwrap() error { return n.error }

func (in *input) field(d *decoder, name string) {
	switch name {
	case "orderId":
		in.given.orderID = true
		in.order.OrderID = d.name("/orderId")
	case "amount":
		in.given.amount = true
		in.amount = d.amount()
	case "item":
		in.given.item = true
		in.order.Item = d.name("/item")
	case "quantity":
		in.order.Quantity = int32(d.integer("/quantity", 1, maxQuantity))
	case "currency":
		in.currency = d.currency()
		in.order.Currency = in.currency.Code
	case "metadata":
		in.order.Metadata = d.metadata()
	default:
		in.terms(d, name)
	}
}

func (in *input) finish(d *decoder) {
	d.require(in.given.orderID, "/orderId")
	d.require(in.given.amount, "/amount")
	d.require(in.given.item, "/item")
	d.refuseMisspelled(termNames...)
	if in.timed {
		in.checkTimes(d, in.clock())
	}
	if in.amount == nil {
		return
	}
	amount, code, detail := amountIn(in.amount, in.currency)
	if code != "" {
		d.fault("/amount", code, detail+shownAmount(in.amount))
	}
	if code == tooManyDigits && in.order.Currency == "" {
		if amount, code, _ = parseAmount(in.amount, iso4217.MostDigits); code == "" {
			amount = amount.Trim(0)
			in.rejectIfNew++
		}
	}
	in.order.Amount = amount
}

// shownAmount ends a fault with the number that was sent, if it was one.
func shownAmount(text []byte) string {
	if len(text) == 0 {
		return ""
	}
	return ", not " + shownNumber(text)
}

// name reads the name of an order or an item. It refuses those that a path can't carry: a
// segment that is one or two dots disappears on the way, percent-encoded or not, and one
// that is a slash is taken for the end of the path.
func (d *decoder) name(pointer string) string {
	name := d.visibleText(pointer)
	if name == "." || name == ".." || name == "/" {
		d.fault(pointer, "reserved", "must not be \".\", \"..\" or \"/\"")
	}
	return name
}

// amount reads the text of an amount, which is a number or a string with one.
func (d *decoder) amount() []byte {
	switch d.kind() {
	case '"':
		return numberIn(bytes.Clone(d.string()))
	case '0':
		return d.scalar()
	default:
		d.fault("/amount", "wrong_type", "must be a number or a decimal string")
		d.skip()
		return nil
	}
}

// currency reads a currency code. With one that is no currency the amount is held
// to the digits of the finest one: an amount is not at fault for it.
func (d *decoder) currency() iso4217.Currency {
	unknown := iso4217.Currency{Digits: iso4217.MostDigits}
	code, ok := d.stringOf("/currency")
	if !ok {
		return unknown
	}
	known, ok := iso4217.Find(string(code))
	if !ok {
		d.fault("/currency", "unknown_currency", "must be an ISO 4217 currency code in capital letters")
		return unknown
	}
	return known
}
