package cli

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"pawl/httpapi"
	"pawl/internal/access"
)

// tellOpen warns of a service that is open, and refuses one that must not be.
func tellOpen(ctx context.Context, cfg *config, control *access.Control, to telemetry) error {
	promauto.With(to.registry).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pawl_open",
		Help: "1 while no token was made and no issuer is set: everybody on the machine may do everything, and others may process and read orders.",
	}, func() float64 {
		if control.Open(context.WithoutCancel(ctx)) {
			return 1
		}
		return 0
	})
	switch {
	case !control.Open(ctx):
	case cfg.Auth == authRequired:
		return configError{errors.New("auth is required, and no token was made yet: " + httpapi.HowToClose + " makes one")}
	default:
		to.log.Warn("the service is open: no token was made yet", "this_machine", "may do everything",
			"others", "may process orders and read them", "to_close", httpapi.HowToClose)
	}
	return nil
}

// What --auth can be.
const (
	authOnceThereIsAToken = "auto"
	authRequired          = "required"
)
