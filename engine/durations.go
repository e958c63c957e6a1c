package engine

import (
	"maps"
	"math"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// durations counts by how long something took: at most so many seconds, by the bounds of a histogram. Beyond the last one is
// +Inf.
type durations map[float64]int64

// add adds what a histogram has, which counts in each bucket those before, too.
func (d durations) add(h *dto.Histogram) {
	below := int64(0)
	for _, bucket := range h.Bucket {
		if math.IsInf(bucket.GetUpperBound(), 1) {
			break
		}
		n := int64(bucket.GetCumulativeCount())
		d[bucket.GetUpperBound()] += n - below
		below = n
	}
	d[math.Inf(1)] += int64(h.GetSampleCount()) - below
}

// quantile is how long a share of them took at most, as Prometheus reckons it: evenly spread between two bounds. Beyond the
// last bound it is that one. 0: there are none.
func (d durations) quantile(share float64) time.Duration {
	total := int64(0)
	for _, n := range d {
		total += n
	}
	rank, below := share*float64(total), 0.0
	for _, bound := range slices.Sorted(maps.Keys(d)) {
		n := float64(d[bound])
		if below+n < rank {
			below += n
			continue
		}
		lower := lowerBound(bound)
		if math.IsInf(bound, 1) {
			return duration(lower)
		}
		return duration(lower + (bound-lower)*(rank-below)/n)
	}
	return 0
}

// lowerBound is the bound before one. Those without any orders are not in durations.
func lowerBound(bound float64) float64 {
	i, _ := slices.BinarySearch(orderBuckets, bound)
	if i == 0 {
		return 0
	}
	return orderBuckets[i-1]
}
