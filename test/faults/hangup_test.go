package faults

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/test/dbtest"
)

// TestCallersWhoHangUp cuts the connection of callers after every byte of their request, and throughout the answer.
// Whatever of their orders was stored ends without them; when they come again, to another replica, they get it.
func TestCallersWhoHangUp(t *testing.T) {
	build(t)
	t.Parallel()
	database := dbtest.New(t)
	r := startReplicas(t, 2, database.URL, hasty...)
	here, there := r.addresses()[0], r.addresses()[1]
	var cuts []cut
	for n := range len(rawRequest(here, hungUp(0))) + 1 {
		cuts = append(cuts, cut{n, 0})
	}
	for n := 1; n < 700; n += 7 { // the answer is about that long, and then the server hangs up
		cuts = append(cuts, cut{len(rawRequest(here, hungUp(0))), n})
	}
	each(len(cuts), func(i int) { cuts[i].play(t, here, hungUp(i)) })
	settle(t, database.URL, patience)
	stored := count(t, database.URL, `SELECT count(*) FROM books.orders`)

	c := newClient(8, true)
	defer c.close()
	each(len(cuts), func(i int) {
		if a := c.insist(t.Context(), there, hungUp(i)); a.state() != "completed" || a.wrong(hungUp(i)) != "" {
			t.Errorf("the caller comes again and gets %s", a)
		}
	})
	prove(t, database.URL)
	t.Logf("%d connections were cut, %d orders had been stored", len(cuts), stored)
	if stored == 0 || stored == int64(len(cuts)) {
		t.Error("the fault did not bite")
	}
}

// cut is where a connection ends: after so many bytes of the request and of the answer.
type cut struct{ sent, read int }

func hungUp(i int) order {
	return order{id: fmt.Sprintf("hung-up-%03d", i), amount: "12.50", item: "widget"}
}

func rawRequest(url string, o order) string {
	return fmt.Sprintf("POST /api/orders/process HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		strings.TrimPrefix(url, "http://"), len(o.body()), o.body())
}

func (c cut) play(t *testing.T, url string, o order) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Error(err)
		return
	}
	_ = conn.(*net.TCPConn).SetLinger(0) // a reset, not a goodbye
	defer conn.Close()
	if _, err := io.WriteString(conn, rawRequest(url, o)[:c.sent]); err != nil {
		t.Error(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if n, err := io.ReadFull(conn, make([]byte, c.read)); err != nil && n == 0 {
		t.Error(err)
	}
}

// each calls do for the numbers below n, some at a time.
func each(n int, do func(i int)) {
	var group sync.WaitGroup
	numbers := make(chan int)
	for range 8 {
		group.Go(func() {
			for i := range numbers {
				do(i)
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	group.Wait()
}
