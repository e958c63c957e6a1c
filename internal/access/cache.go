package access

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/singleflight"

	"pawl/internal/pg"
)

const (
	rememberedMost = 10_000           // keys in a cache
	readLimit      = 10 * time.Second // of a read of the database, as for any read of a caller
)

// cache caches values of the database. After half of the time that a value is valid, the next get refreshes it in the
// background; after all of it, get waits. All callers of a key share one read. Keys without a row are not cached:
// invented ones would displace those in use.
type cache[V any] struct {
	control *Control
	valid   time.Duration
	read    func(ctx context.Context, key string) (V, error) // pgx.ErrNoRows: there is none

	last  *lru.Cache[string, reading[V]]
	reads singleflight.Group

	mu      sync.Mutex
	forgets int // number of calls of forget: values read before are not cached after it
}

type reading[V any] struct {
	value V
	at    time.Time // when the read began
}

func newCache[V any](c *Control, valid time.Duration, read func(context.Context, string) (V, error)) *cache[V] {
	return &cache[V]{control: c, valid: valid, read: read, last: newLRU[string, reading[V]]()}
}

func newLRU[K comparable, V any]() *lru.Cache[K, V] {
	c, err := lru.New[K, V](rememberedMost)
	if err != nil {
		panic(err) // only of a size below 1
	}
	return c
}

// get returns the value of a key. Errors: pgx.ErrNoRows, ErrUnavailable, or the cause of ctx ending.
func (c *cache[V]) get(ctx context.Context, key string) (value V, err error) {
	known, ok := c.last.Get(key)
	age := time.Since(known.at)
	if ok && age <= c.valid/2 {
		return known.value, nil
	}
	read := c.reads.DoChan(key, func() (any, error) { return c.refresh(key) })
	if ok && age <= c.valid {
		return known.value, nil
	}
	select {
	case <-ctx.Done():
		return value, ctx.Err()
	case r := <-read:
		value, _ = r.Val.(V)
		return value, r.Err
	}
}

// refresh reads a value for all waiting callers. It continues when one leaves.
func (c *cache[V]) refresh(key string) (value V, err error) {
	if !c.control.enter() {
		return value, fmt.Errorf("%w: stopping", ErrUnavailable)
	}
	defer c.control.running.Done()
	c.mu.Lock()
	began, forgets := time.Now(), c.forgets
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.control.life, readLimit)
	defer cancel()
	value, err = pg.Repeat(ctx, c.control.life, func(ctx context.Context) (V, error) { return c.read(ctx, key) })
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		c.last.Remove(key)
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	case c.forgets == forgets:
		c.last.Add(key, reading[V]{value, began})
	}
	return value, err
}

// forget removes a key. A read under way does not restore it.
func (c *cache[V]) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgets++
	c.reads.Forget(key)
	c.last.Remove(key)
}
