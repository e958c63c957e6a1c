package httpapi

import (
	"cmp"
	"regexp"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
)

// bulkRequest documents what bulk reads.
type bulkRequest struct {
	Verb   bulkVerb `path:"verb" doc:"What to do with the orders."`
	DryRun bool     `query:"dryRun" doc:"Say of each order whether the verb applies, and do nothing."`
	Keyed[bulkBody]
}

type bulkBody struct {
	IDs        []name      `json:"ids,omitempty" nullable:"false" minItems:"1" maxItems:"1000" doc:"The orders. Or a filter." example:"[\"order-123\",\"order-124\"]"`
	Filter     *bulkFilter `json:"filter,omitempty" doc:"Which orders. At least one field must be given beside sort and limit."`
	OnBehalfOf string      `json:"onBehalfOf,omitempty" minLength:"1" maxLength:"255" doc:"For whom the caller asks; kept in the history beside the caller, which a token names. Needs the role delegate."`
	Reason     string      `json:"reason,omitempty" minLength:"1" maxLength:"1000" doc:"Why; kept in the history. Required to settle a step."`
	RequestID  string      `json:"requestId,omitempty" minLength:"1" maxLength:"255" doc:"A name for this request, so that it is done once to each order."`
	Policy     string      `json:"policy,omitempty" enum:"pinned,active" doc:"To retry: which policy the orders go on with. pinned when left out."`
	Step       string      `json:"step,omitempty" enum:"charge,reserve,confirm" doc:"To settle a step, and required then: the step that the orders do, or undo."`
	Outcome    string      `json:"outcome,omitempty" enum:"done,refused,not_done" doc:"To settle a step, and required then: what became of it, as for one order."`
	Code       string      `json:"code,omitempty" minLength:"1" maxLength:"255" doc:"To settle a step: why it is not done, for programs."`
	Detail     string      `json:"detail,omitempty" minLength:"1" maxLength:"1000" doc:"To settle a step: why it is not done, for people."`
}

type bulkFilter struct {
	Status      []state     `json:"status,omitempty" nullable:"false" minItems:"1" maxItems:"9" doc:"Any of these statuses."`
	CustomerID  string      `json:"customerId,omitempty" minLength:"1" maxLength:"255"`
	Hold        string      `json:"hold,omitempty" enum:"retry,callback,scheduled,queued,approval,paused,attention" doc:"What the orders wait for."`
	HoldReason  string      `json:"holdReason,omitempty" minLength:"1" maxLength:"255" doc:"Its reason: all of it, or what is before a colon in it. Together with hold."`
	Item        string      `json:"item,omitempty" minLength:"1" maxLength:"255"`
	FailureStep string      `json:"failureStep,omitempty" enum:"charge,reserve,confirm" doc:"Failed, or being undone, because of this step."`
	FailureCode string      `json:"failureCode,omitempty" minLength:"1" maxLength:"255" doc:"Failed, or being undone, with this code."`
	AmountFrom  amountBound `json:"amountFrom,omitempty" doc:"Of this amount or more, in whatever currency."`
	AmountTo    amountBound `json:"amountTo,omitempty" doc:"Of this amount or less, in whatever currency."`
	CreatedFrom *time.Time  `json:"createdFrom,omitempty" doc:"Created at this time or later (RFC 3339)."`
	CreatedTo   *time.Time  `json:"createdTo,omitempty" doc:"Created before this time (RFC 3339)."`
	Sort        string      `json:"sort,omitempty" enum:"newest,oldest" doc:"Which orders are meant where there are more than limit, and come first: those that were made last, or first. newest when left out."`
	Limit       int32       `json:"limit,omitempty" minimum:"1" maximum:"1000" doc:"How many orders at most. 1000 when left out."`
}

// bulkOutcome is what came of a bulk request.
type bulkOutcome struct {
	Matched int          `json:"matched" minimum:"0" doc:"How many orders were asked."`
	Applied int          `json:"applied" minimum:"0" doc:"To how many of them the verb was done, or as a dry run would be."`
	Results []bulkResult `json:"results" nullable:"false" doc:"One of each order, in the order of the ids or of the list."`
	DryRun  bool         `json:"dryRun,omitempty" doc:"True in the answer to a dry run: nothing was done. Each status is the one that the verb would leave."`

	IgnoredFields []string `json:"ignoredFields,omitempty" nullable:"false" doc:"Fields of the request that are not known, and had no effect."`
}

type bulkResult struct {
	OrderID string      `json:"orderId" example:"order-123"`
	Applied bool        `json:"applied"`
	Status  state       `json:"status,omitempty"`
	Code    problemCode `json:"code,omitempty"`
	Detail  string      `json:"detail,omitempty" doc:"Why it was not done."`

	Amount   *amount `json:"amount,omitempty" doc:"The amount of the order. This and what follows is left out where the order was not found, or not read."`
	Currency string  `json:"currency,omitempty" doc:"ISO 4217."`
	Item     string  `json:"item,omitempty"`
	Quantity int32   `json:"quantity,omitempty"`
}

// bulkVerb documents the verbs that can be applied to many orders.
type bulkVerb string

// Schema lists them.
func (bulkVerb) Schema(r huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString, Description: "What to do with the orders."}
	for _, verb := range bulkVerbs {
		s.Enum = append(s.Enum, string(verb))
	}
	s.PrecomputeMessages()
	return named(r, "BulkVerb", s)
}

// checkBulk looks at what the schema does not say of the body for a verb.
func checkBulk(verb orders.Verb) func(*decoder, fields) {
	return func(d *decoder, got fields) {
		d.refuseMisspelled(decidingNames...)
		if got.has("ids") == got.has("filter") {
			d.fault("/ids", "required", "exactly one of ids and filter is required")
		}
		if filter := got.object("filter"); filter != nil {
			checkFilter(d, filter)
		}
		for _, name := range bulkRequires[verb] {
			d.require(got.has(name), "/"+name)
		}
	}
}

// bulkRequires are the fields that a verb for one order requires, too.
var bulkRequires = map[orders.Verb][]string{
	orders.StepResult: {"step", "outcome", "reason"},
}

func bulkOf(got fields, verb orders.Verb) engine.Bulk {
	b := engine.Bulk{Request: requestOf(verb, got), OrderIDs: got.texts("ids")}
	if f := got.object("filter"); f != nil {
		b.Filter = &orders.Filter{
			CustomerID: f.text("customerId"), Item: f.text("item"), Hold: f.text("hold"), HoldReason: f.text("holdReason"),
			FailureStep: f.text("failureStep"), FailureCode: f.text("failureCode"),
			AmountFrom: amountBound(f.text("amountFrom")).decimal(), AmountTo: amountBound(f.text("amountTo")).decimal(),
			CreatedFrom: f.time("createdFrom"), CreatedTo: f.time("createdTo"), Oldest: f.text("sort") == oldestFirst,
			Limit: cmp.Or(int32(f.integer("limit")), engine.BulkMost),
		}
		for _, status := range f.texts("status") {
			b.Filter.Statuses = append(b.Filter.Statuses, fsm.State(status))
		}
	}
	return b
}

var amountForm = regexp.MustCompile(amountPattern)

// checkFilter refuses a filter that says less than was meant.
func checkFilter(d *decoder, f fields) {
	chosen := len(f)
	for _, name := range []string{"sort", "limit"} {
		if f.has(name) {
			chosen--
		}
	}
	for _, name := range []string{"amountFrom", "amountTo"} {
		if f.text(name) != "" && !amountForm.MatchString(f.text(name)) {
			d.fault("/filter/"+name, "not_decimal", "must be "+anAmount)
		}
	}
	switch {
	case f.text("holdReason") != "" && f.text("hold") == "":
		d.fault("/filter/hold", "required", "is required with holdReason")
	case chosen == 0:
		d.fault("/filter", "empty", "must have at least one condition")
	}
}

// name is the name of an order in a list.
type name string

// Schema is that of orderId.
func (name) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, MinLength: new(1), MaxLength: new(maxText)}
}
