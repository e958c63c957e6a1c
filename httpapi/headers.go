package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/orders"
	"pawl/internal/spelling"
)

// maxWait is the longest time that a caller can wait.
const maxWait = time.Minute

// waitTime is how long to wait, as a query parameter.
type waitTime string

func (w waitTime) duration() time.Duration {
	seconds, _ := strconv.Atoi(strings.TrimSuffix(string(w), "s")) // checked by the schema
	return time.Duration(seconds) * time.Second
}

// Resolve lifts the read deadline of the connection, which would end a request that waits.
func (w waitTime) Resolve(ctx huma.Context) []error {
	if w.duration() > 0 {
		_ = ctx.SetReadDeadline(time.Time{}) // not every writer has a connection
	}
	return nil
}

// preference is what the Prefer headers (RFC 7240) ask for: how long to wait for the end of an order, and whether to
// reject unknown fields. Unknown preferences are ignored, as the RFC requires.
type preference struct {
	atMost   time.Duration
	waits    bool   // wait was given
	async    bool   // respond-async was given
	handling string // strict, lenient, or empty
}

// preferenceOf reads the Prefer headers of a request. Without any, the caller waits for the fallback.
func preferenceOf(headers []string, fallback time.Duration) preference {
	p := preference{atMost: fallback}
	for _, header := range headers {
		for part := range strings.SplitSeq(header, ",") {
			p.read(part)
		}
	}
	if p.async && !p.waits {
		p.atMost = 0
	}
	return p
}

func (p *preference) read(part string) {
	part, _, _ = strings.Cut(part, ";") // parameters
	name, value, _ := strings.Cut(part, "=")
	switch name = strings.TrimSpace(name); {
	case strings.EqualFold(name, "respond-async"):
		p.async = true
	case strings.EqualFold(name, "handling") && p.handling == "": // the first one counts
		p.handling = strings.ToLower(unquoted(value))
	case strings.EqualFold(name, "wait") && !p.waits:
		seconds, err := strconv.ParseUint(unquoted(value), 10, 31)
		if err == nil {
			p.waits, p.atMost = true, min(time.Duration(seconds)*time.Second, maxWait)
		}
	}
}

func unquoted(value string) string { return strings.Trim(strings.TrimSpace(value), `"`) }

const strict, unknownField = "strict", "unknown_field"

// judge adds the unknown fields to the faults of a body, with handling=strict.
func (p preference) judge(ignored []string, err error) error {
	if p.handling != strict || len(ignored) == 0 {
		return err
	}
	refused := newProblem("invalid_input", "")
	if err != nil {
		refused = problemOf(err)
	}
	refused.IgnoredFields = nil
	for _, name := range ignored[:min(len(ignored), maxFaults)] {
		fault := fieldError{Pointer: "/" + pointerEscape.Replace(name), Code: unknownField, Detail: "is not a known field"}
		refused.Errors = append(refused.Errors, fault)
	}
	return refused
}

// placeToWait takes a place for a request that waits for the end of an order. If there is none, the request does not
// wait.
func (p *preference) placeToWait(w http.ResponseWriter, r *http.Request) (held place) {
	p.atMost, held = mayWait(w, r, p.atMost)
	return held
}

// applied lists the preferences that were applied, for Preference-Applied.
func (p preference) applied(final bool) string {
	var names []string
	if p.async && !final {
		names = append(names, "respond-async")
	}
	if p.waits {
		names = append(names, "wait="+strconv.Itoa(int(p.atMost/time.Second)))
	}
	if p.handling == strict {
		names = append(names, "handling="+strict)
	}
	return strings.Join(names, ", ")
}

// matches reports whether If-None-Match has the entity tag (RFC 9110, 13.1.2; the comparison is weak).
func matches(header, tag string) bool {
	if strings.TrimSpace(header) == "*" {
		return true
	}
	for part := range strings.SplitSeq(header, ",") {
		if strings.TrimPrefix(strings.TrimSpace(part), "W/") == tag {
			return true
		}
	}
	return false
}

// ifMatch reads If-Match (RFC 9110, 13.1.1) as the expected version, from 1 on. Nil means any. A weak tag, or one
// that this service never makes, can't match. A list is rejected, because the version is compared in the statement
// that writes.
func ifMatch[N int32 | int64](header string) (*N, error) {
	header = strings.TrimSpace(header)
	if header == "" || header == "*" {
		return nil, nil
	}
	if strings.Contains(header, ",") {
		return nil, invalidHeader("If-Match", "must be a single entity tag")
	}
	quoted, opened := strings.CutPrefix(header, `"`)
	text, closed := strings.CutSuffix(quoted, `"`)
	number, err := strconv.ParseInt(text, 10, 64)
	version := N(number)
	if !opened || !closed || err != nil || number < 1 || int64(version) != number || text != decimalText(number) {
		return nil, orders.ErrPrecondition
	}
	return &version, nil
}

// ifNoneMatch reads If-None-Match of a write (RFC 9110, 13.1.2): whether the resource must not exist. Anything but * is
// rejected: ignoring it could overwrite what the caller wanted to keep.
func ifNoneMatch(header string) (absent bool, err error) {
	switch strings.TrimSpace(header) {
	case "":
		return false, nil
	case "*":
		return true, nil
	}
	return false, invalidHeader("If-None-Match", "must be *")
}

// checked rejects a query string with parameters that the route does not take, or repeated ones, before the body is
// read: with a mistyped dryRun the request would be executed, and a mistyped filter would list everything.
func (s *server) checked(pattern string, next http.HandlerFunc) http.HandlerFunc {
	known := s.queryParameters(pattern)
	return s.answered(func(w http.ResponseWriter, r *http.Request) error {
		if err := checkQuery(r.URL.RawQuery, known); err != nil {
			return err
		}
		next(w, r)
		return nil
	})
}

// queryParameters are the documented query parameters of a route.
func (s *server) queryParameters(pattern string) (names []string) {
	for _, parameter := range s.operationAt(pattern).Parameters {
		if parameter.In == "query" {
			names = append(names, parameter.Name)
		}
	}
	return names
}

func checkQuery(query string, known []string) error {
	if query == "" {
		return nil
	}
	given, err := url.ParseQuery(query)
	if err != nil {
		return newProblem("invalid_parameter", "The query string is not percent-encoded, or contains a semicolon.")
	}
	var faults []fieldError
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if code, detail := checkParameter(name, given[name], known); code != "" && len(faults) < maxFaults {
			faults = append(faults, fieldError{Parameter: shownName(name), Code: code, Detail: detail})
		}
	}
	if len(faults) > 0 {
		return newProblem("invalid_parameter", "", faults...)
	}
	return nil
}

// checkParameter returns a fault as code and detail.
func checkParameter(name string, values, known []string) (code, detail string) {
	switch {
	case !slices.Contains(known, name) && len(known) == 0:
		return "unknown_parameter", "unknown parameter; this route has none"
	case !slices.Contains(known, name):
		return "unknown_parameter", "unknown parameter; must be one of " + strings.Join(known, ", ") + spelling.Suggestion(name, known)
	case len(values) > 1:
		return "repeated", "must be sent only once"
	case values[0] == "":
		return "empty", "must not be empty; omit it instead"
	}
	return "", ""
}

// shownName is the name of a parameter, unless it is longer than any of ours.
func shownName(name string) string {
	if len(name) > maxKey {
		return ""
	}
	return name
}

// A cursor is the position after which the next page begins, and a checksum of it and the filters of the list. It is
// no secret, and gives access to nothing that the list does not show. The checksum detects cursors that were cut,
// changed, or made for other filters, which would skip orders silently.
const sumLength = 9

var cursorText = base64.RawURLEncoding.Strict()

func sealCursor(binding []string, position string) string {
	return cursorText.EncodeToString(append(cursorSum(binding, position), position...))
}

// openNumber returns the position of a cursor that is the number of a row; 0 without a cursor. Error: errCursor.
func openNumber(binding []string, cursor string) (int64, error) {
	if cursor == "" {
		return 0, nil
	}
	position, ok := openCursor(binding, cursor)
	number, whole := parseInteger([]byte(position))
	if !ok || !whole || number <= 0 {
		return 0, errCursor()
	}
	return number, nil
}

// openCursor returns the position; ok is false if sealCursor did not make the cursor for this binding.
func openCursor(binding []string, cursor string) (position string, ok bool) {
	raw, err := cursorText.DecodeString(cursor)
	if err != nil || len(raw) <= sumLength {
		return "", false
	}
	position = string(raw[sumLength:])
	return position, string(cursorSum(binding, position)) == string(raw[:sumLength])
}

func cursorSum(binding []string, position string) []byte {
	var text []byte
	for _, part := range append(binding, position) {
		text = strconv.AppendQuote(text, part) // so that different lists have different texts
	}
	sum := sha256.Sum256(text)
	return sum[:sumLength]
}

func errCursor() error {
	return invalidParameter("cursor", "invalid", "must be the nextCursor of a page with the same filters")
}
