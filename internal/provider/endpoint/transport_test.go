package endpoint

import (
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/test/assert"
)

// local are the bounds of tests, whose providers are on this machine.
var local = policy.Bounds{AllowPrivate: true}

// endpointAt is an executor at an address, its transport in reach.
func endpointAt(tb testing.TB, url string, inFlight int) *endpoint {
	tb.Helper()
	return New(&policy.Step{URL: url}, fsm.Confirm, local, provider.NewTransport(inFlight, true)).(*endpoint)
}

func TestTransportUsesNoProxy(t *testing.T) {
	t.Parallel()
	// Addresses of this machine never go through a proxy, so that the wire can't show it.
	assert.True(t, provider.NewTransport(1, true).Proxy == nil, "a proxy of the environment would see every order")
}

func TestTransportTrustsWhoIsVouchedFor(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.True(t, r.TLS != nil && r.ProtoMajor == 1, r.Proto, "with", r.TLS)
	}))
	t.Cleanup(server.Close)
	e := endpointAt(t, server.URL, 1)
	e.transport.TLSClientConfig.RootCAs = x509.NewCertPool()
	e.transport.TLSClientConfig.RootCAs.AddCert(server.Certificate())
	r, ok := e.Do(t.Context(), &provider.Call{Step: fsm.Confirm}).(provider.Done)
	assert.True(t, ok, r)
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
	assert.Equal(t, opened.Load(), inFlight, "connections for calls at a time")
}

// TestCallsToPrivateAddresses: a name is judged by the address that it leads to. The call certainly did nothing, and it
// counts, because waiting does not help.
func TestCallsToPrivateAddresses(t *testing.T) {
	t.Parallel()
	var called atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called.Add(1) }))
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	for _, url := range []string{server.URL, "http://localhost:" + port, "http://[::ffff:127.0.0.1]:" + port} {
		e := New(&policy.Step{URL: url}, fsm.Confirm, policy.Bounds{}, provider.NewTransport(0, false))
		r, ok := e.Do(t.Context(), &provider.Call{Step: fsm.Confirm}).(provider.Retry)
		assert.True(t, ok && r.Code == "address_refused" && r.Counts && strings.Contains(r.Detail, "--allow-private"), url, r)
	}
	assert.Equal(t, called.Load(), 0, "called times")
}
