package provider_test

import (
	"net"
	"strings"
	"testing"

	"pawl/internal/provider"
)

// TestNameServersAreNotShown: who may read orders and deliveries learns that a name was not found, and nothing of the network.
func TestNameServersAreNotShown(t *testing.T) {
	t.Parallel()
	for want, lookUp := range map[string]net.DNSError{
		"look up shop.example: no such host":                            {Err: "no such host", IsNotFound: true},
		"look up shop.example: no answer from the name servers in time": {Err: "read udp 10.1.2.3:40000->10.0.0.2:53: i/o timeout", IsTimeout: true},
		"look up shop.example: the name servers failed":                 {Err: "server misbehaving"},
	} {
		lookUp.Name, lookUp.Server = "shop.example", "10.0.0.2:53"
		x := provider.Exchange{Err: &net.OpError{Op: "dial", Net: "tcp", Err: &lookUp}}
		if got := x.Reason(); got != want || strings.Contains(got, "10.") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
