package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// caller is where a request comes from.
type caller struct {
	address   netip.Addr // behind trusted proxies, the address of their caller; zero: unknown
	forwarded bool       // a proxy sent it
	local     bool       // it comes from this machine, not through a proxy
	secure    bool       // it cannot be read in transit: by TLS, from this machine, or by a trusted proxy
}

// callerFrom determines where a request comes from. Only headers of trusted proxies count. But any sign that it was
// forwarded makes it not local.
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

// fromOf is the origin of the request that w answers.
func fromOf(w http.ResponseWriter) caller { return recordOf(w).caller }

// addressOf is the address in the host:port of a connection.
func addressOf(hostPort string) netip.Addr {
	at, err := netip.ParseAddrPort(hostPort)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}

// forwarded reports whether a proxy has left a trace.
func forwarded(h http.Header) bool {
	for name := range h {
		if name == "Forwarded" || name == "Via" || name == "X-Real-Ip" || strings.HasPrefix(name, "X-Forwarded-") {
			return true
		}
	}
	return false
}

// behind is the address of the client of trusted proxies: the last address that is not one of theirs. Addresses
// before it can be forged.
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

// hosts are the names of the service. A web page can make its own host name resolve to any address, even one of this
// machine (DNS rebinding). The browser then takes the service for a part of the page, so no rule about origins
// protects it. The name in Host reveals such a request.
type hosts map[string]bool

func newHosts(allowed []string) hosts {
	h := hosts{"localhost": true}
	for _, host := range allowed {
		h[hostName(host)] = true
	}
	return h
}

// allow reports whether the Host of a request is allowed. A service that listens only on this machine has only the
// names of this machine. Others may have names that are not configured, so only requests of browsers are checked, and
// those with the rights of this machine.
func (h hosts) allow(r *http.Request, local bool) bool {
	c := connectionOf(r)
	loopback := c != nil && c.loopback
	if !loopback && !local && !ofBrowser(r.Header) {
		return true
	}
	name := hostName(r.Host)
	if name == "" || h[name] {
		return true // HTTP/1.0 knows no names, and no browser sends it
	}
	address, err := netip.ParseAddr(name)
	return err == nil && (address.IsLoopback() || !loopback) // an address in Host was not resolved through DNS
}

// ofBrowser reports whether a browser sent a request. Sec-Fetch-Mode alone is no sign: Node.js sends it, too.
func ofBrowser(h http.Header) bool {
	return h["Origin"] != nil || h["Sec-Fetch-Site"] != nil || h["Sec-Fetch-Dest"] != nil || h["Sec-Fetch-User"] != nil || h["Cookie"] != nil
}

// hostName is the name in a Host header, without port, in lower case.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}
