package campaign

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// answer is what became of one request. Status is 0 where nobody answered; then the code says what was seen.
type answer struct {
	sent, at   time.Time
	status     int
	code       string
	body       []byte
	retryAfter time.Duration
	etag       string

	asked     string // what for: order, read, other amount, a verb
	orderID   string
	requestID string
	order     shown
}

// shown is what an answer says of an order.
type shown struct {
	Status         string   `json:"status"`
	Generation     int      `json:"generation"`
	Seq            int      `json:"seq"`
	Amount         string   `json:"amount"`
	Hold           string   `json:"hold"`
	HoldReason     string   `json:"holdReason"`
	AllowedActions []string `json:"allowedActions"`
}

func (s *shown) final() bool {
	return s.Status == "completed" || s.Status == "failed" || s.Status == "canceled"
}

// settled tells whether the request was answered for good: done, or refused for a reason that is the caller's. What else
// there is (503, 500, silence) has to be sent again.
func (a *answer) settled() bool {
	return a.status >= 200 && a.status < 500 && a.status != http.StatusRequestTimeout
}

func newClient(limit time.Duration) *http.Client {
	return &http.Client{Timeout: limit, Transport: &http.Transport{
		MaxIdleConnsPerHost: 32, DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext}}
}

// call is a request to any replica.
type call struct {
	method, path string
	body         []byte
	headers      []string // names and values
}

// exchange sends a request to one replica and reads the answer.
func exchange(ctx context.Context, client *http.Client, base string, c call) (a answer) {
	a.sent = time.Now()
	defer func() { a.at = time.Now() }()
	r, err := http.NewRequestWithContext(ctx, c.method, base+c.path, bytes.NewReader(c.body))
	if err != nil {
		a.code = "no address"
		return a
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(c.headers); i += 2 {
		r.Header.Set(c.headers[i], c.headers[i+1])
	}
	response, err := client.Do(r)
	if err != nil {
		a.code = why(ctx, err)
		return a
	}
	defer response.Body.Close()
	if a.body, err = io.ReadAll(response.Body); err != nil {
		a.code = why(ctx, err)
		return a
	}
	a.status, a.etag = response.StatusCode, response.Header.Get("ETag")
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		a.retryAfter = time.Duration(seconds) * time.Second
	}
	a.read()
	return a
}

// read takes from the body what is said of an order, or the code of a problem.
func (a *answer) read() {
	if a.status < 300 {
		_ = json.Unmarshal(a.body, &a.order) // not every answer is an order
		return
	}
	var problem struct {
		Code  string `json:"code"`
		Order shown  `json:"order"`
	}
	_ = json.Unmarshal(a.body, &problem)
	a.code, a.order = strconv.Itoa(a.status)+" "+problem.Code, problem.Order
}

// why is one word for a failed exchange.
func why(ctx context.Context, err error) string {
	var network net.Error
	var dial *net.OpError
	switch {
	case ctx.Err() != nil:
		return "given up" // by us
	case errors.As(err, &network) && network.Timeout():
		return "no answer in time"
	case errors.As(err, &dial) && dial.Op == "dial":
		return "no connection"
	default:
		return "connection lost"
	}
}
