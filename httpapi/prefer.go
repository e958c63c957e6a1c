package httpapi

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// maxWait is the longest a caller can ask to wait.
const maxWait = time.Minute

// waitTime is how long to wait, as a query parameter.
type waitTime string

func (w waitTime) duration() time.Duration {
	seconds, _ := strconv.Atoi(strings.TrimSuffix(string(w), "s")) // the schema has looked
	return time.Duration(seconds) * time.Second
}

// Resolve lifts the read deadline of the connection, which would end a request that waits.
func (w waitTime) Resolve(ctx huma.Context) []error {
	if w.duration() > 0 {
		_ = ctx.SetReadDeadline(time.Time{}) // not every writer has a connection
	}
	return nil
}

// preference is what a caller asks for with Prefer (RFC 7240): how long to wait
// for the end of an order, and whether to refuse fields that are not known. What is not
// understood is ignored, as the RFC says.
type preference struct {
	atMost   time.Duration
	waits    bool   // wait was given
	async    bool   // respond-async was given
	handling string // strict, lenient, or empty
}

// preferenceOf reads the Prefer headers of a request; without any, the caller
// waits for the fallback.
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

// judge adds to what is wrong with a body the fields that are not known, if the caller
// wants them refused.
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
		refused.Errors = append(refused.Errors, fieldError{Pointer: "/" + pointerEscape.Replace(name), Code: unknownField, Detail: "is not a known field"})
	}
	return refused
}

// placeToWait takes the place for a request that waits for the end of an order. Without one, it does not wait.
func (p *preference) placeToWait(w http.ResponseWriter, r *http.Request) (held place) {
	p.atMost, held = mayWait(w, r, p.atMost)
	return held
}

// applied names the preferences that shaped the answer, for Preference-Applied.
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
