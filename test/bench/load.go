package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"pawl/internal/cell"
	"pawl/internal/load"
)

// startLoad begins sending orders to the replicas of a service, in a closed loop or at a rate.
func startLoad(to []*server, s setup) *load.Running {
	if s.Target == streamName {
		return startStream(to[0], s)
	}
	return load.Load{Callers: s.Callers, Rate: s.Rate, Caller: func(i int) (send func(int) error, end func()) {
		w := newWire(to[i%len(to)].address, to[0].token, s.Target == keyedName, s.Lines)
		w.cell = cell.Cell{Number: s.Cell, Of: max(s.Cells, 1)}
		return func(int) error { return w.process(s.Items, s.Ordered) }, w.close
	}}.Start()
}

// process sends a new order, on a new connection if the last one was lost.
func (w *wire) process(items int, ordered bool) error {
	w.next(items, ordered)
	err := w.open()
	if err == nil {
		err = w.send()
	}
	if _, answered := errors.AsType[*refused](err); err != nil && !answered {
		w.close()
	}
	return err
}

func (w *wire) open() error {
	if w.conn != nil {
		return nil
	}
	conn, err := net.DialTimeout("tcp", w.address, 5*time.Second)
	if err != nil {
		return err
	}
	w.conn, w.reader = conn, bufio.NewReaderSize(conn, 4096)
	return nil
}

func (w *wire) close() {
	if w.conn != nil {
		_ = w.conn.Close()
		w.conn = nil
	}
}

// The generator shares its cores with the service, so it uses no HTTP client: one request is built in advance, in which
// only the order id, the item and the key change.
const (
	bodyFormat = `{"orderId":"%032d","amount":99.99,%s}`
	bodyItem   = `"item":"` + itemFormat + `"`
	bodyLine   = `{"item":"` + itemFormat + `","quantity":1}`
	itemFormat = itemPrefix + "%05d"
	itemPrefix = "item-"
	maxItems   = 100_000 // five digits: all requests are of one length

	keyHeader = "Idempotency-Key: "

	answerLimit = 60 * time.Second // twice the longest wait of a caller
)

var completed = []byte(`"status":"completed"`)

// allSteps makes the calls of a new order to a provider.
func (w *wire) allSteps(items int) error {
	w.next(items, false)
	for _, step := range steps {
		if err := w.open(); err != nil {
			return err
		}
		body := fmt.Sprintf(`{"orderId":"%s","step":"%s","operation":"do","generation":0,"amount":"99.99","currency":"USD","item":"%s%s","quantity":1}`,
			w.orderID, step, itemPrefix, w.items[0])
		if _, err := fmt.Fprintf(w.conn, "POST /%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nIdempotency-Key: %s-%s\r\nContent-Length: %d\r\n\r\n%s",
			step, w.address, w.orderID, step, len(body), body); err != nil {
			w.close()
			return fmt.Errorf("write request: %w", err)
		}
		if err := w.answered(); err != nil {
			return err
		}
	}
	return nil
}

// wire is a keep-alive connection and its request.
type wire struct {
	address string
	conn    net.Conn
	reader  *bufio.Reader
	request []byte
	length  int       // of its body
	orderID []byte    // in request
	key     []byte    // in request; empty: it has no Idempotency-Key
	items   [][]byte  // the numbers of the items in request
	cell    cell.Cell // to which its orders belong
	body    bytes.Buffer
}

// newWire returns a wire for requests with a token, or without one if it is empty. Without lines, an order has an item.
func newWire(address, token string, keyed bool, lines int) *wire {
	credential := ""
	if token != "" {
		credential = "\r\nAuthorization: Bearer " + token
	}
	what := fmt.Sprintf(bodyItem, 0)
	if lines > 0 {
		what = `"lines":[` + strings.TrimSuffix(strings.Repeat(fmt.Sprintf(bodyLine, 0)+",", lines), ",") + "]"
	}
	body := fmt.Sprintf(bodyFormat, 0, what)
	head := "POST /api/orders/process HTTP/1.1\r\nHost: " + address +
		credential + "\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n"
	at := len(head) + len(keyHeader)
	if keyed {
		head += keyHeader + strings.Repeat("0", 32) + "\r\n"
	}
	head += "\r\n"
	w := &wire{address: address, request: []byte(head + body), length: len(body)}
	if keyed {
		w.key = w.request[at : at+32]
	}
	id := len(head) + len(`{"orderId":"`)
	w.orderID = w.request[id : id+32]
	for at := len(head); ; {
		next := bytes.Index(w.request[at:], []byte(itemPrefix))
		if next < 0 {
			break
		}
		at += next + len(itemPrefix)
		w.items = append(w.items, w.request[at:at+5])
	}
	return w
}

// next changes the request to a new order of its cell.
func (w *wire) next(items int, ordered bool) {
	for ours := false; !ours; ours = w.cell.Of <= 1 || w.cell.Has(string(w.orderID)) {
		id := newID(ordered)
		hex.Encode(w.orderID, id[:])
	}
	if len(w.key) > 0 {
		key := newID(false)
		hex.Encode(w.key, key[:])
	}
	for _, item := range w.items {
		n := rand.IntN(items)
		for i := len(item) - 1; i >= 0; i-- {
			item[i] = byte('0' + n%10)
			n /= 10
		}
	}
}

// newID is random, so that inserts hit random places of the unique index; or, if ordered, it begins with the time in
// milliseconds, like a UUIDv7 (RFC 9562).
func newID(ordered bool) (id [16]byte) {
	binary.LittleEndian.PutUint64(id[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(id[8:], rand.Uint64())
	if ordered {
		binary.BigEndian.PutUint64(id[:8], uint64(time.Now().UnixMilli())<<16|rand.Uint64N(1<<16))
	}
	return id
}

// order is the body of the request.
func (w *wire) order() []byte { return w.request[len(w.request)-w.length:] }

// send sends the order, which must be answered as completed.
func (w *wire) send() error {
	if err := w.conn.SetReadDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	if _, err := w.conn.Write(w.request); err != nil {
		return fmt.Errorf("write request: %w", err)
	}
	if err := w.answered(); err != nil {
		return err
	}
	if !bytes.Contains(w.body.Bytes(), completed) {
		return &refused{fmt.Sprintf("not completed: %.200s", w.body.Bytes())}
	}
	return nil
}

// answered reads an answer, which must be a 200, into body.
func (w *wire) answered() error {
	response, err := http.ReadResponse(w.reader, nil)
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	defer response.Body.Close()
	w.body.Reset()
	if _, err := w.body.ReadFrom(response.Body); err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return &refused{fmt.Sprintf("status %d: %.200s", response.StatusCode, w.body.Bytes())}
	}
	return nil
}

// refused is an answer that was read completely, so the connection can be used again.
type refused struct{ text string }

func (r *refused) Error() string { return r.text }
