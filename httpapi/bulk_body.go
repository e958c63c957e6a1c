package httpapi

import (
	"strconv"
	"time"

	"pawl/engine"
	"pawl/fsm"
)

// bulkRequest documents what bulk reads.
type bulkRequest struct {
	DryRun         bool   `query:"dryRun" doc:"Say of each order whether the verb applies, and do nothing."`
	IdempotencyKey string `header:"Idempotency-Key" doc:"The requestId, where the body has none."`
	Body           bulkBody
}

type bulkBody struct {
	_         struct{}    `additionalProperties:"true"`
	IDs       []string    `json:"ids,omitempty" nullable:"false" minItems:"1" maxItems:"1000" doc:"The orders. Or a filter."`
	Filter    *bulkFilter `json:"filter,omitempty" doc:"Which orders, newest first. At least one field must be given beside limit."`
	Actor     string      `json:"actor,omitempty" minLength:"1" maxLength:"255" doc:"Who asks; kept in the history. Required to approve."`
	Reason    string      `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; kept in the history."`
	RequestID string      `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once to each order."`
	Policy    string      `json:"policy,omitempty" enum:"pinned,active" doc:"To retry: which policy the orders go on with. pinned when left out."`
}

type bulkFilter struct {
	Status      state      `json:"status,omitempty"`
	Hold        string     `json:"hold,omitempty" enum:"retry,callback,scheduled,queued,approval,paused,attention" doc:"What the orders wait for."`
	HoldReason  string     `json:"holdReason,omitempty" minLength:"1" maxLength:"255" doc:"How its reason begins. Together with hold."`
	Item        string     `json:"item,omitempty" minLength:"1" maxLength:"255"`
	CreatedFrom *time.Time `json:"createdFrom,omitempty" doc:"Created at this time or later (RFC 3339)."`
	CreatedTo   *time.Time `json:"createdTo,omitempty" doc:"Created before this time (RFC 3339)."`
	Limit       int32      `json:"limit,omitempty" minimum:"1" maximum:"1000" doc:"How many orders at most. 1000 when left out."`
}

type bulkAnswer struct {
	Body bulkOutcome
}

// bulkOutcome is what came of a bulk request.
type bulkOutcome struct {
	Matched int          `json:"matched" minimum:"0" doc:"How many orders were asked."`
	Applied int          `json:"applied" minimum:"0" doc:"To how many of them the verb was done, or as a dry run would be."`
	Results []bulkResult `json:"results" nullable:"false" doc:"One of each order, in the order of the ids, or newest first."`
}

type bulkResult struct {
	OrderID string      `json:"orderId"`
	Applied bool        `json:"applied"`
	Status  state       `json:"status,omitempty"`
	Code    problemCode `json:"code,omitempty"`
	Detail  string      `json:"detail,omitempty" doc:"Why it was not done."`
}

var (
	bulkNames   = []string{"ids", "filter", "actor", "reason", "requestId", "policy"}
	filterNames = []string{"status", "hold", "holdReason", "item", "createdFrom", "createdTo", "limit"}
)

func decodeBulk(data []byte, b *engine.Bulk) error {
	given := map[string]bool{}
	return decode(data, bulkNames, func(d *decoder, name string) (err error) {
		given[name] = true
		switch name {
		case "ids":
			b.OrderIDs, err = d.ids()
		case "filter":
			b.Filter, err = d.filter()
		case "policy":
			if b.Verb != engine.Retry {
				return d.skip()
			}
			return d.verbField(&b.Request, name)
		default:
			return d.verbField(&b.Request, name)
		}
		return err
	}, func(d *decoder) {
		if given["ids"] == given["filter"] {
			d.fault("/ids", "required", "must be given, or filter, and not both")
		}
		for _, name := range requiredOf(b.Verb) {
			d.require(given[name], "/"+name)
		}
	})
}

// ids reads the names of orders.
func (d *decoder) ids() (ids []string, err error) {
	if d.peek() != '[' {
		d.fault("/ids", "wrong_type", "must be an array of strings")
		return nil, d.skip()
	}
	if err := d.enter(); err != nil {
		return nil, err
	}
	for {
		if ok, err := d.more(len(ids) == 0, ']'); err != nil {
			return nil, err
		} else if !ok {
			break
		}
		id, err := d.text("/ids/"+strconv.Itoa(len(ids)), maxText)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if len(ids) == 0 || len(ids) > engine.BulkMost {
		d.fault("/ids", "out_of_range", "must have from 1 to 1000 entries")
	}
	return ids, nil
}

func (d *decoder) filter() (*engine.Filter, error) {
	f := &engine.Filter{Limit: engine.BulkMost}
	if d.peek() != '{' {
		d.fault("/filter", "wrong_type", "must be a JSON object")
		return f, d.skip()
	}
	err := d.members(func(raw []byte) error {
		name, found := lookup(filterNames, raw)
		if !found { // one that is misspelled would choose too many
			d.fault("/filter", "unknown_field", "has a field that is not known")
			return d.skip()
		}
		return d.filterField(f, name)
	})
	switch {
	case f.HoldReason != "" && f.Hold == "":
		d.fault("/filter/hold", "required", "is missing: holdReason needs it")
	case *f == engine.Filter{Limit: f.Limit}:
		d.fault("/filter", "empty", "must choose: all orders are not meant")
	}
	return f, err
}

func (d *decoder) filterField(f *engine.Filter, name string) (err error) {
	pointer := "/filter/" + name
	switch name {
	case "status":
		var status string
		status, err = d.word(pointer, statuses()...)
		f.Status = fsm.State(status)
	case "hold":
		f.Hold, err = d.word(pointer, "retry", "callback", "scheduled", "queued", "approval", "paused", "attention")
	case "holdReason":
		f.HoldReason, err = d.text(pointer, maxText)
	case "item":
		f.Item, err = d.text(pointer, maxText)
	case "createdFrom":
		f.CreatedFrom, err = d.time(pointer)
	case "createdTo":
		f.CreatedTo, err = d.time(pointer)
	case "limit":
		var limit int64
		limit, err = d.integer(pointer, 1, engine.BulkMost)
		f.Limit = int32(limit)
	}
	return err
}

func statuses() (names []string) {
	for _, s := range fsm.States() {
		names = append(names, string(s))
	}
	return names
}
