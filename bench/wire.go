package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"time"
)

// The generator shares its cores with what it measures, so it speaks HTTP/1.1 by
// hand: one request built in advance, of which only the order id and the item
// change, and the least of the answer that must be read (RFC 9112).
const (
	bodyFormat = `{"orderId":"%032d","amount":99.99,"item":"` + itemFormat + `"}`
	itemFormat = "item-%05d"
	maxItems   = 100_000 // five digits: all requests are of one length

	answerLimit = 60 * time.Second // twice what the service lets a caller wait
)

var completed = []byte(`"status":"completed"`)

// wire is one keep-alive connection and the request that goes over it.
type wire struct {
	address string
	conn    net.Conn
	reader  *bufio.Reader
	request []byte
	orderID []byte // in request
	item    []byte // in request
	body    []byte
}

func newWire(address string) *wire {
	body := fmt.Sprintf(bodyFormat, 0, 0)
	head := "POST /api/orders/process HTTP/1.1\r\nHost: " + address +
		"\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
	w := &wire{address: address, request: []byte(head + body)}
	id := len(head) + len(`{"orderId":"`)
	w.orderID = w.request[id : id+32]
	w.item = w.request[len(w.request)-len(`00000"}`) : len(w.request)-len(`"}`)]
	return w
}

// next makes the request that of a new order: 32 random hex digits, as a caller
// would send, so that the unique index is hit at random places.
func (w *wire) next(items int) {
	var id [16]byte
	binary.LittleEndian.PutUint64(id[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(id[8:], rand.Uint64())
	hex.Encode(w.orderID, id[:])
	n := rand.IntN(items)
	for i := len(w.item) - 1; i >= 0; i-- {
		w.item[i] = byte('0' + n%10)
		n /= 10
	}
}

// send does one round trip. The order must be answered as completed.
func (w *wire) send() error {
	if err := w.conn.SetReadDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	if _, err := w.conn.Write(w.request); err != nil {
		return fmt.Errorf("write request: %w", err)
	}
	status, length, err := w.readHead()
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if err := w.readBody(length); err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	if status != 200 {
		return &refused{fmt.Sprintf("status %d: %.200s", status, w.body)}
	}
	if !bytes.Contains(w.body, completed) {
		return &refused{fmt.Sprintf("not completed: %.200s", w.body)}
	}
	return nil
}

// refused is an answer that was read to its end: the connection can go on.
type refused struct{ text string }

func (r *refused) Error() string { return r.text }

const chunked = -1

func (w *wire) readHead() (status, length int, err error) {
	line, err := w.reader.ReadSlice('\n')
	if err != nil {
		return 0, 0, err
	}
	if len(line) < 12 {
		return 0, 0, errors.New("no status line")
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, 0, err
	}
	for {
		line, err = w.reader.ReadSlice('\n')
		if err != nil {
			return 0, 0, err
		}
		if len(line) <= 2 {
			return status, length, nil
		}
		if length, err = bodyLength(line, length); err != nil {
			return 0, 0, err
		}
	}
}

func bodyLength(line []byte, length int) (int, error) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	switch {
	case bytes.EqualFold(name, []byte("Content-Length")):
		return strconv.Atoi(string(bytes.TrimSpace(value)))
	case bytes.EqualFold(name, []byte("Transfer-Encoding")):
		return chunked, nil
	}
	return length, nil
}

func (w *wire) readBody(length int) error {
	w.body = w.body[:0]
	if length != chunked {
		return w.readPart(length)
	}
	for {
		line, err := w.reader.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 20)
		if err != nil {
			return err
		}
		if err := w.readPart(int(size)); err != nil {
			return err
		}
		if _, err := w.reader.Discard(2); err != nil || size == 0 {
			return err
		}
	}
}

func (w *wire) readPart(length int) error {
	from := len(w.body)
	for len(w.body) < from+length {
		w.body = append(w.body, 0)
	}
	_, err := io.ReadFull(w.reader, w.body[from:])
	return err
}
