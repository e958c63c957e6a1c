package campaign

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"
)

// order is what callers know of one order.
type order struct {
	id         string
	body, vary []byte // what is sent, and the same with another amount
	item       string
	stored     bool // the service has said so
	final      bool // and that it has ended
}

// callers send orders as the documents tell them to: the same body again until there is a final answer, to any replica,
// and not before Retry-After is over. What they were told is written down.
type callers struct {
	t         *testing.T
	seed      int
	crowd     int // of them
	addresses func() []string
	client    *http.Client

	mu      sync.Mutex
	orders  []*order
	open    []*order // to be asked again
	answers []answer
}

func newCallers(t *testing.T, seed, crowd int, addresses func() []string) *callers {
	t.Helper()
	c := &callers{t: t, seed: seed, crowd: crowd, addresses: addresses, client: newClient(10 * time.Second)}
	t.Cleanup(c.client.CloseIdleConnections)
	return c
}

// call sends orders until the context ends. What is under way then is given up, and asked again by finish.
func (c *callers) call(ctx context.Context) {
	var calling sync.WaitGroup
	for i := range c.crowd {
		calling.Go(func() {
			d := newDice(c.seed, uint64(100+i))
			for n := 0; pause(ctx, d.between(0, 80*time.Millisecond)); n++ {
				c.one(ctx, d, fmt.Sprintf("%d-%d", i, n))
			}
		})
	}
	calling.Wait()
}

// one does one thing that a caller may do.
func (c *callers) one(ctx context.Context, d dice, name string) {
	switch known := c.any(d); {
	case known != nil && d.chance(10):
		c.send(ctx, d, known, "order again")
	case known != nil && d.chance(5):
		c.send(ctx, d, known, "other amount")
	case known != nil && d.chance(5):
		c.send(ctx, d, known, "read")
	case d.chance(30):
		if o := c.takeOpen(d); o != nil {
			c.follow(ctx, d, o)
		}
	default:
		o := newOrder(d, name)
		c.mu.Lock()
		c.orders = append(c.orders, o)
		c.mu.Unlock()
		c.follow(ctx, d, o)
	}
}

func newOrder(d dice, name string) *order {
	o := &order{id: "order-" + name, item: fmt.Sprintf("widget-%d", d.IntN(10))}
	if d.chance(10) {
		o.item = fmt.Sprintf("scarce-%d", d.IntN(scarceItems))
	}
	customer, more := fmt.Sprintf("customer-%d", d.IntN(50)), ""
	if d.chance(3) {
		customer = "careful"
	}
	if d.chance(4) {
		more = fmt.Sprintf(`,"startAt":%q`, time.Now().Add(d.between(0, 1500*time.Millisecond)).UTC().Format(time.RFC3339Nano))
	}
	text := `{"orderId":%q,"amount":%d.%02d,"item":%q,"quantity":%d,"customerId":%q%s}`
	amount, cents, quantity := 1+d.IntN(900), d.IntN(100), 1+d.IntN(3)
	o.body = fmt.Appendf(nil, text, o.id, amount, cents, o.item, quantity, customer, more)
	o.vary = fmt.Appendf(nil, text, o.id, amount+1, cents, o.item, quantity, customer, more)
	return o
}

// follow sends an order until it is final. One that takes long is put aside, as a caller does who has others to serve.
func (c *callers) follow(ctx context.Context, d dice, o *order) {
	for range 3 {
		a := c.send(ctx, d, o, "order")
		if a.settled() && a.status != http.StatusAccepted {
			return
		}
		if !pause(ctx, max(a.retryAfter, d.between(20*time.Millisecond, 100*time.Millisecond))) {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = append(c.open, o)
}

// send asks one replica once.
func (c *callers) send(ctx context.Context, d dice, o *order, asked string) answer {
	urls := c.addresses()
	request := call{method: http.MethodPost, path: "/api/orders/process", body: o.body}
	switch asked {
	case "other amount":
		request.body = o.vary
	case "read":
		request = call{method: http.MethodGet, path: "/api/orders/" + o.id}
	}
	if prefer := []string{"", "", "wait=1", "respond-async"}[d.IntN(4)]; prefer != "" {
		request.headers = []string{"Prefer", prefer}
	}
	a := exchange(ctx, c.client, urls[d.IntN(len(urls))], request)
	a.asked, a.orderID = asked, o.id
	c.record(&a, o)
	return a
}

func (c *callers) record(a *answer, o *order) {
	a.body = nil
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.code != "given up" {
		c.answers = append(c.answers, *a)
	}
	if o != nil && (a.status == http.StatusOK || a.status == http.StatusAccepted) {
		o.stored = true
		o.final = o.final || a.order.final()
	}
}

// any is an order that the service has confirmed to be stored.
func (c *callers) any(d dice) *order {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.orders) == 0 {
		return nil
	}
	from := max(0, len(c.orders)-300)
	if o := c.orders[from+d.IntN(len(c.orders)-from)]; o.stored {
		return o
	}
	return nil
}

func (c *callers) takeOpen(d dice) *order {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) == 0 {
		return nil
	}
	i := d.IntN(len(c.open))
	o := c.open[i]
	c.open[i] = c.open[len(c.open)-1]
	c.open = c.open[:len(c.open)-1]
	return o
}

// finish asks once more for each order that was left open. It returns how many have had no final answer yet.
func (c *callers) finish(ctx context.Context) int {
	c.mu.Lock()
	left := c.open
	c.open = nil
	c.mu.Unlock()
	work := make(chan *order, len(left))
	for _, o := range left {
		work <- o
	}
	close(work)
	var finishing sync.WaitGroup
	for i := range 8 {
		finishing.Go(func() {
			d := newDice(c.seed, uint64(300+i))
			for o := range work {
				c.follow(ctx, d, o)
			}
		})
	}
	finishing.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

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
