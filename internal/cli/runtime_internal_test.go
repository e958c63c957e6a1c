package cli

import (
	"testing"
	"time"

	"pawl/test/assert"
)

// One processor has to do until it is busy for half of its time. Where it does not suffice it is tried again ever more
// rarely.
func TestProcessors(t *testing.T) {
	t.Parallel()
	type look struct {
		after time.Duration
		busy  float64
		all   bool // from then on
	}
	for name, looks := range map[string][]look{
		"idle":                   {{0, 0.1, false}, {time.Hour, 0, false}},
		"a few orders":           {{0, 0.4, false}, {time.Second, 0.5, false}},
		"more than one is for":   {{0, 0.1, false}, {time.Minute, 0.51, true}},
		"it needs more than one": {{0, 1, true}, {time.Hour, 1.2, true}},
		"one is tried again":     {{0, 0.1, false}, {time.Minute, 0.6, true}, {time.Second / 2, 0.1, true}, {time.Second / 2, 0.1, false}},
		"but later if that failed": {{0, 0.1, false}, {time.Second, 0.6, true}, {time.Second, 0.9, false},
			{time.Second, 0.6, true}, {time.Second, 0.9, true}, {time.Second, 0.9, false}},
		"and soon if it sufficed": {{0, 0.1, false}, {time.Second, 0.6, true}, {time.Second, 0.6, false},
			{time.Second, 0.6, true}, {2 * time.Second, 0.6, false},
			{2 * time.Second, 0.6, true}, {time.Second, 0.6, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, now := processors{all: true}, time.Unix(1, 0)
			for i, l := range looks {
				now = now.Add(l.after)
				before := p.all
				changed := p.change(l.busy, now)
				assert.True(t, p.all == l.all && changed == (before != p.all), "look", i, "all", p.all, "changed", changed, l.all)
			}
		})
	}
}

// However often it fails, one is tried once a minute.
func TestProcessorsAreTriedOnceAMinute(t *testing.T) {
	t.Parallel()
	p, now := processors{all: true}, time.Unix(1, 0)
	tried := 0
	for range 600 * 10 { // ten minutes
		now = now.Add(processorsLook)
		if p.change(0.6, now) && !p.all {
			tried++
		}
	}
	assert.True(t, tried >= 12 && tried <= 16, "tried", tried, "times in ten minutes")
}

func TestGarbagePercent(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{0: 200, 4 << 20: 200, 24 << 20: 200, 64 << 20: 75, 80 << 20: 60, 1 << 30: 25} {
		assert.Equal(t, garbagePercent(live), want, live, "bytes are live")
	}
}
