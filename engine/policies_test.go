package engine

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/db"
	"pawl/internal/policy/store"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// shop is the database of a shop, and what one process knows of its policies.
type shop struct {
	*policies
	t    *testing.T
	pool *pgxpool.Pool
	said *bytes.Buffer
}

func newShop(t *testing.T) *shop {
	t.Helper()
	pool := dbtest.New(t).Pool
	s := &shop{t: t, pool: pool}
	s.policies, s.said = s.process()
	return s
}

// process is one more process of the same shop.
func (s *shop) process() (*policies, *bytes.Buffer) {
	var said bytes.Buffer
	return newPolicies(db.New(s.pool), slog.New(slog.NewTextHandler(&said, nil))), &said
}

func (s *shop) must(err error) {
	s.t.Helper()
	assert.NoError(s.t, err)
}

func (s *shop) exec(sql string, args ...any) error {
	_, err := s.pool.Exec(s.t.Context(), sql, args...)
	return err
}

// plan is a policy like no other.
func plan(minutes int) []byte { return fmt.Appendf(nil, "reservationTtl: %dm\n", minutes) }

func (s *shop) use(source []byte) (version int32) {
	s.t.Helper()
	used, err := store.Use(s.t.Context(), s.query, source, "serve")
	s.must(err)
	return used.Version
}

func (s *shop) activate(version int32) {
	s.t.Helper()
	s.must(store.Activate(s.t.Context(), s.query, store.Activation{Version: version, Actor: "ann"}))
}

// isActive loads, and checks what new orders start with. Version 0: no policy.
func (s *shop) isActive(want int32) {
	s.t.Helper()
	s.must(s.load(s.t.Context()))
	version, p := s.active()
	switch {
	case version == nil && p == nil && want == 0:
	case version == nil || *version != want || p == nil:
		s.t.Errorf("active is %v, %v; want version %d", version, p, want)
	}
}

func TestPoliciesBeforeTheFirstLoad(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	version, p := s.active()
	assert.True(t, version != nil && p == nil, "active is", version, p, "an order would start without its policy")
	assert.True(t, len(s.versions()) == 0, "versions", s.versions())
}

func TestPoliciesAreKnown(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.isActive(0)
	p, known := s.byVersion(nil)
	assert.True(t, p == nil && known, "an order without a version", p, known)
	first := s.use(plan(1))
	_, known = s.byVersion(&first)
	assert.True(t, !known, "a version is known before it was loaded")
	s.isActive(first)
	second := s.use(plan(2))
	s.isActive(second)
	s.activate(first) // back to an older one
	s.isActive(first)
	p, known = s.byVersion(&second)
	assert.True(t, known && p.ReservationTTL.Minutes() == 2, "version 2 is", p, known)
	unknown := int32(3)
	p, known = s.byVersion(&unknown)
	assert.True(t, p == nil && !known, "version 3 is", p, known)
	assert.Equal(t, s.versions(), []int32{1, 2}, "versions")
	assert.True(t, s.said.Len() == 0, "said", s.said)
}

// TestPolicyCommittedAfterAHigherVersion is about a version whose transaction commits after that
// of a higher one.
func TestPolicyCommittedAfterAHigherVersion(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	tx, err := s.pool.Begin(t.Context())
	s.must(err)
	assert.NoError(t, assert.Err(store.Store(t.Context(), s.query.WithTx(tx), plan(1), "serve")))
	s.use(plan(2))
	s.must(s.load(t.Context()))
	assert.Equal(t, s.versions(), []int32{2}, "versions")
	s.must(tx.Commit(t.Context()))
	s.must(s.load(t.Context()))
	assert.Equal(t, s.versions(), []int32{1, 2}, "versions")
}

func TestPoliciesOfANewerRelease(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.use(plan(1))
	s.must(s.exec(`INSERT INTO policies (source, hash, created_by) VALUES ($1, sha256(convert_to($1, 'UTF8')), 'test')`, "teleport: {}\n"))
	newer := int32(2)
	for range 3 {
		s.isActive(1)
	}
	_, known := s.byVersion(&newer)
	assert.True(t, !known && slices.Equal(s.versions(), []int32{1}), "version 2 is known; versions", s.versions())
	assert.Equal(t, strings.Count(s.said.String(), "unknown key teleport"), 1, "said times", s.said)
	s.said.Reset()
	s.must(s.exec(`INSERT INTO policy_activations (activation_no, version, actor) VALUES (2, 2, 'a newer release')`))
	for range 3 {
		s.must(s.load(t.Context()))
		version, p := s.active()
		assert.True(t, version != nil && *version == newer && p == nil, "active is", version, p, "an order would start without its policy")
	}
	assert.Equal(t, strings.Count(s.said.String(), "takes no new orders"), 1, "said times", s.said)
	s.activate(1)
	s.isActive(1)
}

func TestPoliciesAreReadWhileTheyAreLoaded(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.must(s.load(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if version, p := s.active(); version != nil {
					known, ok := s.byVersion(version)
					if p == nil || !ok || known != p || !slices.Contains(s.versions(), *version) {
						t.Errorf("version %d: %v, %v", *version, p, known)
						return
					}
				}
			}
		})
	}
	for n := 1; n <= 20; n++ {
		s.use(plan(n))
		s.must(s.load(t.Context()))
	}
	cancel()
	wg.Wait()
	s.isActive(20)
}

func TestPoliciesKeepWhatTheyKnowWithoutADatabase(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.use(plan(1))
	s.isActive(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.True(t, s.load(ctx) != nil, "no error")
	version, p := s.active()
	assert.True(t, version != nil && *version == 1 && p != nil, "active is", version, p)
}
