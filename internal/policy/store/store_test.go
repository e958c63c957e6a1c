package store_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/db"
	"pawl/internal/policy"
	"pawl/internal/policy/store"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestUse(t *testing.T) {
	t.Parallel()
	t.Run("finds what is stored", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.use(plan(1))
		for range 3 {
			assert.Equal(t, s.use(plan(1)), (store.Used{Version: 1, Active: 1}))
		}
		assert.Equal(t, s.use(plan(2)).Version, 2, "version finding one left a gap")
	})
	t.Run("refuses what is none", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		var all policy.Problems
		for _, source := range []string{"teleport: {}", ""} {
			_, err := store.Use(t.Context(), s.query, []byte(source), "serve")
			assert.True(t, errors.As(err, &all), "error", err)
		}
		s.isActive(0)
	})
	t.Run("makes a new file the active version", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		for n := int32(1); n <= 2; n++ {
			assert.Equal(t, s.use(plan(int(n))), (store.Used{Version: n, Created: true, Activated: true, Active: n}))
			s.isActive(n)
		}
	})
	t.Run("does not flap between replicas with an old and a new file", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.use(plan(1))
		s.use(plan(2))
		for range 3 {
			assert.Equal(t, s.use(plan(1)), (store.Used{Version: 1, Active: 2}))
			s.use(plan(2))
		}
		assert.Equal(t, s.history(), "1 serve, 2 serve", "history")
	})
	t.Run("leaves a person's choice alone", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.use(plan(1))
		s.use(plan(2))
		s.activate(1)
		assert.Equal(t, s.use(plan(2)), (store.Used{Version: 2, Active: 1}))
	})
	t.Run("activates what is stored where nothing has ever been active", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.insert(string(plan(1)))
		s.insert(string(plan(2)))
		assert.Equal(t, s.use(plan(1)), (store.Used{Version: 1, Activated: true, Active: 1}))
	})
}

func TestVersions(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.isActive(0)
	first, second := s.use(plan(1)).Version, s.use(plan(2)).Version
	assert.True(t, first == 1 && second == 2, "versions", first, "and", second)
	s.isActive(second)
	s.activate(second)
	s.activate(first) // back to an older one
	s.activate(first)
	s.isActive(first)
	assert.Equal(t, s.history(), "1 serve, 2 serve, 1 ann", "history")
	for want, known := range map[string][]int32{"1: 1m0s 2: 2m0s": nil, "2: 2m0s": {1}, "": {2, 1}} {
		active, added, err := store.Read(t.Context(), s.query, known)
		s.must(err)
		var got []string
		for _, v := range added {
			got = append(got, fmt.Sprintf("%d: %s", v.Number, v.Policy.ReservationTTL))
		}
		text := strings.Join(got, " ")
		assert.True(t, text == want && active == first, "besides", known, text, "active", active, want)
	}
	source, err := store.Source(t.Context(), s.query, second)
	assert.True(t, err == nil && source == string(plan(2)), "source", source, "error", err)
}

func TestVersionOfANewerRelease(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.insert("teleport: {}\n")
	_, added, err := store.Read(t.Context(), s.query, nil)
	s.must(err)
	var all policy.Problems
	assert.True(t, len(added) == 1 && added[0].Policy == nil && errors.As(added[0].Err, &all), added)
	err = store.Activate(t.Context(), s.query, store.Activation{Version: 1, Actor: "ann"})
	assert.True(t, errors.As(err, &all), "it can be activated", err)
	s.isActive(0)
}

func TestUseByManyAtOnceIsOneVersion(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var created, activated int
	versions := map[int32]int{}
	for range 8 {
		wg.Go(func() {
			used, err := store.Use(t.Context(), s.query, plan(1), "serve")
			mu.Lock()
			defer mu.Unlock()
			assert.True(t, err == nil, err)
			if used.Created {
				created++
			}
			if used.Activated {
				activated++
			}
			// Which number it has is open: those who lost the race may have used some up.
			versions[used.Version]++
			assert.Equal(t, used.Active, used.Version, used)
		})
	}
	wg.Wait()
	assert.True(t, created == 1 && activated == 1 && len(versions) == 1 && strings.Count(s.history(), "serve") == 1,
		"created", created, "times, activated", activated, "times, versions", versions, "history", s.history())
}

func TestActivateWhatIsNotThere(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	assert.ErrorIs(t, store.Activate(t.Context(), s.query, store.Activation{Version: 7, Actor: "ann"}), store.ErrNotFound)
	s.isActive(0)
}

func TestVersionsAreNeverChanged(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.use(plan(1))
	for _, sql := range []string{
		`UPDATE policies SET source = 'x', hash = sha256('x')`, `UPDATE policies SET created_at = now()`, `DELETE FROM policies`,
		`TRUNCATE policies CASCADE`, `UPDATE policy_activations SET actor = 'eve'`, `DELETE FROM policy_activations`, `TRUNCATE policy_activations`,
	} {
		err := s.exec(sql)
		assert.True(t, err != nil && strings.Contains(err.Error(), "is only added to"), sql, err)
	}
	for _, sql := range []string{
		`INSERT INTO policies (source, hash, created_by) VALUES ('x', sha256('y'), 'eve')`, `INSERT INTO policies (source, hash, created_by) VALUES ('', sha256(''), 'eve')`,
		`INSERT INTO policies (source, hash, created_by) VALUES ('x', sha256('x'), '')`,
		`INSERT INTO policy_activations (activation_no, version, actor) VALUES (2, 2, 'eve')`, `INSERT INTO policy_activations (activation_no, version, actor) VALUES (2, 1, '')`,
	} {
		assert.True(t, s.exec(sql) != nil, sql, "accepted")
	}
	s.isActive(1)
}

// TestStoreLeavesTheActiveVersion: what a person stores is not used before somebody says so; a service that is started with
// it says so.
func TestStoreLeavesTheActiveVersion(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.use(plan(1))
	for _, created := range []bool{true, false} {
		got, err := store.Store(t.Context(), s.query, plan(2), "ann")
		s.must(err)
		assert.Equal(t, got, (store.Stored{Version: 2, Created: created}))
	}
	s.isActive(1)
	assert.Equal(t, s.use(plan(2)), (store.Used{Version: 2, Activated: true, Active: 2}))
	got, err := store.Store(t.Context(), s.query, plan(1), "ann")
	assert.True(t, err == nil && got.EverActive && !got.Created, got, err)
	s.isActive(2)
}

// TestActivationsAtOneMoment: of those who have seen the same policy active, one wins, and the others are told.
func TestActivationsAtOneMoment(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.use(plan(0))
	for i := range 4 {
		_, err := store.Store(t.Context(), s.query, plan(i+1), "ann")
		s.must(err)
	}
	seen, err := store.Active(t.Context(), s.query)
	s.must(err)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			errs[i] = store.Activate(t.Context(), s.query, store.Activation{Version: int32(i + 2), Actor: "ann", OnBehalfOf: "bob", Reason: "tried", After: &seen.No})
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, store.ErrActivated) {
			t.Error(err)
		}
	}
	history := s.history()
	assert.True(t, won == 1 && strings.Count(history, "ann") == 1, won, "won; history", history)
}

// TestPoliciesOfACopy: those of the installation that a database was copied from are not active, can't be made so, and are not found
// for a text that is stored anew.
func TestPoliciesOfACopy(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.use(plan(1))
	s.must(s.exec(`ALTER TABLE policies DISABLE TRIGGER immutable`))
	s.must(s.exec(`UPDATE policies SET copied_from = gen_random_uuid()`))
	s.isActive(0)
	var refused policy.Problems
	if err := store.Activate(t.Context(), s.query, store.Activation{Version: 1, Actor: "ann"}); !errors.As(err, &refused) || !strings.Contains(err.Error(), "copied from") {
		t.Errorf("error %v", err)
	}
	if version, err := store.Find(t.Context(), s.query, plan(1)); err != nil || version != 0 {
		t.Errorf("found version %d, %v", version, err)
	}
	if late, err := store.RecentlyActive(t.Context(), s.query); err != nil || len(late) > 0 {
		t.Errorf("events of versions %v are heeded, %v", late, err)
	}
	assert.Equal(t, s.use(plan(1)), (store.Used{Version: 2, Created: true, Activated: true, Active: 2}))
	_, read, err := store.Read(t.Context(), s.query, nil)
	assert.True(t, err == nil && len(read) == 2 && read[0].Policy.Copied && !read[1].Policy.Copied, read, err)
}

func TestMain(m *testing.M) { dbtest.Main(m) }

// shop is the database of a shop.
type shop struct {
	t     *testing.T
	pool  *pgxpool.Pool
	query *db.Queries
}

func newShop(t *testing.T) *shop {
	t.Helper()
	pool := dbtest.New(t).Pool
	return &shop{t, pool, db.New(pool)}
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

// insert stores a version as no program does: it was never active.
func (s *shop) insert(source string) {
	s.t.Helper()
	s.must(s.exec(`INSERT INTO policies (source, hash, created_by) VALUES ($1, sha256(convert_to($1, 'UTF8')), 'test')`, source))
}

func (s *shop) use(source []byte) store.Used {
	s.t.Helper()
	used, err := store.Use(s.t.Context(), s.query, source, "serve")
	s.must(err)
	return used
}

func (s *shop) activate(version int32) {
	s.t.Helper()
	s.must(store.Activate(s.t.Context(), s.query, store.Activation{Version: version, Actor: "ann"}))
}

// isActive checks what new orders start with. Version 0: no policy.
func (s *shop) isActive(want int32) {
	s.t.Helper()
	active, err := store.Active(s.t.Context(), s.query)
	s.must(err)
	assert.Equal(s.t, active.Version, want, "active is version")
}

// history is the versions that were made active, in their order.
func (s *shop) history() string {
	s.t.Helper()
	var text string
	s.must(s.pool.QueryRow(s.t.Context(),
		`SELECT coalesce(string_agg(version || ' ' || actor, ', ' ORDER BY activation_no), '') FROM policy_activations`).Scan(&text))
	return text
}
