package cli

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
)

// announcement is the one thing a person needs from a service that starts.
type announcement struct {
	url, data string
	reach     string // everywhere or byPort, if it listens on all interfaces
}

const (
	everywhere = "it listens on all interfaces"
	byPort     = everywhere + ", because PORT is set; --listen 127.0.0.1 keeps it to this machine"
)

// say prints it, or puts it into the log where that is JSON: a machine that reads it would stumble over lines that are not.
func (a announcement) say(out io.Writer, log *slog.Logger, cfg *config) {
	if cfg.logsJSON() {
		log.Info("pawl serves", "url", a.url, "docs", a.url+"/docs", "data", a.data)
		switch a.reach { // a message of the log is a constant
		case byPort:
			log.Info(byPort)
		case everywhere:
			log.Info(everywhere)
		}
		return
	}
	fmt.Fprintf(out, "pawl serves %s, described at %s/docs, data in %s\n", a.url, a.url, a.data)
	if a.reach != "" {
		fmt.Fprintln(out, a.reach)
	}
}

// shownURL is where a person on this machine reaches what listens.
func shownURL(scheme, listen string, addr net.Addr) string {
	host, port, _ := net.SplitHostPort(addr.String())
	if listen == "" || unspecified(listen) {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// reach says that it listens on all interfaces, and why; empty if it doesn't.
func (c *config) reach() string {
	switch {
	case c.Listen == "" && c.everywhere:
		return byPort
	case unspecified(c.Listen):
		return everywhere
	default:
		return ""
	}
}

func unspecified(listen string) bool {
	address, err := netip.ParseAddr(listen)
	return err == nil && address.IsUnspecified()
}
