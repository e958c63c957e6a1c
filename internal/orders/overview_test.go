package orders

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/test/assert"
)

// However many callers there are, and however long the read takes, one read serves them all for a while.
func TestReadsAreShared(t *testing.T) {
	t.Parallel()
	never := func(func()) { t.Error("read in the background") }
	var kept shared[int64]
	var reads atomic.Int64
	slow, release := make(chan struct{}), make(chan struct{})
	read := func(ctx context.Context) (int64, error) {
		close(slow)
		<-release
		return reads.Add(1), ctx.Err()
	}
	gone, leave := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			if n, err := kept.get(gone, never, read); n != 1 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
	<-slow
	leave() // the others still wait for it
	close(release)
	callers.Wait()
	if n, err := kept.get(t.Context(), never, read); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	var failing shared[int64]
	broken := errors.New("broken")
	for range 2 {
		if _, err := failing.get(t.Context(), never, func(context.Context) (int64, error) { reads.Add(1); return 0, broken }); !errors.Is(err, broken) {
			t.Error(err)
		}
	}
	assert.Equal(t, reads.Load(), 3, "reads: what failed is not kept")
}

// A result that took long to read is given once more while it is read again.
func TestNobodyWaitsTwiceForASlowRead(t *testing.T) {
	t.Parallel()
	now, background := time.Now(), 0
	var kept shared[int]
	get := func() int {
		value, err := kept.get(t.Context(), func(do func()) { background++; do() }, func(context.Context) (int, error) { return 2, nil })
		assert.NoError(t, err)
		return value
	}
	kept.last.Store(&result[int]{1, now.Add(-time.Second), now.Add(time.Hour)})
	assert.Equal(t, get(), 1, "the last one")
	assert.Equal(t, get(), 2, "the next one")
	assert.Equal(t, background, 1, "reads")
	kept.last.Store(&result[int]{1, now.Add(-time.Hour), now.Add(-time.Second)})
	assert.Equal(t, get(), 2, "instead of one that is too old")
	assert.Equal(t, background, 1, "reads")
}
