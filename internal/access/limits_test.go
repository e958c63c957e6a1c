package access

import (
	"errors"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/test/assert"
)

// admission is that of a principal of its own.
func admission(limits Limits) *Admission {
	return new(usages).of(&Principal{Name: "token:shop", Limits: limits}, time.Now())
}

// wantOver wants a request to be beyond a limit.
func wantOver(t *testing.T, over *Exceeded, name string, pause time.Duration) {
	t.Helper()
	assert.Require(t, over != nil, "admitted")
	assert.True(t, over.Quota.Name == name && over.Quota.Remaining == 0 && over.Pause.Round(time.Millisecond) == pause,
		over, name, "and a pause of", pause)
}

func wantIn(t *testing.T, over *Exceeded) {
	t.Helper()
	assert.True(t, over == nil, over)
}

func TestLimits(t *testing.T) {
	t.Parallel()
	start := time.Now()
	t.Run("of requests in a second", func(t *testing.T) {
		t.Parallel()
		a := admission(Limits{Rate: 4})
		for range 4 {
			wantIn(t, a.enter(start))
		}
		wantOver(t, a.enter(start), "requests", time.Second)
		wantIn(t, a.enter(start.Add(250*time.Millisecond)))
		wantOver(t, a.enter(start.Add(250*time.Millisecond)), "requests", time.Second)
	})
	t.Run("of requests at one time", func(t *testing.T) {
		t.Parallel()
		a := admission(Limits{InFlight: 2})
		wantIn(t, a.enter(start))
		wantIn(t, a.enter(start))
		wantOver(t, a.enter(start), "in-flight", inFlightWait)
		a.leave(start, 0)
		wantIn(t, a.enter(start))
	})
	t.Run("of bytes: those of one request are owed by the next", func(t *testing.T) {
		t.Parallel()
		a := admission(Limits{Bytes: 1000})
		wantIn(t, a.enter(start))
		a.leave(start, 4500)
		wantOver(t, a.enter(start), "bytes", 3501*time.Millisecond)
		wantOver(t, a.enter(start.Add(3*time.Second)), "bytes", time.Second)
		wantIn(t, a.enter(start.Add(3600*time.Millisecond)))
	})
	t.Run("a request that is refused takes nothing", func(t *testing.T) {
		t.Parallel()
		a := admission(Limits{Rate: 5, InFlight: 1})
		wantIn(t, a.enter(start))
		for range 20 {
			wantOver(t, a.enter(start), "in-flight", inFlightWait)
		}
		assert.Equal(t, a.Quotas(start)[0].Remaining, 4, "requests left")
	})
	t.Run("hold for a name, whatever token it has", func(t *testing.T) {
		t.Parallel()
		var all usages
		of := func(name string, rate int32) *Admission {
			return all.of(&Principal{Name: name, Limits: Limits{Rate: rate}}, start)
		}
		a := of("token:a", 1)
		assert.True(t, a == of("token:a", 1) && a != of("token:b", 1) && a != of("token:a", 2), "shared wrongly")
	})
	t.Run("are kept by callers at the same time", func(t *testing.T) {
		t.Parallel()
		a := admission(Limits{Rate: 50, InFlight: 1000})
		var admitted atomic.Int64
		var callers sync.WaitGroup
		for range 200 {
			callers.Go(func() {
				if a.enter(start) == nil {
					admitted.Add(1)
				}
			})
		}
		callers.Wait()
		assert.Equal(t, admitted.Load(), 50, "admitted")
	})
}

// TestLimitsOfManyCallers: the usage of callers who use nothing is forgotten, and no other.
func TestLimitsOfManyCallers(t *testing.T) {
	t.Parallel()
	start := time.Now()
	var all usages
	of := func(name string) *Admission {
		return all.of(&Principal{Name: name, Limits: Limits{Rate: 1, InFlight: 5}}, start)
	}
	working, resting := of("oidc:working"), of("oidc:resting")
	wantIn(t, working.enter(start))
	wantIn(t, resting.enter(start.Add(-time.Minute)))
	resting.leave(start.Add(-time.Minute), 0)
	for n := range usagesMost {
		of(strconv.Itoa(n))
	}
	n := len(all.known)
	assert.True(t, n <= usagesMost && of("oidc:working") == working && of("oidc:resting") != resting, n, "are known")
}

func TestFailedAttempts(t *testing.T) {
	t.Parallel()
	start := time.Now()
	fail := func(p *place, now time.Time) error {
		err := p.begin(now)
		if err == nil {
			p.end(now, true)
		}
		return err
	}
	t.Run("are few", func(t *testing.T) {
		t.Parallel()
		p := newAttempts().placeOf(netip.MustParseAddr("192.0.2.7"))
		for range attemptsAtOnce {
			assert.NoError(t, fail(p, start))
		}
		over, _ := errors.AsType[*Exceeded](fail(p, start))
		wantOver(t, over, "failed-attempts", attemptEvery)
		assert.NoError(t, fail(p, start.Add(attemptEvery)))
	})
	t.Run("those that succeed cost nothing", func(t *testing.T) {
		t.Parallel()
		p := newAttempts().placeOf(netip.MustParseAddr("192.0.2.7"))
		for range 3 * attemptsAtOnce {
			assert.NoError(t, p.begin(start))
			p.end(start, false)
		}
	})
	t.Run("at the same time are no more", func(t *testing.T) {
		t.Parallel()
		p, begun := newAttempts().placeOf(netip.MustParseAddr("192.0.2.7")), 0
		assert.NoError(t, fail(p, start))
		for range 3 * attemptsAtOnce {
			if p.begin(start) == nil {
				begun++
			}
		}
		assert.Equal(t, begun, attemptsAtOnce-1)
	})
	t.Run("are those of a network", func(t *testing.T) {
		t.Parallel()
		for address, want := range map[string]string{
			"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7",
			"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "fe80::1%eth0": "fe80::",
		} {
			assert.Equal(t, Network(netip.MustParseAddr(address)).String(), want, "network of", address)
		}
		assert.True(t, newAttempts().placeOf(netip.Addr{}) != nil, "no place of a caller whose address is not known")
	})
}
