package main

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"pawl/internal/load"
)

// callers send orders to the front of a site, each when its last one was answered.
type callers struct {
	*load.Running
	mu   sync.Mutex
	sent map[string]bool // the orders sent: whether they were answered
}

func (s *site) load(n int) *callers {
	c := &callers{sent: map[string]bool{}}
	c.Running = load.Load{Callers: n, Caller: func(int) (send func(int) error, end func()) {
		w := &wire{site: s}
		return func(int) error {
			id := rand.Text()
			c.note(id, false)
			err := w.process(id)
			if err == nil {
				c.note(id, true)
			}
			return err
		}, w.close
	}}.Start()
	return c
}

func (c *callers) note(id string, answered bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent[id] = answered
}

// orders are those that were sent and answered, or sent and not answered yet.
func (c *callers) orders(answered bool) (ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, was := range c.sent {
		if was == answered {
			ids = append(ids, id)
		}
	}
	return ids
}

// wire is a keep-alive connection. It uses no HTTP client, because the load shares its cores with what it measures.
type wire struct {
	site   *site
	conn   net.Conn
	reader *bufio.Reader
}

const answerLimit = 60 * time.Second

// process sends an order, perhaps again, and returns when it is completed.
func (w *wire) process(id string) error {
	path := "/api/orders/process"
	if w.site.path != nil {
		path = w.site.path(id)
	}
	body := fmt.Sprintf(`{"orderId":"%s","amount":12.50,"item":"%s"}`, id, itemOf(id))
	status, err := w.send(http.MethodPost, path, body)
	if status == http.StatusConflict && w.site.attach != nil {
		_, err = w.send(http.MethodGet, w.site.attach(id), "")
	}
	return err
}

// itemOf chooses the item by the id, so that an order that is sent again is the same.
func itemOf(id string) string {
	n := 0
	for _, c := range []byte(hex.EncodeToString([]byte(id[:8]))) {
		n = (n*31 + int(c)) % items
	}
	return fmt.Sprintf("item-%05d", n)
}

func (w *wire) send(method, path, body string) (status int, err error) {
	if w.conn == nil {
		if w.conn, err = net.DialTimeout("tcp", w.site.front, 5*time.Second); err != nil {
			w.conn = nil
			return 0, err
		}
		w.reader = bufio.NewReader(w.conn)
	}
	status, err = w.exchange(method+" "+path+" HTTP/1.1\r\nHost: "+w.site.front+"\r\nContent-Type: application/json\r\nContent-Length: "+
		strconv.Itoa(len(body))+"\r\n\r\n"+body, method)
	if status == 0 {
		w.close()
	}
	return status, err
}

// exchange returns the status of an answer that was read completely, or 0.
func (w *wire) exchange(request, method string) (status int, err error) {
	if err := w.conn.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(w.conn, request); err != nil {
		return 0, fmt.Errorf("write request: %w", err)
	}
	response, err := http.ReadResponse(w.reader, &http.Request{Method: method})
	if err != nil {
		return 0, fmt.Errorf("read answer: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, fmt.Errorf("read body: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return response.StatusCode, fmt.Errorf("status %d: %.200s", response.StatusCode, text)
	}
	return http.StatusOK, nil
}

func (w *wire) close() {
	if w.conn != nil {
		w.conn.Close()
		w.conn = nil
	}
}

// again sends orders once more, from as many callers, and returns the first error.
func (s *site) again(ids []string) error {
	errs := make([]error, len(ids))
	var sending sync.WaitGroup
	for i, id := range ids {
		sending.Go(func() {
			w := &wire{site: s}
			defer w.close()
			errs[i] = w.process(id)
		})
	}
	sending.Wait()
	return cmp.Or(errs...)
}
