package access

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	limited *prometheus.CounterVec
	asked   *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	factory := promauto.With(registerer)
	m := &metrics{
		limited: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "pawl_requests_limited_total",
			Help: "Requests answered 429, by the quota that was used up: requests, in-flight or bytes of a token, or failed-attempts of an address.",
		}, []string{"quota"}),
		asked: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "pawl_oidc_requests_total",
			Help: "Requests to the OpenID Connect issuer, for its keys and where they are, by outcome: ok or error.",
		}, []string{"outcome"}),
	}
	for _, quota := range []string{requestsQuota, inFlightQuota, bytesQuota, attemptsQuota} {
		m.limited.WithLabelValues(quota)
	}
	m.asked.WithLabelValues("ok")
	m.asked.WithLabelValues("error")
	return m
}

// issuerAsked counts a request to the issuer.
func (m *metrics) issuerAsked(err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	m.asked.WithLabelValues(outcome).Inc()
}
