package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestContractFromAnotherMachine is the first use by a platform: PORT, a database, and callers elsewhere, without a token.
// What is not in the contract is closed to them.
func TestContractFromAnotherMachine(t *testing.T) {
	build(t)
	t.Parallel()
	database := dbtest.New(t)
	unused := filepath.Join(t.TempDir(), "unused")
	p := launch(t, []string{"DATABASE_URL=" + database.URL, "PORT=0"}, "--allow-data-loss", "--data-dir", unused)
	announced, place := p.announced()
	if _, err := os.Stat(unused); !os.IsNotExist(err) || !strings.HasPrefix(place, "postgres://") {
		t.Errorf("with a given database, its data is in %s; in the data folder: %v", place, err)
	}
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(announced, "http://"))
	url := "http://" + net.JoinHostPort(otherAddress(t), port)
	for _, c := range []struct {
		request, body string
		code          int
	}{
		{"GET /health", "", 200},
		{"POST /api/orders/process", `{"orderId":"order-123","amount":99.99,"item":"widget"}`, 200},
		{"POST /api/orders/process", `{"orderId":"order-123","amount":99.99,"item":"widget"}`, 200},
		{"GET /api/orders/order-123", "", 200},
		{"GET /api/orders", "", 401}, {"GET /metrics", "", 401}, {"POST /api/orders/order-123/cancel", "{}", 401},
		{"PUT /api/inventory/widget", `{"onHand":1}`, 401}, {"POST /api/bulk/cancel", `{"ids":["order-123"]}`, 401},
	} {
		method, path, _ := strings.Cut(c.request, " ")
		code, text := fetch(t, method+" "+url+path, c.body, map[string]string{"Sec-Fetch-Mode": "cors"}) // as fetch of Node.js does
		assert.True(t, code == c.code && (path != "/api/orders/process" || strings.Contains(text, `"status":"completed"`)),
			c.request, code, text, "want", c.code)
	}
	code, text := fetch(t, "POST "+url+"/api/orders/process", `{"orderId":"evil","amount":1,"item":"widget"}`, map[string]string{"Origin": "http://evil.example", "Host": "evil.example"})
	assert.Equal(t, code, 421, "a page whose name was resolved to us", text)
	assert.Equal(t, count(t, database.URL, `SELECT count(*) FROM books.charges`), 1, "charges")
}

// TestThisMachineOnly runs the service without any setting.
func TestThisMachineOnly(t *testing.T) {
	build(t)
	t.Parallel()
	p := launch(t, nil, "--database-url", dbtest.New(t).URL, "--port", "0", "--allow-data-loss")
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(p.url(), "http://"))
	eventually(t, startLimit, "this machine may list orders", func() bool {
		code, text := fetch(t, "GET http://127.0.0.1:"+port+"/api/orders", "", nil)
		if code != 200 {
			t.Logf("%d %s", code, text)
		}
		return code == 200
	})
	if conn, err := net.Dial("tcp", net.JoinHostPort(otherAddress(t), port)); err == nil {
		conn.Close()
		t.Error("other machines can connect")
	}
	eventually(t, startLimit, "one processor does while there is nothing to do", func() bool {
		return metric(t, p.url(), "go_sched_gomaxprocs_threads") == 1
	})
}

// otherAddress is one of this machine as others see it. A machine without a network has only 127.0.0.2, which is ours alone.
func otherAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	assert.NoError(t, err)
	for _, one := range all {
		if network, ok := one.(*net.IPNet); ok && network.IP.To4() != nil && !network.IP.IsLoopback() {
			return network.IP.String()
		}
	}
	t.Skip("this machine has no network")
	return ""
}

// fetch asks for a target, which is a method and a URL.
func fetch(t *testing.T, target, body string, header map[string]string) (code int, text string) {
	t.Helper()
	method, url, _ := strings.Cut(target, " ")
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	assert.NoError(t, err)
	for name, value := range header {
		request.Header.Set(name, value)
	}
	request.Host = request.Header.Get("Host")
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	assert.NoError(t, err)
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	assert.NoError(t, err)
	return response.StatusCode, string(read)
}

// mostMemory is what the service may take while it is attacked, in bytes.
const mostMemory = 250 << 20

// TestMemoryUnderReaders repeats what once took a gigabyte: twenty readers of large lists who hardly read, two thousand
// bodies that do not arrive, and five thousand connections that do nothing. All the while the service shows that it lives.
func TestMemoryUnderReaders(t *testing.T) {
	build(t)
	t.Parallel()
	database := dbtest.New(t)
	p := launch(t, nil, "--database-url", database.URL, "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss")
	address := strings.TrimPrefix(p.url(), "http://")
	metadata := map[string]string{}
	for i := range 50 {
		metadata[fmt.Sprint("key-", i)] = strings.Repeat(strconv.Itoa(i%10), 500)
	}
	wide, err := json.Marshal(metadata)
	assert.NoError(t, err)
	query[int64](t, database.URL, `WITH o AS (
		INSERT INTO pawl.orders (order_id, status, fence, hold, hold_reason, amount, currency, item, metadata)
		SELECT 'large-' || n, 'charging', 1, 'attention', 'look at me', 1, 'USD', 'i', (SELECT $1::jsonb || jsonb_object_agg('more' || m, repeat('y', 500)) FROM generate_series(1, 75) AS m)
		FROM generate_series(1, 200) AS n RETURNING order_no)
		INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence) SELECT o.order_no, 1, 'pending', 'charging', 1 FROM o RETURNING order_no`, string(wide))

	eventually(t, startLimit, "a page of large orders is listed", func() bool {
		code, page := fetch(t, "GET http://"+address+"/api/orders?limit=200", "", nil)
		return code == 200 && len(page) > 1<<20
	})
	attack, end := context.WithCancel(t.Context())
	var attackers sync.WaitGroup
	defer attackers.Wait()
	defer end()
	var most int64
	var slowest time.Duration // is shown, not judged: a busy machine is slow by itself
	look := func() {
		slowest = max(slowest, lives(t, address))
		most = max(most, memory(t, p.cmd.Process.Pid))
	}
	// A few connections at a time, with a look while they come: if all came at once, the look would wait for the
	// attackers of this process, not for the service.
	strike := func(times int, text string) {
		const atOnce = 25
		for begun := 0; begun < times; begun += atOnce {
			connected := make(chan struct{}, atOnce)
			for range min(atOnce, times-begun) {
				attackers.Go(func() { stall(attack, address, text, connected) })
			}
			look()
			for range min(atOnce, times-begun) {
				<-connected
			}
		}
	}
	strike(20, "GET /api/orders?limit=200 HTTP/1.1\r\nHost: localhost\r\n\r\n")
	body := strings.Repeat(" ", 63<<10)
	strike(2000, "POST /api/orders/process HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65000\r\n\r\n"+body)
	strike(3000, "")
	for range 20 {
		look()
	}
	t.Logf("%d MiB at most, /livez in %v at most", most>>20, slowest.Round(time.Millisecond))
	assert.True(t, most <= mostMemory, most>>20, "MiB at most")
}

// stall connects, says something, reads a little, and holds the connection until the end.
func stall(ctx context.Context, address, text string, connected chan<- struct{}) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		connected <- struct{}{}
		return
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	_, _ = io.WriteString(conn, text)
	connected <- struct{}{}
	_, _ = io.ReadFull(conn, make([]byte, 1000))
	<-ctx.Done()
}

// lives wants an answer that the process is up, and returns how long it took. As supervisors do, it asks again if its
// connection was one of those that made room for others: on a machine that is busy it may be, before it was looked at.
func lives(t *testing.T, address string) time.Duration {
	t.Helper()
	began := time.Now()
	for try := 1; ; try++ {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/livez", http.NoBody)
		assert.NoError(t, err)
		request.Close = true // the next look is another connection
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			response.Body.Close()
			assert.Equal(t, response.StatusCode, http.StatusOK, "/livez")
			return time.Since(began)
		}
		assert.True(t, try != 3, "/livez", err)
	}
}

// memory is how much of a process is in memory, in bytes.
func memory(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		said, err := exec.CommandContext(t.Context(), "ps", "-o", "rss=", "-p", strconv.Itoa(pid)).Output()
		assert.NoError(t, err)
		kilobytes, _ := strconv.ParseInt(string(bytes.TrimSpace(said)), 10, 64)
		return kilobytes << 10
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// TestFewFiles has a service that may open hardly any file, and callers who connect and say nothing.
func TestFewFiles(t *testing.T) {
	build(t)
	t.Parallel()
	p := launchProgram(t, "/bin/sh", nil, "-c", `ulimit -n 150; exec "$0" "$@"`, program(),
		"serve", "--database-url", dbtest.New(t).URL, "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss")
	address := strings.TrimPrefix(p.url(), "http://")
	var idle []net.Conn
	for range 300 {
		conn, err := net.Dial("tcp", address)
		assert.NoError(t, err)
		idle = append(idle, conn)
	}
	for range 10 {
		lives(t, address)
	}
	code, text := fetch(t, "POST http://"+address+"/api/orders/process", `{"orderId":"o","amount":1,"item":"i"}`, nil)
	assert.Equal(t, code, 200, "an order", text)
	for _, conn := range idle {
		conn.Close()
	}
}

// completes processes an order as any caller does and wants all of it done.
func (c *client) completes(t *testing.T, url string, o order) *answer {
	t.Helper()
	a := c.insist(t.Context(), url, o)
	assert.Require(t, a.err == nil && a.code == http.StatusOK && a.state() == "completed" && a.wrong(o) == "", "answered", a)
	return a
}
