package console

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/govalues/decimal"

	"pawl/client"
	"pawl/fsm"
	"pawl/internal/spelling"
)

// search is a parsed search. What is wrong with it is in the notes; it then finds nothing.
type search struct {
	filter  client.ListOrdersParams // with the term
	filters []string                // the words that make the filter, as they were typed
	term    string
	notes   []string
	meant   string // the search that was probably meant, if words are misspelled; otherwise empty
	now     time.Time
}

// qualifiers has the words before a colon. Each function returns what is wrong with its value.
var qualifiers = map[string]func(s *search, value string) (wrong string){
	"status":     (*search).status,
	"hold":       oneOf("hold", func(s *search) *client.ListOrdersParamsHold { return &s.filter.Hold }),
	"reason":     func(s *search, value string) string { s.filter.HoldReason = value; return "" },
	"item":       func(s *search, value string) string { s.filter.Item = value; return "" },
	"customer":   func(s *search, value string) string { s.filter.CustomerID = value; return "" },
	"step":       oneOf("step", func(s *search) *client.ListOrdersParamsFailureStep { return &s.filter.FailureStep }),
	"route":      func(s *search, value string) string { s.filter.Route = value; return "" },
	"code":       func(s *search, value string) string { s.filter.FailureCode = value; return "" },
	"amount":     (*search).amount,
	"currency":   func(s *search, value string) string { s.filter.Currency = strings.ToUpper(value); return "" },
	"charged":    yes("charged", func(s *search) *bool { return &s.filter.Charged }),
	"refunded":   yes("refunded", func(s *search) *bool { return &s.filter.Refunded }),
	"authorized": yes("authorized", func(s *search) *bool { return &s.filter.Authorized }),
	"voided":     yes("voided", func(s *search) *bool { return &s.filter.Voided }),
	"refund":     oneOf("refund", func(s *search) *client.ListOrdersParamsRefund { return &s.filter.Refund }),
	"dispute":    oneOf("dispute", func(s *search) *client.ListOrdersParamsDispute { return &s.filter.Dispute }),
	"created":    (*search).created,
	"from":       (*search).from,
	"to":         (*search).to,
	"sort":       oneOf("sort", func(s *search) *client.ListOrdersParamsSort { return &s.filter.Sort }),
}

// valuesOf has the values of qualifiers that take only these.
var valuesOf = map[string][]string{
	"status":     append(fixed(fsm.States()), "open"),
	"hold":       fsm.Holds(),
	"step":       append(fixed(fsm.Steps()), "refund", "capture", "void"),
	"charged":    {"yes"},
	"refunded":   {"yes"},
	"authorized": {"yes"},
	"voided":     {"yes"},
	"refund":     {"open", "done"},
	"dispute":    {"open", "won", "lost"},
	"sort":       {"newest", "oldest"},
}

func fixed[T ~string](words []T) (all []string) {
	for _, word := range words {
		all = append(all, string(word))
	}
	return all
}

// oneOf sets a condition that takes only some values.
func oneOf[T ~string](key string, condition func(*search) *T) func(*search, string) string {
	return func(s *search, value string) string {
		*condition(s) = T(strings.ToLower(value))
		return notOneOf(key, value)
	}
}

// yes sets a condition that is there or not.
func yes(key string, condition func(*search) *bool) func(*search, string) string {
	return func(s *search, value string) string {
		*condition(s) = true
		return notOneOf(key, value)
	}
}

// notOneOf says what is wrong with values of a qualifier that takes only some.
func notOneOf(key string, values ...string) (wrong string) {
	for _, value := range values {
		if !slices.Contains(valuesOf[key], strings.ToLower(value)) {
			return "use " + strings.Join(valuesOf[key], ", ")
		}
	}
	return ""
}

// otherNames has the names of the API's fields, and of other consoles.
var otherNames = map[string]string{
	"state": "status", "is": "status", "holdreason": "reason", "customerid": "customer", "sku": "item", "failurestep": "step",
	"failurecode": "code", "createdfrom": "from", "since": "from", "after": "from", "createdto": "to", "until": "to",
	"before": "to", "order": "sort",
}

// otherWords has what people call statuses and holds.
var otherWords = map[string]string{"cancelled": "canceled", "declined": "failed", "failure": "failed", "paid": "completed", "complete": "completed", "done": "completed"}

// aCurrency is a word that is probably meant as a currency.
var aCurrency = regexp.MustCompile(`^[A-Z]{3}$`)

// compared is a condition without its colon, such as amount>200.
var compared = regexp.MustCompile(`^([a-zA-Z]+)([<>]=?|=)(.+)$`)

// parseSearch parses a text such as `status:failed amount:>100 customer:"ann smith"`. Words without a colon are the
// term: the ID of an order, or what else the API finds orders by.
func parseSearch(text string, now time.Time) *search {
	s := &search{now: now}
	var term, typed, meant []string
	for _, word := range wordsOf(text) {
		name, value, colon := strings.Cut(word.text, ":")
		key := strings.ToLower(name)
		key = cmp.Or(otherNames[key], key)
		better := word.typed
		switch set := qualifiers[key]; {
		case word.quoted || !colon:
			term = append(term, word.text)
			if parts := compared.FindStringSubmatch(word.typed); parts != nil && qualifiers[strings.ToLower(parts[1])] != nil {
				better = parts[1] + ":" + strings.TrimPrefix(parts[2], "=") + parts[3]
			}
		case set == nil:
			term = append(term, word.text)
			if better = respelled(key, value, word.typed); value != "" && strings.HasPrefix(key, "metadata.") {
				better = quoted(value) // it is found by itself
			}
		case value == "":
			s.note("%s: has no value", name)
		default:
			s.filters = append(s.filters, word.typed)
			if wrong := set(s, value); wrong != "" {
				s.note("%s:%s is not understood: %s", name, value, wrong)
				better = respelled(key, value, word.typed)
			}
		}
		typed, meant = append(typed, word.typed), append(meant, better)
	}
	if !slices.Equal(meant, typed) {
		s.meant = strings.Join(meant, " ")
	}
	s.term = strings.Join(term, " ")
	if s.filter.Term = s.term; s.term != "" {
		s.filter.Sort = "" // what has it as its id comes first
	}
	if s.term == "" && len(term) > 0 && len(s.filters) == 0 { // it would find all orders
		s.note("%s is an empty word", text)
	}
	if s.filter.HoldReason != "" && s.filter.Hold == "" {
		s.filter.Hold = client.ListOrdersParamsHold(fsm.HoldAttention)
	}
	return s
}

// respelled is a qualifier with the name and value that were probably meant, or else what was typed.
func respelled(key, value, typed string) string {
	if qualifiers[key] == nil {
		meant := spelling.Meant(key, slices.Concat(slices.Sorted(maps.Keys(qualifiers)), slices.Sorted(maps.Keys(otherNames))))
		if meant == "" {
			return typed
		}
		_, rest, _ := strings.Cut(typed, ":")
		key = cmp.Or(otherNames[meant], meant)
		typed = key + ":" + rest
	}
	values := strings.Split(strings.ToLower(value), ",")
	for i := range values {
		if notOneOf(key, values[i]) != "" {
			values[i] = spelling.Meant(values[i], valuesOf[key])
		}
	}
	if valuesOf[key] == nil || slices.Contains(values, "") {
		return typed
	}
	return key + ":" + strings.Join(values, ",")
}

func (s *search) note(format string, values ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, values...))
}

type word struct {
	text   string
	typed  string // with its quotes
	quoted bool   // from its beginning
}

var (
	aWord = regexp.MustCompile(`(?:` + quotes + `|[^\s\p{Z}"])+`)
	aText = regexp.MustCompile(quotes)
)

const quotes = `"(?:[^"]|"")*(?:"|$)`

// wordsOf splits a text at blanks outside of double quotes. Inside, two quotes stand for one. The last quote may be
// missing.
func wordsOf(text string) (words []word) {
	for _, typed := range aWord.FindAllString(text, -1) {
		unquoted := aText.ReplaceAllStringFunc(typed, func(text string) string {
			return strings.ReplaceAll(strings.TrimSuffix(text[1:], `"`), `""`, `"`)
		})
		words = append(words, word{unquoted, typed, typed[0] == '"'})
	}
	return words
}

func (s *search) status(value string) (wrong string) {
	names := strings.Split(strings.ReplaceAll(strings.ToLower(value), "cancelled", "canceled"), ",")
	for _, name := range names {
		if name != "open" {
			s.filter.Status = append(s.filter.Status, client.Status(name))
			continue
		}
		for _, state := range fsm.States() {
			if !state.Final() {
				s.filter.Status = append(s.filter.Status, client.Status(state))
			}
		}
	}
	slices.Sort(s.filter.Status)
	s.filter.Status = slices.Compact(s.filter.Status)
	return notOneOf("status", names...)
}

var (
	anAmount = regexp.MustCompile(`^(>=|<=|>|<|=)?([0-9]{1,15}(?:\.[0-9]{1,4})?)$`)
	finest   = decimal.MustParse("0.0001") // the smallest difference of amounts
)

// amount parses 10, >10, >=10, <10, <=10 and 10..20. The bounds of the API are inclusive.
func (s *search) amount(value string) (wrong string) {
	if least, most, ok := strings.Cut(value, ".."); ok {
		if least != "" {
			wrong = s.amount(">=" + least)
		}
		if most != "" && wrong == "" {
			wrong = s.amount("<=" + most)
		}
		return wrong
	}
	parts := anAmount.FindStringSubmatch(value)
	if parts == nil {
		return "use a number, >100, <=100 or 100..200"
	}
	bound, sign := decimal.MustParse(parts[2]), parts[1]
	switch sign {
	case ">":
		bound, _ = bound.Add(finest) // can't overflow 19 digits
	case "<":
		if bound.IsZero() {
			return "no amount is below 0"
		}
		bound, _ = bound.Sub(finest)
	}
	if sign != "<" && sign != "<=" {
		s.filter.AmountFrom = bound.String()
	}
	if sign != ">" && sign != ">=" {
		s.filter.AmountTo = bound.String()
	}
	return ""
}

// created is a whole day, or from a time on.
func (s *search) created(value string) (wrong string) {
	if _, day, _ := s.time(value); day {
		s.to(value)
	}
	return s.from(value)
}

func (s *search) from(value string) (wrong string) {
	s.filter.CreatedFrom, _, wrong = s.time(value)
	return wrong
}

// to includes the whole day if there is no time.
func (s *search) to(value string) (wrong string) {
	at, day, wrong := s.time(value)
	if day {
		at = at.AddDate(0, 0, 1)
	}
	s.filter.CreatedTo = at
	return wrong
}

var anAge = regexp.MustCompile(`^([0-9]{1,4})([mhd])$`)

// time parses a day, a time or an age, in UTC.
func (s *search) time(value string) (at time.Time, day bool, wrong string) {
	today := s.now.UTC().Truncate(24 * time.Hour)
	switch strings.ToLower(value) {
	case "today":
		return today, true, ""
	case "yesterday":
		return today.AddDate(0, 0, -1), true, ""
	}
	if age := anAge.FindStringSubmatch(strings.ToLower(value)); age != nil {
		unit := map[string]time.Duration{"m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[age[2]]
		n, _ := strconv.Atoi(age[1]) // only digits
		return s.now.Add(-time.Duration(n) * unit), false, ""
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339, "2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if at, err := time.Parse(layout, strings.ToUpper(value)); err == nil {
			return at, layout == time.DateOnly, ""
		}
	}
	return at, false, "use a day such as 2026-11-01, a time such as 2026-11-01T09:30Z, today, yesterday, or an age such as 90m, 24h or 7d"
}
