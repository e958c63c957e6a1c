package engine_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// metric reads a metric with these values of its labels, in the order of the labels' names; of a histogram, how often
// something was observed. -1: there is none.
func metric(t testing.TB, registry *prometheus.Registry, name, labels string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.Metric {
			if family.GetName() == name && valuesOf(m) == labels {
				return m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return -1
}

func valuesOf(m *dto.Metric) string {
	var values []string
	for _, label := range m.Label {
		values = append(values, label.GetValue())
	}
	return strings.Join(values, " ")
}
