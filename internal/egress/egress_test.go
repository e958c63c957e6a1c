package egress_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"pawl/internal/egress"
	"pawl/test/assert"
)

// What may be called: always, only where private addresses may, and never.
func TestCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		addresses        []string
		always, privates bool
	}{
		{[]string{"1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700:4700::1111"}, true, true},
		{[]string{"127.0.0.1", "127.8.9.10", "10.0.0.1", "172.16.3.4", "192.168.1.1", "100.64.0.1", "::1", "fd12::1", "fd00:ec3::1",
			"fd00:42::43", "fd12::a9fe:a9fd", "::ffff:127.0.0.1", "::ffff:10.1.2.3"}, false, true},
		{[]string{"169.254.169.254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "100.100.100.200", "168.63.129.16",
			"fd00:ec2::254", "fd00:ec2::23", "fd00:ec2:1:2::3", "fd20:ce::254", "fd00:42::42", "fd00:c1::a9fe:a9fe", "fd00:a9fe:a9fe::1", "fd00:100::100:200",
			"169.254.170.2", "169.254.170.23", "169.254.42.42", "169.254.0.23", "169.254.1.2", "fe80::a9fe:a9fe", "fe80::a9fe:a9fe%eth0",
			"::a9fe:a9fe", "::ffff:0:a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "64:ff9b::a83f:8110", "64:ff9b::6464:64c8", "fd64:64::a9fe:a9fe", "fd64:64::a83f:8110",
			"2001:db8:64::a9fe:a9fe", "2600::a9fe:a9fe", "2002:a83f:8110::", "0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "255.255.255.255", "fe80::1%eth0", "ff02::1",
			"192.0.0.192", "192.0.2.1", "2001:db8::1", "::127.0.0.1"}, false, false},
	} {
		for _, text := range c.addresses {
			address := netip.MustParseAddr(text)
			if err := egress.Check(address, false); (err == nil) != c.always || err != nil && !errors.Is(err, egress.ErrRefused) {
				t.Errorf("%s, public only: %v", text, err)
			}
			err := egress.Check(address, true)
			assert.Equal(t, err == nil, c.privates, text, "private ones too", err)
		}
	}
}

// However an address is written, and whatever a name leads to, what counts is the address that is dialed.
func TestDialer(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	for _, host := range []string{"127.0.0.1", "localhost", "::ffff:127.0.0.1", "::ffff:7f00:1"} {
		_, err := egress.Dialer(false).DialContext(t.Context(), "tcp", net.JoinHostPort(host, port))
		assert.ErrorIs(t, err, egress.ErrRefused, host)
		connection, err := egress.Dialer(true).DialContext(t.Context(), "tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Errorf("%s, where private addresses may be called: %v", host, err)
			continue
		}
		_ = connection.Close()
	}
	for _, host := range []string{"169.254.169.254", "::ffff:169.254.169.254", "0.0.0.0", "::"} {
		assert.ErrorIs(t, assert.Err(egress.Dialer(true).DialContext(t.Context(), "tcp", net.JoinHostPort(host, port))), egress.ErrRefused,
			host)
	}
	for _, host := range []string{"0x7f.1", "127.1", "2130706433", "0177.0.0.1"} { // some resolvers know them, others don't
		if connection, err := egress.Dialer(false).DialContext(t.Context(), "tcp", net.JoinHostPort(host, port)); err == nil {
			t.Errorf("%s was called", host)
			_ = connection.Close()
		}
	}
}

// A name leads to what it led to when it was judged, or is judged again: between two calls it may change.
func TestDialerOfANameThatChanges(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	names := nameServer(t, [4]byte{127, 0, 0, 1}, [4]byte{169, 254, 169, 254}, [4]byte{127, 0, 0, 1})
	for i, refused := range []bool{false, true, false} {
		dialer := egress.Dialer(true)
		dialer.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "udp", names)
		}}
		connection, err := dialer.DialContext(t.Context(), "tcp4", "provider.example:"+port)
		if err == nil {
			_ = connection.Close()
		}
		assert.True(t, errors.Is(err, egress.ErrRefused) == refused && (refused || err == nil), "call", i+1, err)
	}
}

// nameServer answers each question for an address with the next of these, and returns where it is.
func nameServer(t *testing.T, addresses ...[4]byte) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	assert.NoError(t, err)
	var answered sync.WaitGroup
	t.Cleanup(answered.Wait)
	t.Cleanup(func() { _ = conn.Close() })
	answered.Go(func() {
		buffer := make([]byte, 512)
		for len(addresses) > 0 {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			if m.Questions[0].Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET},
					Body:   &dnsmessage.AResource{A: addresses[0]},
				}}
				addresses = addresses[1:]
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	})
	return conn.LocalAddr().String()
}
