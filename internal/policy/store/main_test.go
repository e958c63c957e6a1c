package store_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"pawl/db"
	"pawl/internal/policy/store"
	"pawl/test/dbtest"
)

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
	if active.Version != want {
		s.t.Errorf("active is %d, want version %d", active.Version, want)
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
