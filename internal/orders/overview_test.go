package orders

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"pawl/test/assert"
)

// However many callers there are, and however long the read takes, one read serves them all for a while.
func TestReadsAreShared(t *testing.T) {
	t.Parallel()
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
			if n, err := kept.get(gone, read); n != 1 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
	<-slow
	leave() // the others still wait for it
	close(release)
	callers.Wait()
	if n, err := kept.get(t.Context(), read); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	var failing shared[int64]
	broken := errors.New("broken")
	for range 2 {
		if _, err := failing.get(t.Context(), func(context.Context) (int64, error) { reads.Add(1); return 0, broken }); !errors.Is(err, broken) {
			t.Error(err)
		}
	}
	assert.Equal(t, reads.Load(), 3, "reads: what failed is not kept")
}
