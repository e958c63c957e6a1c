package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Problem is the error of a call that was answered, and not with success. errors.As finds it. A proxy in between may
// have answered: then there is no Code.
type Problem struct {
	ProblemBody
	// RequestID is by what the logs of the service know the request.
	RequestID string
	// RetryAfter is when to come again, if the answer says so.
	RetryAfter time.Duration
}

// Error names status, code and what is wrong with which field.
func (p *Problem) Error() string {
	text := strings.TrimSpace(fmt.Sprintf("%d %s", p.Status, p.Code)) + ": " + p.Title
	if p.Detail != "" {
		text += " " + p.Detail
	}
	for _, field := range p.Errors {
		text += fmt.Sprintf(" %s%s%s %s.", field.Pointer, field.Parameter, field.Header, field.Detail)
	}
	if p.RequestID != "" {
		text += " (request " + p.RequestID + ")"
	}
	return text
}

func problemOf(answer *http.Response, text []byte) *Problem {
	p := &Problem{RequestID: answer.Header.Get("X-Request-Id"), RetryAfter: retryAfter(answer.Header.Get("Retry-After"))}
	if json.Unmarshal(text, &p.ProblemBody) != nil || p.Code == "" { // a proxy's own page
		p.ProblemBody = ProblemBody{Title: http.StatusText(answer.StatusCode) + "."}
	}
	p.Status = int64(answer.StatusCode)
	return p
}

// retryAfter reads seconds or a date (RFC 9110, 10.2.3). What is neither counts as nothing.
func retryAfter(header string) time.Duration {
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}
