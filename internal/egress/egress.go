// Package egress limits calls to addresses that users have chosen: in a policy, for a webhook endpoint, or in a request to
// a simulated provider.
//
// An address is checked when it is about to be dialed, after its name was resolved, so neither its notation nor a later
// change in DNS matters.
package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// ErrRefused is the error of a dial to an address that must not be called.
var ErrRefused = errors.New("calls to this address are not allowed")

// dialTimeout ends a dial that continues for the next call when its own call has given up.
const dialTimeout = 10 * time.Second

// Dialer returns a dialer that connects to public addresses only or, with private, also to this machine and private
// networks. Any other dial ends with ErrRefused, and nothing is sent.
func Dialer(private bool) *net.Dialer {
	return &net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
		return Check(to.Addr(), private)
	}}
}

// Check returns nil for an address that may be called, else ErrRefused with the reason. private permits private networks,
// but never unspecified, multicast or similar addresses, or the metadata services of clouds, which give credentials to
// every program on the machine.
func Check(address netip.Addr, private bool) error {
	address = address.Unmap().WithZone("")
	if isMetadataService(address) {
		return fmt.Errorf("%w: %s is the metadata service of a cloud", ErrRefused, address)
	}
	if isListed(privateNetworks, address) {
		if private {
			return nil
		}
		return fmt.Errorf("%w: %s is private, and --allow-private is not set", ErrRefused, address)
	}
	if err := public.SafeAddr(address); err != nil {
		return fmt.Errorf("%w: %s is not a public address", ErrRefused, address)
	}
	return nil
}

// public has the registries of special addresses.
var public = ssrf.New(ssrf.WithAnyPort(), ssrf.WithAnyNetwork())

// privateNetworks are loopback addresses and private networks.
var privateNetworks = prefixes("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")

// metadataServices are the metadata services that the registries of special addresses lack, that are in private
// networks, or that an IPv6 address can lead to.
var metadataServices = prefixes(
	"169.254.169.254/32",                    // AWS, Azure, Google Cloud, Oracle Cloud, OpenStack and most others
	"169.254.170.2/32", "169.254.170.23/32", // AWS: tasks of ECS, pods of EKS
	"fd00:ec2::/32",                               // AWS: all of these
	"168.63.129.16/32",                            // Azure
	"fd20:ce::254/128",                            // Google Cloud
	"192.0.0.192/32",                              // Oracle Cloud
	"100.100.100.200/32", "fd00:100::100:200/128", // Alibaba Cloud
	"169.254.0.23/32", "169.254.10.10/32", // Tencent Cloud
	"169.254.42.42/32", "fd00:42::42/128", // Scaleway
	"fd00:a9fe:a9fe::1/128", // Akamai
)

// isMetadataService also detects an IPv6 address that ends with the IPv4 address of one: Oracle Cloud and OpenStack have
// them, and NAT64 networks (RFC 6052) lead there.
func isMetadataService(address netip.Addr) bool {
	if isListed(metadataServices, address) {
		return true
	}
	bytes := address.As16()
	return address.Is6() && isListed(metadataServices, netip.AddrFrom4([4]byte(bytes[12:])))
}

func isListed(networks []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(networks, func(network netip.Prefix) bool { return network.Contains(address) })
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}
