package batch_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pawl/engine/batch"
	"pawl/test/assert"
)

func TestCohort(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		come []time.Duration
		want []string
	}{
		"a lone item":              {[]time.Duration{50 * ms}, []string{"50ms [0]"}},
		"all come together":        {[]time.Duration{50 * ms, 51 * ms, 52 * ms}, []string{"52ms [0 1 2]"}},
		"one is late":              {[]time.Duration{50 * ms, 51 * ms, 90 * ms}, []string{"53ms [0 1]", "90ms [2]"}},
		"they come far apart":      {[]time.Duration{10 * ms, 20 * ms, 30 * ms}, []string{"13ms [0]", "20ms [1]", "30ms [2]"}},
		"the last is late by much": {[]time.Duration{ms, 5 * time.Second}, []string{"4ms [0]", "5s [1]"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, passed := time.Now(), []string(nil)
				cohort := batch.NewCohort(len(c.come), func(items []int) {
					passed = append(passed, fmt.Sprint(time.Since(began), " ", items))
				})
				for i, at := range c.come {
					<-time.After(at - time.Since(began))
					cohort.Add(i)
				}
				synctest.Wait()
				assert.Equal(t, passed, c.want)
			})
		})
	}
}
