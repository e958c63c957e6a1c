package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/db"
	"pawl/dbtest"
	"pawl/orders"
	"pawl/policy"
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
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) exec(sql string, args ...any) error {
	_, err := s.pool.Exec(s.t.Context(), sql, args...)
	return err
}

// plan is a policy like no other.
func plan(minutes int) []byte { return fmt.Appendf(nil, "reservationTtl: %dm\n", minutes) }

func (s *shop) store(source []byte) int32 {
	s.t.Helper()
	version, created, err := StorePolicy(s.t.Context(), s.query, source)
	s.must(err)
	if !created {
		s.t.Errorf("version %d was there", version)
	}
	return version
}

func (s *shop) use(source []byte) UsedPolicy {
	s.t.Helper()
	used, err := UsePolicy(s.t.Context(), s.query, source, "serve")
	s.must(err)
	return used
}

func (s *shop) activate(version int32) {
	s.t.Helper()
	s.must(ActivatePolicy(s.t.Context(), s.query, version, "ann"))
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

// history is the versions that were made active, in their order.
func (s *shop) history() string {
	s.t.Helper()
	var text string
	s.must(s.pool.QueryRow(s.t.Context(),
		`SELECT coalesce(string_agg(version || ' ' || actor, ', ' ORDER BY activation_no), '') FROM policy_activations`).Scan(&text))
	return text
}

func TestPoliciesBeforeTheFirstLoad(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	if version, p := s.active(); version == nil || p != nil {
		t.Errorf("active is %v, %v: an order would start without its policy", version, p)
	}
	if len(s.versions()) > 0 {
		t.Errorf("versions %v", s.versions())
	}
}

func TestPoliciesAreKnown(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.isActive(0)
	if p, known := s.of(nil); p != nil || !known {
		t.Errorf("an order without a version: %v, %v", p, known)
	}
	first, second := s.store(plan(1)), s.store(plan(2))
	if first != 1 || second != 2 {
		t.Errorf("versions %d and %d", first, second)
	}
	if _, known := s.of(&first); known {
		t.Error("a version is known before it was loaded")
	}
	s.isActive(0) // storing activates nothing
	s.activate(first)
	s.isActive(first)
	s.activate(second)
	s.activate(first) // back to an older one
	s.activate(first)
	s.isActive(first)
	if got := s.history(); got != "1 ann, 2 ann, 1 ann" {
		t.Errorf("history %s", got)
	}
	if p, known := s.of(&second); !known || p.ReservationTTL.Minutes() != 2 {
		t.Errorf("version 2 is %v, %v", p, known)
	}
	unknown := int32(3)
	if p, known := s.of(&unknown); p != nil || known {
		t.Errorf("version 3 is %v, %v", p, known)
	}
	if !slices.Equal(s.versions(), []int32{1, 2}) {
		t.Errorf("versions %v", s.versions())
	}
	if s.said.Len() > 0 {
		t.Errorf("said %s", s.said)
	}
}

// TestPoliciesThatComeToLightLate is about a version whose transaction commits after that
// of a higher one.
func TestPoliciesThatComeToLightLate(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	tx, err := s.pool.Begin(t.Context())
	s.must(err)
	if _, _, err := StorePolicy(t.Context(), s.query.WithTx(tx), plan(1)); err != nil {
		t.Fatal(err)
	}
	s.store(plan(2))
	s.must(s.load(t.Context()))
	if !slices.Equal(s.versions(), []int32{2}) {
		t.Errorf("versions %v", s.versions())
	}
	s.must(tx.Commit(t.Context()))
	s.must(s.load(t.Context()))
	if !slices.Equal(s.versions(), []int32{1, 2}) {
		t.Errorf("versions %v", s.versions())
	}
}

func TestPoliciesOfANewerRelease(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.activate(s.store(plan(1)))
	s.must(s.exec(`INSERT INTO policies (source, hash) VALUES ($1, sha256(convert_to($1, 'UTF8')))`, "teleport: {}\n"))
	newer := int32(2)
	for range 3 {
		s.isActive(1)
	}
	if _, known := s.of(&newer); known || !slices.Equal(s.versions(), []int32{1}) {
		t.Errorf("version 2 is known; versions %v", s.versions())
	}
	if n := strings.Count(s.said.String(), "unknown key teleport"); n != 1 {
		t.Errorf("said %d times:\n%s", n, s.said)
	}
	var all policy.Problems
	if err := ActivatePolicy(t.Context(), s.query, newer, "ann"); !errors.As(err, &all) {
		t.Errorf("it can be activated: %v", err)
	}
	s.said.Reset()
	s.must(s.exec(`INSERT INTO policy_activations (version, actor) VALUES (2, 'a newer release')`))
	for range 3 {
		s.must(s.load(t.Context()))
		if version, p := s.active(); version == nil || *version != newer || p != nil {
			t.Errorf("active is %v, %v: an order would start without its policy", version, p)
		}
	}
	if n := strings.Count(s.said.String(), "takes no new orders"); n != 1 {
		t.Errorf("said %d times:\n%s", n, s.said)
	}
	s.activate(1)
	s.isActive(1)
}

func TestStorePolicy(t *testing.T) {
	t.Parallel()
	t.Run("finds what is stored", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.store(plan(1))
		for range 3 {
			version, created, err := StorePolicy(t.Context(), s.query, plan(1))
			if err != nil || version != 1 || created {
				t.Errorf("version %d, created %v, error %v", version, created, err)
			}
		}
		if version := s.store(plan(2)); version != 2 {
			t.Errorf("version %d: finding one left a gap", version)
		}
	})
	t.Run("refuses what is none", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		var all policy.Problems
		if _, _, err := StorePolicy(t.Context(), s.query, []byte("teleport: {}")); !errors.As(err, &all) {
			t.Errorf("error %v", err)
		}
		if _, err := UsePolicy(t.Context(), s.query, nil, "serve"); !errors.As(err, &all) {
			t.Errorf("error %v", err)
		}
		s.isActive(0)
	})
	t.Run("by many at once is one version", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		var wg sync.WaitGroup
		var mu sync.Mutex
		var created, activated int
		versions := map[int32]int{}
		for range 8 {
			wg.Go(func() {
				used, err := UsePolicy(t.Context(), s.query, plan(1), "serve")
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				if used.Created {
					created++
				}
				if used.Activated {
					activated++
				}
				// Which number it has is open: those who lost the race may have used some up.
				versions[used.Version]++
				if used.Active != used.Version {
					t.Errorf("%+v", used)
				}
			})
		}
		wg.Wait()
		if created != 1 || activated != 1 || len(versions) != 1 || strings.Count(s.history(), "serve") != 1 {
			t.Errorf("created %d times, activated %d times, versions %v, history %s", created, activated, versions, s.history())
		}
	})
}

func TestUsePolicy(t *testing.T) {
	t.Parallel()
	t.Run("makes a new file the active version", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		for n := int32(1); n <= 2; n++ {
			if got, want := s.use(plan(int(n))), (UsedPolicy{Version: n, Created: true, Activated: true, Active: n}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			s.isActive(n)
		}
	})
	t.Run("does not flap between replicas with an old and a new file", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.use(plan(1))
		s.use(plan(2))
		for range 3 {
			if got, want := s.use(plan(1)), (UsedPolicy{Version: 1, Active: 2}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			s.use(plan(2))
		}
		if got := s.history(); got != "1 serve, 2 serve" {
			t.Errorf("history %s", got)
		}
	})
	t.Run("leaves a person's choice alone", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.use(plan(1))
		s.use(plan(2))
		s.activate(1)
		if got, want := s.use(plan(2)), (UsedPolicy{Version: 2, Active: 1}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
	t.Run("activates a draft where nothing has ever been active", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.store(plan(1))
		s.store(plan(2))
		if got, want := s.use(plan(1)), (UsedPolicy{Version: 1, Activated: true, Active: 1}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

func TestActivatePolicyThatThereIsNot(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	if err := ActivatePolicy(t.Context(), s.query, 7, "ann"); !errors.Is(err, orders.ErrNotFound) {
		t.Errorf("error %v", err)
	}
	s.isActive(0)
}

func TestPoliciesAreNeverChanged(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.use(plan(1))
	for _, sql := range []string{
		`UPDATE policies SET source = 'x', hash = sha256('x')`, `UPDATE policies SET created_at = now()`, `DELETE FROM policies`,
		`TRUNCATE policies CASCADE`, `UPDATE policy_activations SET actor = 'eve'`, `DELETE FROM policy_activations`, `TRUNCATE policy_activations`,
	} {
		if err := s.exec(sql); err == nil || !strings.Contains(err.Error(), "is only added to") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	for _, sql := range []string{
		`INSERT INTO policies (source, hash) VALUES ('x', sha256('y'))`, `INSERT INTO policies (source, hash) VALUES ('', sha256(''))`,
		`INSERT INTO policy_activations (version, actor) VALUES (2, 'eve')`, `INSERT INTO policy_activations (version, actor) VALUES (1, '')`,
	} {
		if err := s.exec(sql); err == nil {
			t.Errorf("%s: accepted", sql)
		}
	}
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
					known, ok := s.of(version)
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
	if err := s.load(ctx); err == nil {
		t.Error("no error")
	}
	if version, p := s.active(); version == nil || *version != 1 || p == nil {
		t.Errorf("active is %v, %v", version, p)
	}
}
