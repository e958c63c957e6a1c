package faults

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"
)

// order is what a caller asks for. Asked again, it is the same to the byte.
type order struct {
	id, amount, item string
	card             string // or none
}

func (o order) body() string {
	terms := "" // most orders do without, and take another way for it
	if o.card != "" {
		terms = fmt.Sprintf(`,"paymentMethod":%q`, o.card)
	}
	return fmt.Sprintf(`{"orderId":%q,"amount":%s,"item":%q%s}`, o.id, o.amount, o.item, terms)
}

// answer is what a caller got. One with an error is none.
type answer struct {
	code   int
	header http.Header
	body   struct {
		OrderID   string
		Status    any // the state of an order, or the number of a problem
		Code      string
		Amount    string
		Steps     map[string]struct{ Completed, Undone bool }
		Failure   struct{ Step, Code string }
		CreatedAt time.Time
	}
	text  string
	began atomic.Bool // its first byte arrived
	err   error
}

// state is the state of the order in the answer, "" if there is none.
func (a *answer) state() string {
	if a.err != nil || a.code/100 != 2 {
		return ""
	}
	state, _ := a.body.Status.(string)
	return state
}

func (a *answer) final() bool { return a.state() == "completed" || a.state() == "failed" }

func (a *answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return fmt.Sprintf("%d %s", a.code, a.text)
}

// wrong says what is wrong with an answer to a good request for an order, whatever went on in the service.
func (a *answer) wrong(o order) string {
	switch {
	case a.code == http.StatusOK && a.final(), a.code == http.StatusAccepted && !a.final():
		return a.wrongOrder(o)
	case a.code == http.StatusServiceUnavailable:
		if a.header.Get("Retry-After") == "" || a.header.Get("Content-Type") != "application/problem+json" || a.body.Code == "" {
			return "a 503 that does not say when to come again, and why"
		}
		return ""
	default:
		return "an answer that no caller should get"
	}
}

func (a *answer) wrongOrder(o order) string {
	steps := a.body.Steps
	charge, reserve, confirm := steps["charge"], steps["reserve"], steps["confirm"]
	switch {
	case a.header.Get("Content-Type") != "application/json":
		return "not JSON"
	case a.body.OrderID != o.id || a.body.Amount != o.amount:
		return "another order"
	case a.state() == "completed" && !(charge.Completed && reserve.Completed && confirm.Completed):
		return "completed without its steps"
	case a.state() == "failed" && (!charge.Undone || confirm.Completed || a.body.Failure.Code != "out_of_stock"):
		return "failed without having been undone, or without a reason"
	case a.code == http.StatusAccepted && (a.header.Get("Location") == "" || a.header.Get("Retry-After") == ""):
		return "a 202 that does not say where to look, and when"
	}
	return ""
}

// client sends requests. Its answers are the truth that the database is compared with.
type client struct {
	http  *http.Client
	token string // or none
}

// answerLimit is longer than the service lets a caller wait.
const answerLimit = 70 * time.Second

func newClient(callers int, keepAlive bool) *client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = callers, callers
	transport.DisableKeepAlives = !keepAlive
	return &client{http: &http.Client{Transport: transport, Timeout: answerLimit}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// insist sends an order until there is room for it, as callers are told to.
func (c *client) insist(ctx context.Context, url string, o order) *answer {
	for end := time.Now().Add(patience); ; {
		a := c.process(ctx, url, o, "")
		if a.err != nil || a.code != http.StatusServiceUnavailable || time.Now().After(end) {
			return a
		}
		<-time.After(pace)
	}
}

// process sends an order once. Prefer may be empty.
func (c *client) process(ctx context.Context, url string, o order, prefer string) *answer {
	return c.send(ctx, request{method: http.MethodPost, url: url + "/api/orders/process", body: o.body(), prefer: prefer})
}

func (c *client) get(ctx context.Context, url string) *answer {
	return c.send(ctx, request{method: http.MethodGet, url: url})
}

// request is what a caller sends. The body and Prefer may be empty.
type request struct {
	method, url, body, prefer string
	token                     string
	header                    [2]string // one more, or none
}

func (c *client) send(ctx context.Context, r request) *answer {
	a := &answer{}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotFirstResponseByte: func() { a.began.Store(true) },
	})
	sent, err := http.NewRequestWithContext(ctx, r.method, r.url, strings.NewReader(r.body))
	if err != nil {
		a.err = err
		return a
	}
	if r.body != "" {
		sent.Header.Set("Content-Type", "application/json")
	}
	if token := cmp.Or(r.token, c.token); token != "" {
		sent.Header.Set("Authorization", "Bearer "+token)
	}
	if r.prefer != "" {
		sent.Header.Set("Prefer", r.prefer)
	}
	if r.header[0] != "" {
		sent.Header.Set(r.header[0], r.header[1])
	}
	response, err := c.http.Do(sent)
	if err != nil {
		a.err = err
		return a
	}
	defer response.Body.Close()
	a.code, a.header = response.StatusCode, response.Header
	a.read(response.Body)
	return a
}

func (a *answer) read(body io.Reader) {
	text, err := io.ReadAll(body)
	a.text = string(text)
	if err != nil {
		a.err = fmt.Errorf("read answer: %w", err)
		return
	}
	if !strings.Contains(a.header.Get("Content-Type"), "json") {
		return
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&a.body); err != nil {
		a.err = fmt.Errorf("decode answer %q: %w", text, err)
	}
}
