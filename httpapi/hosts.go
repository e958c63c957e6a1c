package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// hosts are the names that the service is asked under. A web page can have its own name resolved to any address
// (DNS rebinding), to this machine's, too. Its browser then takes the service for a part of the page, and no rule about
// origins holds. What gives such a request away is the name in Host.
type hosts map[string]bool

func newHosts(allowed []string) hosts {
	h := hosts{"localhost": true}
	for _, host := range allowed {
		h[hostName(host)] = true
	}
	return h
}

// allow says whether a request may go on. Who listens on this machine only is asked under its names alone. Elsewhere
// the service may have names that nobody told it, so only requests of browsers are looked at, and those that have the
// rights of this machine.
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
	return err == nil && (address.IsLoopback() || !loopback) // an address in Host was resolved by nobody
}

// ofBrowser says whether a browser sent a request. Sec-Fetch-Mode alone is no sign: fetch of Node.js sends it.
func ofBrowser(h http.Header) bool {
	return h["Origin"] != nil || h["Sec-Fetch-Site"] != nil || h["Sec-Fetch-Dest"] != nil || h["Sec-Fetch-User"] != nil || h["Cookie"] != nil
}

// hostName is the name in a Host header, without port, in small letters.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}
