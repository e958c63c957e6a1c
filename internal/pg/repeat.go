package pg

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// repeatFor is how long a read is repeated whose connection was lost, once in any case, and how long a statement waits for the
// gate. A connection is lost now and then, by itself; a database that is away for longer is what the caller should hear of.
const repeatFor = time.Second

// Repeat reads for a caller, and again for a moment if the connection is lost: until ctx or life has ended, and at least once.
// ErrAway is not repeated: the pool has waited. The error is the database's own.
func Repeat[T any](ctx, life context.Context, read func(context.Context) (T, error)) (T, error) {
	for began, try := time.Now(), 0; ; try++ {
		v, err := read(ctx)
		if err == nil || errors.Is(err, pgx.ErrNoRows) || errors.Is(err, ErrAway) || FaultOf(err) == Bad || SchemaMismatch(err) ||
			ctx.Err() != nil || life.Err() != nil || try > 0 && time.Since(began) > repeatFor {
			return v, err
		}
		Sleep(ctx, min(5*time.Millisecond<<min(try, 6), 100*time.Millisecond))
	}
}

// Sleep waits for d, give or take a fifth, or until ctx ends: what failed together is not to be tried again together.
func Sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(jitter(d))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func jitter(d time.Duration) time.Duration { return d*4/5 + rand.N(d*2/5+1) }
