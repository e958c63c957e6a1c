package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// clientGone is the code under which requests are counted whose caller hung up
// before the answer: neither our fault nor an answer.
const clientGone = 499

type metrics struct {
	inFlight *prometheus.GaugeVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	factory := promauto.With(registerer)
	return &metrics{
		inFlight: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "http_server_requests_in_flight",
			Help: "Requests in progress, by route.",
		}, []string{"route"}),
		seconds: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "http_server_request_duration_seconds",
			Help:    "Request duration, by route and status; 499 if the client disconnected.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"route", "code"}),
	}
}

// measured wraps a handler. The route is the pattern, never the path: paths hold ids.
func (m *metrics) measured(route string, next http.HandlerFunc) http.HandlerFunc {
	inFlight := m.inFlight.WithLabelValues(route)
	seconds := m.seconds.MustCurryWith(prometheus.Labels{"route": route})
	return func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		inFlight.Inc()
		defer func() {
			inFlight.Dec()
			code := http.StatusInternalServerError // nothing was answered: a panic, or nobody to be answered
			if answered := recordOf(w).status; answered != 0 {
				code = answered
			}
			if code >= http.StatusInternalServerError && r.Context().Err() == context.Canceled {
				code = clientGone
			}
			seconds.WithLabelValues(strconv.Itoa(code)).Observe(time.Since(started).Seconds())
		}()
		next(w, r)
	}
}
