package httpapi

import (
	"strconv"
	"strings"

	"pawl/internal/orders"
)

// matches reports whether If-None-Match names the entity tag (RFC 9110, 13.1.2;
// the comparison is weak).
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

// ifMatch reads If-Match (RFC 9110, 13.1.1) as the version the caller wants to
// find, from 1 on. Nil means any. A tag that is none of ours, or weak, can't match; a list is
// refused, because the version has to be compared in one statement with the write.
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

// ifNoneMatch reads If-None-Match of a write (RFC 9110, 13.1.2): whether the caller
// wants to find nothing. Anything but * is refused: a write unless it is some version
// is asked for by nobody, and to ignore it would overwrite what was to be kept.
func ifNoneMatch(header string) (absent bool, err error) {
	switch strings.TrimSpace(header) {
	case "":
		return false, nil
	case "*":
		return true, nil
	}
	return false, invalidHeader("If-None-Match", "must be *")
}
