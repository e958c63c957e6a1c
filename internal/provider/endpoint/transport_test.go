package endpoint

import (
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
)

// local are the bounds of tests, whose providers are on this machine.
var local = policy.Bounds{SecretEnvPrefix: policy.SecretEnvPrefix, AllowPrivate: true}

// endpointAt is an executor at an address, its transport in reach.
func endpointAt(tb testing.TB, url string, inFlight int) *endpoint {
	tb.Helper()
	return New(&policy.Step{URL: url, InFlight: inFlight}, fsm.Confirm, local).(*endpoint)
}

func TestTransportUsesNoProxy(t *testing.T) {
	t.Parallel()
	// Addresses of this machine never go through a proxy, so that the wire can't show it.
	if provider.NewTransport(1, true).Proxy != nil {
		t.Error("a proxy of the environment would see every order")
	}
}

func TestTransportTrustsWhoIsVouchedFor(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || r.ProtoMajor != 1 {
			t.Errorf("%s with %v", r.Proto, r.TLS)
		}
	}))
	t.Cleanup(server.Close)
	e := endpointAt(t, server.URL, 1)
	e.transport.TLSClientConfig.RootCAs = x509.NewCertPool()
	e.transport.TLSClientConfig.RootCAs.AddCert(server.Certificate())
	if r, ok := e.Do(t.Context(), &provider.Call{Step: fsm.Confirm}).(provider.Done); !ok {
		t.Errorf("%#v", r)
	}
}

func TestTransportKeepsAConnectionForEachCallInFlight(t *testing.T) {
	t.Parallel()
	const inFlight = 20
	var opened atomic.Int32
	var met sync.WaitGroup // holds the calls of a round until all are there
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		met.Done()
		met.Wait()
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	e := endpointAt(t, server.URL, inFlight)
	for range 3 {
		met.Add(inFlight)
		var calls sync.WaitGroup
		for range inFlight {
			calls.Go(func() { e.Do(t.Context(), &provider.Call{Step: fsm.Confirm}) })
		}
		calls.Wait()
	}
	if n := opened.Load(); n != inFlight {
		t.Errorf("%d connections for %d calls at a time", n, inFlight)
	}
}

// BenchmarkCall measures the whole way of a call. The processor time, of both sides, is
// what limits calls per second; the other side does next to nothing.
func BenchmarkCall(b *testing.B) {
	b.Setenv("PAWL_SECRET_TEST", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	url := answerAll(b, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 48\r\n\r\n"+
		`{"reference":"ch_1234567890","data":{"a":"bcd"}}`)
	e := endpointAt(b, url, 64)
	b.Cleanup(e.transport.CloseIdleConnections)
	e.how.Secret = "env:PAWL_SECRET_TEST"
	b.ReportAllocs()
	b.SetParallelism(32)
	before := processorTime(b)
	b.RunParallel(func(pb *testing.PB) {
		c := provider.Call{OrderID: "order-123", Step: fsm.Charge, Amount: decimal.MustParse("99.99"), Currency: "USD", Item: "widget", Quantity: 1,
			CustomerID: "c-17", PaymentMethod: "pm_card_visa", Metadata: []byte(`{"cart":"c-1","source":"web"}`), CallbackURL: "http://localhost/api/callbacks/x"}
		for pb.Next() {
			if r, ok := e.Do(b.Context(), &c).(provider.Done); !ok {
				b.Errorf("%#v", r)
			}
		}
	})
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/1e3, "cpu-µs/op")
}

// answerAll answers whatever arrives.
func answerAll(b *testing.B, text string) (url string) {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var serving sync.WaitGroup
	b.Cleanup(func() {
		listener.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { // ends when the client closes
				defer connection.Close()
				buffer := make([]byte, 8<<10)
				for err == nil {
					if _, err = connection.Read(buffer); err == nil {
						_, err = connection.Write([]byte(text))
					}
				}
			})
		}
	})
	return "http://" + listener.Addr().String()
}

func processorTime(b *testing.B) int64 {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

// TestCallsToPrivateAddresses: a name is judged by the address that it leads to. The call certainly did nothing, and it
// counts, because waiting helps nobody.
func TestCallsToPrivateAddresses(t *testing.T) {
	t.Parallel()
	var called atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called.Add(1) }))
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	for _, url := range []string{server.URL, "http://localhost:" + port, "http://[::ffff:127.0.0.1]:" + port} {
		e := New(&policy.Step{URL: url}, fsm.Confirm, policy.Bounds{})
		r, ok := e.Do(t.Context(), &provider.Call{Step: fsm.Confirm}).(provider.Retry)
		if !ok || r.Code != "address_refused" || !r.Counts || !strings.Contains(r.Detail, "--allow-private") {
			t.Errorf("%s: %#v", url, r)
		}
	}
	if n := called.Load(); n != 0 {
		t.Errorf("called %d times", n)
	}
}
