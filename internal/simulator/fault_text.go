package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// short is a fault in short: name, times, argument, step and operation.
var short = regexp.MustCompile(`^([a-z]+(?:[-_][a-z]+)*)([0-9]{0,6})(?::([^@,]+))?(?:@(charge|reserve|confirm)(?:/([a-z]+))?)?$`)

// ParseRule reads a rule in short: fault[times][:argument][@step[/operation]], then a comma
// and name=value for each of item, amount, order, fraction and code.
//
//	decline:insufficient_funds@charge,amount=13.00
//	error3:503,fraction=0.1
//	timeout-after@charge/undo,order=test-
//
// The argument is the code of decline and forget-declines, the status of error and
// error-after, and of the others the delay.
func ParseRule(text string) (Rule, error) {
	rule, err := parseRule(text)
	if err != nil {
		return Rule{}, fmt.Errorf("parse rule %q: %w", text, err)
	}
	return rule.checked()
}

func parseRule(text string) (Rule, error) {
	head, rest, more := strings.Cut(text, ",")
	part := short.FindStringSubmatch(head)
	if part == nil {
		return Rule{}, errors.New("must begin with fault[times][:argument][@step[/operation]]")
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

// once are the faults that an item without a number has for one request of each key.
// With them on every request an order would have no end.
var once = []Fault{Hang, RefuseConnection, TimeoutBefore, TimeoutAfter, CutAfter, Error, ErrorAfter, NotDone, RateLimit}

// magic returns the rule that an item is the name of.
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

// wireRule is a rule in JSON.
type wireRule struct {
	plainRule
	Delay string `json:"delay,omitempty"`
}

type plainRule Rule

// MarshalJSON writes the rule as UnmarshalJSON reads it.
func (r Rule) MarshalJSON() ([]byte, error) {
	wire := wireRule{plainRule: plainRule(r)}
	if r.Delay != 0 {
		wire.Delay = r.Delay.String()
	}
	return json.Marshal(wire)
}

// UnmarshalJSON reads an object, of which every name must be known, or a string for
// ParseRule.
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
