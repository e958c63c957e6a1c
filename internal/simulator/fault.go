package simulator

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/govalues/decimal"
)

// Fault is a fault of a provider.
type Fault string

// The faults. "Nothing was done" is about this request: an earlier one with the same key may have done it.
const (
	Approve        Fault = "approve"         // no fault, whatever later rules say
	Decline        Fault = "decline"         // 402 with Code: a do stays refused; an undo did nothing and can be repeated
	ForgetDeclines Fault = "forget_declines" // 402 with Code once per key; the next do with it is approved
	Slow           Fault = "slow"            // done after Delay, even if the caller has left; the key is in progress until then
	Hang           Fault = "hang"            // never answered, nothing was done; the key is in progress until the caller leaves

	RefuseConnection Fault = "refuse_connection" // the connection is closed without an answer, nothing was done
	TimeoutBefore    Fault = "timeout_before"    // never answered, nothing was done
	TimeoutAfter     Fault = "timeout_after"     // done, never answered
	CutAfter         Fault = "cut_after"         // done, but the answer is cut off
	Error            Fault = "error"             // answered with Status, nothing was done
	ErrorAfter       Fault = "error_after"       // done, answered with Status
	NotDone          Fault = "not_done"          // 503 {"outcome":"not_done"}, nothing was done
	RateLimit        Fault = "rate_limit"        // 429 with Retry-After: Delay, nothing was done

	Async          Fault = "async"           // 202; decided after Delay, then reported by callback
	CallbackTwice  Fault = "callback_twice"  // as async, but reported twice
	CallbackLate   Fault = "callback_late"   // decided, 202, reported by callback after Delay
	CallbackNever  Fault = "callback_never"  // decided, 202, never reported
	CallbackBefore Fault = "callback_before" // decided, reported by callback, and then 202
	AnswerTwice    Fault = "answer_twice"    // decided and answered, then reported by callback, too

	// LateAfterVoid breaks the contract: the effect happens, Delay after the request, even if its key was undone before.
	LateAfterVoid Fault = "late_after_void"
)

var faults = []Fault{
	Approve, Decline, ForgetDeclines, Slow, Hang, RefuseConnection, TimeoutBefore, TimeoutAfter, CutAfter, Error, ErrorAfter, NotDone,
	RateLimit, Async, CallbackTwice, CallbackLate, CallbackNever, CallbackBefore, AnswerTwice, LateAfterVoid,
}

// byCallback are the faults with a callback. They apply only to requests with a callbackUrl.
var byCallback = []Fault{Async, CallbackTwice, CallbackLate, CallbackNever, CallbackBefore, AnswerTwice}

// doOnly are the faults that only a do can have.
var doOnly = append([]Fault{ForgetDeclines, LateAfterVoid}, byCallback...)

// Rule is a fault and the requests that it applies to: those that match all given fields.
type Rule struct {
	Fault Fault `json:"fault"`

	Item        string  `json:"item,omitempty"`
	Amount      string  `json:"amount,omitempty"` // by value: 13.0 matches 13.00
	OrderPrefix string  `json:"orderPrefix,omitempty"`
	Step        string  `json:"step,omitempty"`      // charge, reserve or confirm
	Operation   string  `json:"operation,omitempty"` // do, undo, refund, or a name of Stripe's API; empty: do
	Fraction    float64 `json:"fraction,omitempty"`  // of the requests, chosen by the seed; 0: all

	// Code of the refusal. A fault that does the step refuses it instead if there is a code, except late_after_void:
	// slow with a code is a late refusal.
	Code   string        `json:"code,omitempty"`
	Delay  time.Duration `json:"-"` // "delay" in JSON, as "1.5s"
	Status int           `json:"status,omitempty"`
	Times  int           `json:"times,omitempty"` // requests per key, or per intent of Stripe; 0: all

	amount decimal.Decimal
}

// checked sets the defaults of a rule, and validates it.
func (r Rule) checked() (Rule, error) {
	if r.Operation == "" {
		r.Operation = operationDo
	}
	switch {
	case r.Fault == Decline && r.Code == "", r.Fault == ForgetDeclines && r.Code == "":
		r.Code = "card_declined"
	case r.Fault == Error && r.Status == 0, r.Fault == ErrorAfter && r.Status == 0:
		r.Status = 500
	case r.Fault == RateLimit && r.Delay == 0:
		r.Delay = time.Second
	case r.Fault == Slow && r.Delay == 0:
		r.Delay = 2 * time.Second
	}
	if r.Fault == ForgetDeclines && r.Times == 0 {
		r.Times = 1
	}
	var err error
	if r.Amount != "" {
		r.amount, err = decimal.Parse(r.Amount)
	}
	for _, wrong := range []struct {
		is   bool
		text string
	}{
		{!slices.Contains(faults, r.Fault), fmt.Sprintf("there is no fault %q; there are %s", r.Fault, names())},
		{err != nil, "amount: must be a decimal number"},
		{r.Step != "" && prefixes[r.Step] == [2]string{}, "step: must be charge, reserve or confirm"},
		{!slices.Contains(operations, r.Operation), "operation: must be one of " + strings.Join(operations, ", ")},
		{!r.does() && slices.Contains(doOnly, r.Fault), fmt.Sprintf("fault %s: not of %s", r.Fault, r.Operation)},
		{!(r.Fraction >= 0 && r.Fraction <= 1), "fraction: must be from 0 to 1"},
		{r.Delay < 0, "delay: must not be negative"},
		{r.Fault == LateAfterVoid && r.Code != "", "code: not with late_after_void"},
		{r.Status != 0 && (r.Status < 400 || r.Status > 599 || r.Status == 402), "status: must be from 400 to 599, and not 402"},
		{r.Times < 0, "times: must not be negative"},
	} {
		if wrong.is {
			return r, errors.New(wrong.text)
		}
	}
	return r, nil
}

// names lists the faults as rules in short name them.
func names() string {
	var all []string
	for _, fault := range faults {
		all = append(all, strings.ReplaceAll(string(fault), "_", "-"))
	}
	return strings.Join(all, ", ")
}

var operations = []string{
	operationDo, operationUndo, operationVoid, stripeCreate, stripeConfirm, stripeCapture, stripeCancel, stripeRefund, stripeRead,
}

// does reports whether the rule is about requests that have an effect.
func (r *Rule) does() bool {
	return r.Operation == operationDo || r.Operation == stripeConfirm || r.Operation == stripeCapture
}

func (r *Rule) matches(q *request) bool {
	return (r.Operation == q.operation || r.Operation == q.means) &&
		(r.Item == "" || slices.Contains(q.body.items(), r.Item)) &&
		(r.Amount == "" || r.amount.Cmp(q.amount) == 0) &&
		strings.HasPrefix(q.body.OrderID, r.OrderPrefix) &&
		(r.Step == "" || r.Step == q.step) &&
		(q.stripe || q.body.CallbackURL != "" || !slices.Contains(byCallback, r.Fault))
}

// plan has the rules in force. It is not safe for concurrent use.
type plan struct {
	seed  uint64
	rules []Rule
	used  map[use]int
}

// use is a rule and a key it was applied to.
type use struct {
	rule int // index; -1: the item
	key  string
}

// pick returns the first rule that applies to a request; the one of its item comes last. number counts the requests
// with its key.
func (p *plan) pick(q *request, number int) Rule {
	key := cmp.Or(q.counted, q.key)
	for i := range p.rules {
		if rule := &p.rules[i]; rule.matches(q) && p.drawn(i, q, number) && p.spend(use{i, key}, rule.Times) {
			return *rule
		}
	}
	for _, item := range q.body.items() {
		if rule, ok := magic(item); ok && rule.matches(q) && p.spend(use{-1, key}, rule.Times) {
			return rule
		}
	}
	return Rule{}
}

func (p *plan) spend(u use, times int) bool {
	if times == 0 {
		return true
	}
	p.used[u]++
	return p.used[u] <= times
}

// drawn decides whether a rule with a fraction applies. It depends on the seed and the subject of the request, not on
// key or time, so that a run can be repeated.
func (p *plan) drawn(rule int, q *request, number int) bool {
	fraction := p.rules[rule].Fraction
	if fraction == 0 {
		return true
	}
	about := fmt.Appendf(nil, "%d %d %q %s %s %d %d", p.seed, rule, q.body.OrderID, q.step, q.operation, q.body.Generation, number)
	sum := sha256.Sum256(about)
	return float64(binary.BigEndian.Uint64(sum[:])>>11)/(1<<53) < fraction
}

// short matches a rule in short: name, times, argument, step and operation.
var short = regexp.MustCompile(`^([a-z]+(?:[-_][a-z]+)*)([0-9]{0,6})(?::([^@,]+))?(?:@(charge|reserve|confirm)(?:/([a-z]+))?)?$`)

// ParseRule parses a rule in short: fault[times][:argument][@step[/operation]], then a comma and name=value for each of
// item, amount, order, fraction and code.
//
//	decline:insufficient_funds@charge,amount=13.00
//	error3:503,fraction=0.1
//	timeout-after@charge/undo,order=test-
//
// The argument is the code of decline and forget-declines, the status of error and error-after, and the delay of others.
func ParseRule(text string) (Rule, error) {
	rule, err := parseRule(text)
	if err == nil {
		rule, err = rule.checked()
	}
	if err != nil {
		return Rule{}, fmt.Errorf("rule %q: %w", text, err)
	}
	return rule, nil
}

func parseRule(text string) (Rule, error) {
	head, rest, more := strings.Cut(text, ",")
	part := short.FindStringSubmatch(head)
	if part == nil {
		return Rule{}, errors.New("does not begin with fault[times][:argument][@step[/operation]]")
	}
	rule := Rule{Fault: Fault(strings.ReplaceAll(part[1], "-", "_")), Step: part[4]}
	rule.Times, _ = strconv.Atoi(part[2])
	rule.Operation = part[5]
	if err := rule.argument(part[3]); err != nil {
		return Rule{}, err
	}
	for more {
		var pair string
		pair, rest, more = strings.Cut(rest, ",")
		if err := rule.match(pair); err != nil {
			return Rule{}, err
		}
	}
	return rule, nil
}

func (r *Rule) argument(text string) (err error) {
	switch {
	case text == "":
	case r.Fault == Decline || r.Fault == ForgetDeclines:
		r.Code = text
	case r.Fault == Error || r.Fault == ErrorAfter:
		r.Status, err = strconv.Atoi(text)
	default:
		r.Delay, err = time.ParseDuration(text)
	}
	return err
}

func (r *Rule) match(pair string) (err error) {
	name, value, _ := strings.Cut(pair, "=")
	switch name {
	case "item":
		r.Item = value
	case "amount":
		r.Amount = value
	case "order":
		r.OrderPrefix = value
	case "fraction":
		r.Fraction, err = strconv.ParseFloat(value, 64)
	case "code":
		r.Code = value
	default:
		err = fmt.Errorf("%q: not one of item, amount, order, fraction, code", name)
	}
	return err
}

// once are the faults that an item without a number has only once per key: otherwise an order would never end.
var once = []Fault{Hang, RefuseConnection, TimeoutBefore, TimeoutAfter, CutAfter, Error, ErrorAfter, NotDone, RateLimit}

func magic(item string) (Rule, bool) {
	part := short.FindStringSubmatch(item)
	if part == nil {
		return Rule{}, false
	}
	rule, err := ParseRule(item)
	if err != nil {
		return Rule{}, false
	}
	if part[2] == "" && slices.Contains(once, rule.Fault) {
		rule.Times = 1
	}
	if rule.Delay == 0 && slices.Contains([]Fault{Async, CallbackLate}, rule.Fault) {
		rule.Delay = 2 * time.Second
	}
	return rule, true
}

type wireRule struct {
	plainRule
	Delay string `json:"delay,omitempty"`
}

type plainRule Rule

// MarshalJSON encodes the rule for UnmarshalJSON.
func (r Rule) MarshalJSON() ([]byte, error) {
	wire := wireRule{plainRule: plainRule(r)}
	if r.Delay != 0 {
		wire.Delay = r.Delay.String()
	}
	return json.Marshal(wire)
}

// UnmarshalJSON decodes an object without unknown names, or a string for ParseRule.
func (r *Rule) UnmarshalJSON(text []byte) (err error) {
	if bytes.HasPrefix(text, []byte(`"`)) {
		var in string
		if err := json.Unmarshal(text, &in); err != nil {
			return err
		}
		*r, err = ParseRule(in)
		return err
	}
	var wire wireRule
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&wire); err != nil {
		return fmt.Errorf("read rule: %w", err)
	}
	*r = Rule(wire.plainRule)
	if wire.Delay != "" {
		if r.Delay, err = time.ParseDuration(wire.Delay); err != nil {
			return fmt.Errorf("read rule: %w", err)
		}
	}
	*r, err = r.checked()
	return err
}
