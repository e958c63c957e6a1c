package httpapi

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// caller is where a request comes from.
type caller struct {
	address   netip.Addr // behind trusted proxies that of their caller; zero: nobody knows
	forwarded bool       // a proxy sent it
	local     bool       // it comes from this machine itself, by no proxy
	secure    bool       // nobody else could read it on the way: by TLS, from this machine, or by a trusted proxy
}

// callerFrom finds out where a request comes from. Only trusted proxies are believed what they say of it. That it was
// forwarded, anybody is believed: such a request is never local.
func callerFrom(r *http.Request, proxies []netip.Prefix) caller {
	peer := addressOf(r.RemoteAddr)
	trusted := contains(proxies, peer)
	c := caller{address: peer, forwarded: trusted || forwarded(r.Header), secure: r.TLS != nil || peer.IsLoopback() || trusted}
	c.local = peer.IsLoopback() && !c.forwarded
	if trusted {
		c.address = behind(r.Header, peer, proxies)
	}
	return c
}

// fromOf is where the request comes from that is answered with w.
func fromOf(w http.ResponseWriter) caller { return recordOf(w).caller }

// addressOf is the address in the host:port of a connection.
func addressOf(hostPort string) netip.Addr {
	at, err := netip.ParseAddrPort(hostPort)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}

// forwarded says whether a proxy has left its mark.
func forwarded(h http.Header) bool {
	for name := range h {
		if name == "Forwarded" || name == "Via" || name == "X-Real-Ip" || strings.HasPrefix(name, "X-Forwarded-") {
			return true
		}
	}
	return false
}

// behind is the address of the caller of trusted proxies: the last one that is no proxy. What stands before it anybody
// can have written.
func behind(h http.Header, peer netip.Addr, proxies []netip.Prefix) netip.Addr {
	hops := splitList(h["X-Forwarded-For"])
	if len(hops) == 0 {
		for _, element := range splitList(h["Forwarded"]) {
			hops = append(hops, forwardedFor(element))
		}
	}
	for _, hop := range slices.Backward(hops) {
		address := hopAddress(hop)
		if !address.IsValid() {
			break
		}
		if peer = address; !contains(proxies, peer) {
			break
		}
	}
	return peer
}

func splitList(lines []string) (elements []string) {
	for _, line := range lines {
		for element := range strings.SplitSeq(line, ",") {
			elements = append(elements, strings.TrimSpace(element))
		}
	}
	return elements
}

// forwardedFor is the parameter for of an element of Forwarded (RFC 7239).
func forwardedFor(element string) string {
	for pair := range strings.SplitSeq(element, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		if strings.EqualFold(name, "for") {
			return strings.Trim(value, `"`)
		}
	}
	return ""
}

// hopAddress reads an address with or without a port, as proxies write them.
func hopAddress(text string) netip.Addr {
	if at := addressOf(text); at.IsValid() {
		return at
	}
	address, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		return netip.Addr{}
	}
	return address.Unmap().WithZone("")
}

func contains(networks []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(address) })
}
