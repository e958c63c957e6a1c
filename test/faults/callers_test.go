package faults

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

// each calls do for the numbers below n, so many at a time.
func each(n, atOnce int, do func(i int)) {
	var group sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for i := range n {
		room <- struct{}{}
		group.Go(func() {
			defer func() { <-room }() // also where do ends its goroutine
			do(i)
		})
	}
	group.Wait()
}

// What five thousand listeners may cost the service: all its memory, and that of one who hears nothing, in bytes.
const (
	listenersMemory = 200 << 20
	listenerMemory  = 25 << 10
)

// TestFiveThousandListeners has one replica tell five thousand callers what happens, everything to each of them.
func TestFiveThousandListeners(t *testing.T) {
	build(t)
	t.Parallel()
	crowd := 5000
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && int(files.Max) < 2*crowd {
		crowd = int(files.Max) / 2
		t.Logf("few files can be opened here: %d listeners", crowd)
	}
	p := launch(t, nil, "--database-url", dbtest.New(t).URL, "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss",
		"--max-connections", fmt.Sprint(2*crowd+200)) // one caller may wait on half of them, and also sends orders
	address := strings.TrimPrefix(p.url(), "http://")
	newest := func(after string) (events []json.RawMessage, next string) {
		for next = after; ; { // a page that has looked at some batches may be short
			code, text := fetch(t, "GET http://"+address+"/api/events?limit=200&after="+next, "", nil)
			var page struct {
				Events     []json.RawMessage
				NextCursor string
				More       bool
			}
			err := json.Unmarshal([]byte(text), &page)
			assert.Require(t, err == nil && code == 200, "the feed", code, text, err)
			events, next = append(events, page.Events...), page.NextCursor
			if !page.More {
				return events, next
			}
		}
	}
	_, begin := newest("oldest")
	alone := memory(t, p.cmd.Process.Pid)

	all := make([]*listener, crowd)
	each(crowd, 25, func(i int) { all[i] = listen(t, address, "/api/events?after="+begin) })
	if t.Failed() {
		return
	}
	idle := (memory(t, p.cmd.Process.Pid) - alone) / int64(crowd)
	for i := range 12 {
		code, text := fetch(t, "POST http://"+address+"/api/orders/process", fmt.Sprintf(`{"orderId":"o-%d","amount":1,"item":"i"}`, i), nil)
		assert.Require(t, code == 200, "an order", code, text)
	}
	var happened []json.RawMessage
	// A long transaction in another database of the server, such as that of another test, holds the feed back.
	eventually(t, 5*patience, "the feed has all events", func() bool {
		happened, _ = newest(begin)
		return len(happened) >= 12*4
	})
	sum := sha256.New()
	for _, event := range happened {
		fmt.Fprintf(sum, "%s\n", event)
	}
	var hearing sync.WaitGroup
	for _, l := range all {
		hearing.Go(func() { l.hears(t, len(happened), sum.Sum(nil)) })
	}
	hearing.Wait()
	most := memory(t, p.cmd.Process.Pid)
	t.Logf("%d listeners: %d KiB for each that hears nothing; %d MiB alone, %d MiB after %d events", crowd, idle>>10, alone>>20, most>>20, len(happened))
	assert.True(t, idle <= listenerMemory && most <= listenersMemory, idle, "bytes for a listener", most>>20, "MiB for all")
}

// listener is a caller who listens to events.
type listener struct {
	conn net.Conn
	read *bufio.Reader
	sum  hash.Hash // of the events that it heard
}

// listen connects, and returns when the first line of the stream has come.
func listen(t *testing.T, address, target string) *listener {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() { conn.Close() })
	l := &listener{conn, bufio.NewReaderSize(conn, 1<<10), sha256.New()}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(conn, "GET "+target+" HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
	for line := ""; !strings.HasPrefix(line, "id: "); {
		if line, err = l.read.ReadString('\n'); err != nil || strings.HasPrefix(line, "HTTP/1.1 ") && !strings.Contains(line, " 200 ") {
			t.Errorf("no stream: %q, %v", line, err)
			return nil
		}
	}
	return l
}

// hears wants so many events, which must be those of the feed.
func (l *listener) hears(t *testing.T, events int, want []byte) {
	t.Helper()
	_ = l.conn.SetReadDeadline(time.Now().Add(2 * patience))
	for events > 0 {
		line, err := l.read.ReadString('\n')
		if err != nil {
			t.Errorf("%d events are missing: %v", events, err)
			return
		}
		if event, ok := strings.CutPrefix(line, "data: "); ok {
			l.sum.Write([]byte(event))
			events--
		}
	}
	assert.Equal(t, string(l.sum.Sum(nil)), string(want), "the sum of what a listener heard")
}
