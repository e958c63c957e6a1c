package webhooks

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"pawl/internal/egress"
)

// AddressRefused is the error of a URL to which nothing may be sent.
type AddressRefused struct{ Reason string }

func (a *AddressRefused) Error() string { return a.Reason }

// resolveLimit is how long a name may take to be looked up when an endpoint is made.
const resolveLimit = 3 * time.Second

// checkAddress returns *AddressRefused for a URL to which nothing may be sent, so that whoever types it is told at once. What
// decides is the address that is dialed: a name may lead elsewhere by then. One that leads nowhere now may lead somewhere then.
func (s *Endpoints) checkAddress(ctx context.Context, text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return &AddressRefused{"must be a URL"}
	}
	if u.Scheme == "http" && !s.options.Private {
		return &AddressRefused{"must be https: others could read what is sent by http. With --allow-private it may be http"}
	}
	if port, err := strconv.ParseUint(cmp.Or(u.Port(), "1"), 10, 16); err != nil || port == 0 {
		return &AddressRefused{"must have a port from 1 to 65535"}
	}
	ctx, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()
	addresses, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname()) // none, where it leads nowhere
	for _, address := range addresses {
		if err := egress.Check(address, s.options.Private); err != nil {
			return &AddressRefused{fmt.Sprintf("must lead elsewhere: %v", err)}
		}
	}
	return nil
}
