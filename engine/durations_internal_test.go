package engine

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

func TestQuantiles(t *testing.T) {
	t.Parallel()
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Buckets: orderBuckets})
	for _, seconds := range []float64{.001, .004, .011, .012, .013, .014, .015, .02, .3, 1e9} {
		h.Observe(seconds)
	}
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		t.Fatal(err)
	}
	d := durations{}
	d.add(m.Histogram)
	for share, want := range map[float64]time.Duration{
		.1: 2500 * time.Microsecond, .2: 5 * time.Millisecond, .5: 17500 * time.Microsecond, .9: 500 * time.Millisecond, .95: 24 * time.Hour,
	} {
		if got := d.quantile(share); math.Abs((got - want).Seconds()) > 1e-9 {
			t.Errorf("%v: %v, want %v", share, got, want)
		}
	}
	if got := (durations{}).quantile(.5); got != 0 {
		t.Errorf("of none: %v", got)
	}
}
