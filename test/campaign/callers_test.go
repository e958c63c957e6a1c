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
	"slices"
	"strconv"
	"strings"
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
	addresses func() []string
	client    *http.Client

	mu        sync.Mutex
	orders    []*order
	open      []*order // to be asked again
	answers   []answer
	forgotten time.Time // what was asked before is not known any more
	losing    bool      // an order that was stored may get lost; the other amount would then be stored in its place
}

func newCallers(t *testing.T, seed int, addresses func() []string) *callers {
	t.Helper()
	c := &callers{t: t, seed: seed, addresses: addresses, client: newClient(10 * time.Second)}
	t.Cleanup(c.client.CloseIdleConnections)
	return c
}

// call has so many callers send orders until the context ends. What is under way then is given up, and asked again by finish.
func (c *callers) call(ctx context.Context, crowd int) {
	var calling sync.WaitGroup
	for i := range crowd {
		calling.Go(func() {
			d := newDice(c.seed, uint64(100+i))
			for n := 0; pause(ctx, d.between(0, 80*time.Millisecond)); n++ {
				c.one(ctx, d, fmt.Sprintf("%d-%d-%d", crowd, i, n))
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
	case known != nil && d.chance(5) && !c.isLosing():
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
	more := "" // terms; an order without any is admitted in another way
	switch {
	case d.chance(3):
		more = `,"customerId":"careful"`
	case d.chance(30):
		more = fmt.Sprintf(`,"customerId":"customer-%d"`, d.IntN(50))
	}
	if d.chance(4) {
		more += fmt.Sprintf(`,"startAt":%q`, time.Now().Add(d.between(0, 1500*time.Millisecond)).UTC().Format(time.RFC3339Nano))
	}
	text := `{"orderId":%q,"amount":%d.%02d,"item":%q,"quantity":%d%s}`
	amount, cents, quantity := 1+d.IntN(900), d.IntN(100), 1+d.IntN(3)
	o.body = fmt.Appendf(nil, text, o.id, amount, cents, o.item, quantity, more)
	o.vary = fmt.Appendf(nil, text, o.id, amount+1, cents, o.item, quantity, more)
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
	if a.sent.Before(c.forgotten) {
		return
	}
	if a.code != "given up" {
		c.answers = append(c.answers, *a)
	}
	if o != nil && (a.status == http.StatusOK || a.status == http.StatusAccepted) {
		o.stored = true
		o.final = o.final || a.order.final()
	}
}

// forget has the callers send all orders again, as if they had never been answered.
func (c *callers) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgotten, c.answers, c.open, c.losing = time.Now(), nil, slices.Clone(c.orders), false
	for _, o := range c.orders {
		o.stored, o.final = false, false
	}
}

// lose announces that what is answered from now on may get lost, until forget.
func (c *callers) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.losing = true
}

func (c *callers) isLosing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.losing
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

// answer is what became of one request. Status is 0 if there was no answer; then the code says what was seen.
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
	OrderID        string    `json:"orderId"`
	Status         string    `json:"status"`
	Generation     int       `json:"generation"`
	Seq            int       `json:"seq"`
	CreatedAt      time.Time `json:"createdAt"`
	Hold           string    `json:"hold"`
	HoldReason     string    `json:"holdReason"`
	AllowedActions []string  `json:"allowedActions"`
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
	return &http.Client{Timeout: limit, Transport: &http.Transport{ // the service closes what was never used after five seconds
		MaxIdleConnsPerHost: 256, IdleConnTimeout: 3 * time.Second, DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext}}
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

// people do what the runbook lets people do: to orders that callers have sent, and to the stock.
type people struct {
	*callers
	provider *provider
	dice     dice
	asked    int
	shelves  []shelf
	doubts   []string // reasons of a hold that nothing in a campaign can lead to
}

// shelf is an item without orders, whose stock is set again and again.
type shelf struct{ answered, sent int }

func newPeople(c *callers, p *provider) *people {
	return &people{callers: c, provider: p, dice: newDice(c.seed, 55), shelves: make([]shelf, 2)}
}

// interfere does something now and then until the context ends.
func (p *people) interfere(ctx context.Context) {
	for pause(ctx, p.dice.between(10*time.Millisecond, 120*time.Millisecond)) {
		o := p.any(p.dice)
		if o == nil {
			continue
		}
		a, ok := p.read(ctx, o.id)
		if !ok || len(a.order.AllowedActions) == 0 {
			continue
		}
		if final := a.order.final(); final && !p.dice.chance(20) {
			continue // most orders stay as they are
		}
		p.act(ctx, o.id, &a, a.order.AllowedActions[p.dice.IntN(len(a.order.AllowedActions))])
	}
}

// countShelves sets the stock of shelves until the context ends.
func (p *people) countShelves(ctx context.Context) {
	d := newDice(p.seed, 56)
	for pause(ctx, d.between(10*time.Millisecond, 500*time.Millisecond)) {
		p.count(ctx, d.IntN(len(p.shelves)))
	}
}

// count sets the stock of a shelf to one more than the last time, until it is answered.
func (p *people) count(ctx context.Context, i int) {
	s := &p.shelves[i]
	s.sent++
	a := p.setStock(ctx, fmt.Sprintf("shelf-%d", i), s.sent)
	a.asked = "stock"
	p.record(&a, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.status == http.StatusOK && !a.sent.Before(p.forgotten) {
		s.answered = s.sent
	}
}

// forget is that of the callers, and of how the stock was set.
func (p *people) forget() {
	p.callers.forget()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.shelves {
		p.shelves[i].answered = 0
	}
}

// setStock sets the stock of an item that only this caller sets, by its current version.
func (p *people) setStock(ctx context.Context, item string, onHand int) answer {
	set := call{method: http.MethodPut, path: "/api/inventory/" + item, headers: []string{"If-None-Match", "*"},
		body: fmt.Appendf(nil, `{"onHand":%d,"onBehalfOf":"campaign","requestId":"set to %d"}`, onHand, onHand)}
	if seen := p.repeat(ctx, call{method: http.MethodGet, path: set.path}); seen.status == http.StatusOK {
		set.headers = []string{"If-Match", seen.etag}
	}
	return p.repeat(ctx, set)
}

// read looks at an order.
func (p *people) read(ctx context.Context, orderID string) (answer, bool) {
	a := p.repeat(ctx, call{method: http.MethodGet, path: "/api/orders/" + orderID})
	a.asked, a.orderID = "read", orderID
	p.doubt(orderID, &a)
	p.record(&a, nil)
	return a, a.status == http.StatusOK
}

// doubt notes a hold for the reason that a key may be forgotten: keys are kept for a day, and campaigns take minutes.
func (p *people) doubt(orderID string, a *answer) {
	if a.order.Hold == "attention" && strings.HasPrefix(a.order.HoldReason, "outcome_unknown") {
		p.doubts = append(p.doubts, fmt.Sprintf("order %s: held as %s minutes after its first call", orderID, a.order.HoldReason))
	}
}

// act asks a verb of an order that was read.
func (p *people) act(ctx context.Context, orderID string, seen *answer, verb string) answer {
	fields := map[string]string{"onBehalfOf": "campaign", "reason": "a campaign"}
	request := call{method: http.MethodPost, path: "/api/orders/" + orderID + "/" + verb}
	if verb == "step-result" {
		request.headers = []string{"If-Match", seen.etag}
		if !p.lookUp(orderID, &seen.order, fields) {
			return answer{}
		}
	}
	if verb == "refund" {
		request.path += "s"
		if p.dice.chance(70) {
			fields["amount"] = "0.50"
		}
	}
	p.asked++
	fields["requestId"] = fmt.Sprintf("request-%d", p.asked)
	var err error
	if request.body, err = json.Marshal(fields); err != nil {
		panic(err)
	}
	a := p.repeat(ctx, request)
	a.asked, a.orderID, a.requestID = verb, orderID, fields["requestId"]
	p.record(&a, nil)
	return a
}

// lookUp finds out at the provider what became of the step that an order is at, and says so in the fields of a step-result.
func (p *people) lookUp(orderID string, seen *shown, fields map[string]string) bool {
	switch seen.Status {
	case "charging", "reserving", "confirming":
		step := map[string]string{"charging": "charge", "reserving": "reserve", "confirming": "confirm"}[seen.Status]
		outcome, reference := p.provider.settle(orderID, step, seen.Generation)
		fields["step"], fields["outcome"] = step, outcome
		if reference != "" {
			fields["reference"] = reference
		}
	case "releasing", "refunding":
		step := map[string]string{"releasing": "reserve", "refunding": "charge"}[seen.Status]
		p.provider.takeBack(orderID, step, seen.Generation)
		fields["step"], fields["outcome"] = step, "done"
	default:
		return false
	}
	return true
}

// repeat sends a request, with the same name, until it is answered for good.
func (p *people) repeat(ctx context.Context, c call) (a answer) {
	c.headers = append(c.headers, "Prefer", "respond-async")
	for d := newDice(p.seed, uint64(time.Now().UnixNano())); ; {
		urls := p.addresses()
		a = exchange(ctx, p.client, urls[d.IntN(len(urls))], c)
		if a.settled() || !pause(ctx, max(a.retryAfter, 50*time.Millisecond)) {
			return a
		}
		unanswered := a
		unanswered.asked = "people"
		p.record(&unanswered, nil)
	}
}
