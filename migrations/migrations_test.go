package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/cell"
	"pawl/internal/pg"
	"pawl/migrations"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

func TestUp(t *testing.T) {
	t.Parallel()
	t.Run("by six at once on an empty database, and again, which changes nothing", func(t *testing.T) {
		t.Parallel()
		url := dbtest.Empty(t)
		sixAtOnce(t, url)
		whole(t, url)
		before := schema(t, url)
		up(t, url)
		assert.Equal(t, schema(t, url), before, "the schema changed")
	})
	t.Run("by six at once from the first version", func(t *testing.T) {
		t.Parallel()
		url := dbtest.Empty(t)
		first := build(t, func(files fstest.MapFS) {
			maps.DeleteFunc(files, func(name string, _ *fstest.MapFile) bool { return name != "00001_orders.sql" })
		})
		err := migrations.UpOf(t.Context(), url, first)
		assert.Require(t, err == nil && applied(t, url) == 1, err)
		sixAtOnce(t, url)
		whole(t, url)
	})
	t.Run("of an address nobody answers at is an error", func(t *testing.T) {
		t.Parallel()
		assert.True(t, assert.Err(migrations.Up(t.Context(), "postgres://nobody@/none?host="+t.TempDir())) != nil, "no error")
	})
}

// TestDown: what it tells is what goes, what it tells nobody about does not go, and in the end nothing is left.
func TestDown(t *testing.T) {
	t.Parallel()
	url := dbtest.Empty(t)
	empty := schema(t, url)
	all, err := migrations.Up(t.Context(), url)
	assert.Require(t, err == nil && len(all) == len(names(t)), "applied", all, err)
	migrated := schema(t, url)
	for before := migrated; len(all) > 0; all = all[:len(all)-1] {
		got := applied(t, url)
		assert.Require(t, got == len(all), got, "applied, want", len(all))
		refuseDown(t, url, all[len(all)-1])
		assert.Require(t, schema(t, url) == before, all[len(all)-1], "was rolled back")
		down(t, url)
		before = schema(t, url)
	}
	assert.Equal(t, schema(t, url), empty, "left behind")
	up(t, url)
	assert.Equal(t, schema(t, url), migrated)
}

// refuseDown is told what would go with a migration, and says no.
func refuseDown(t *testing.T, url, name string) {
	t.Helper()
	no := errors.New("no")
	var told migrations.Rollback
	err := migrations.Down(t.Context(), url, func(r migrations.Rollback) error {
		told = r
		return no
	})
	assert.True(t, errors.Is(err, no) && told.Name == name && len(told.Drops) != 0 && told.Orders == 0 && told.Services == 0,
		name, err, "told", told)
	assert.True(t, name != "00003_effects.sql" || slices.Contains(told.Drops, "DROP TABLE pawl.charge_operations"),
		"it does not say that refunds will be gone", told.Drops)
}

// TestBesideANewerRelease: the release before it changes nothing, and leaves it the migration that only it has.
func TestBesideANewerRelease(t *testing.T) {
	t.Parallel()
	url := dbtest.Empty(t)
	newest := migrations.Version() + 1
	newer := build(t, func(files fstest.MapFS) {
		files[fmt.Sprintf("%05d_newer.sql", newest)] = &fstest.MapFile{
			Data: []byte("-- +goose Up\nCREATE TABLE public.added ();\n-- +goose Down\nDROP TABLE public.added;\n"),
		}
	})
	assert.NoError(t, migrations.UpOf(t.Context(), url, newer))
	before := schema(t, url)
	up(t, url)
	got := ask(t, url, newestApplied)
	assert.True(t, got == fmt.Sprint(newest) && schema(t, url) == before, "the newest migration is", got, "and the schema may have changed")
	err := migrations.Down(t.Context(), url, func(migrations.Rollback) error { return nil })
	assert.True(t, err != nil && strings.Contains(err.Error(), "with the release that applied it"), "error", err)
}

const newestApplied = `SELECT max(version_id)::text FROM public.goose_db_version`

// build is the files of a program that differs from this one.
func build(t *testing.T, edit func(files fstest.MapFS)) fs.FS {
	t.Helper()
	files := fstest.MapFS{}
	for _, name := range names(t) {
		text, err := os.ReadFile(name)
		assert.NoError(t, err)
		files[name] = &fstest.MapFile{Data: text}
	}
	edit(files)
	return files
}

// The folder is plain goose: whoever has the stock command needs nothing of ours.
func TestStockGooseCommand(t *testing.T) {
	t.Parallel()
	goose, err := exec.LookPath("goose")
	if err != nil {
		if goose, err = filepath.Abs(filepath.Join("..", "bin", "goose")); err == nil {
			_, err = os.Stat(goose)
		}
	}
	if err != nil {
		t.Skip("goose is not installed: .ci/run installs it")
	}
	url := dbtest.Empty(t)
	run := func(command string) {
		cmd := exec.CommandContext(t.Context(), goose, "-dir", ".", "postgres", url, command)
		output, err := cmd.CombinedOutput()
		assert.NoError(t, err, "goose", command, output)
	}
	run("up")
	whole(t, url)
	up(t, url) // ours finds nothing to do
	run("down")
	assert.Equal(t, applied(t, url), len(names(t))-1, "applied after goose down")
	up(t, url)
	run("reset")
	assert.Equal(t, applied(t, url), 0, "applied after goose reset")
}

// TestMigratedMeanwhile: another replica migrates the database between the two looks of FindSchema.
func TestMigratedMeanwhile(t *testing.T) {
	t.Parallel()
	url := dbtest.Empty(t)
	conn, err := pgx.Connect(t.Context(), url)
	assert.NoError(t, err)
	defer conn.Close(t.Context())
	for _, sql := range []string{ // as goose begins
		`CREATE TABLE public.goose_db_version (id integer PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY,
			version_id bigint NOT NULL, is_applied boolean NOT NULL, tstamp timestamp NOT NULL DEFAULT now())`,
		`INSERT INTO public.goose_db_version (version_id, is_applied) VALUES (0, true)`,
	} {
		assert.NoError(t, assert.Err(conn.Exec(t.Context(), sql)))
	}
	on := &beforeSecond{DBTX: conn, do: func() { up(t, url) }}
	assert.NoError(t, pg.FindSchema(t.Context(), on))
	assert.NoError(t, assert.Err(conn.Exec(t.Context(), `DROP SCHEMA pawl, books CASCADE`)))
	if err := pg.FindSchema(t.Context(), conn); err == nil || !strings.Contains(err.Error(), "although") {
		t.Error(err)
	}
}

// beforeSecond does something before the second read of one row.
type beforeSecond struct {
	db.DBTX
	reads int
	do    func()
}

func (b *beforeSecond) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if b.reads++; b.reads == 2 {
		b.do()
	}
	return b.DBTX.QueryRow(ctx, sql, args...)
}

func sixAtOnce(t *testing.T, url string) {
	t.Helper()
	var replicas sync.WaitGroup
	for range 6 {
		replicas.Go(func() {
			assert.Succeeds(t, assert.Err(migrations.Up(t.Context(), url)))
		})
	}
	replicas.Wait()
}

// whole checks that every file was applied, once.
func whole(t *testing.T, url string) {
	t.Helper()
	got, want := applied(t, url), len(names(t))
	assert.True(t, got == want && want != 0, got, "of", want, "files applied")
	twice := ask(t, url, `SELECT count(*)::text FROM (SELECT FROM goose_db_version GROUP BY version_id HAVING count(*) > 1) AS v`)
	assert.Equal(t, twice, "0", "versions applied twice")
	assert.Equal(t, ask(t, url, `SELECT count(*)::text FROM pawl.installation`), "1", "installations")
	newest := ask(t, url, newestApplied)
	assert.Equal(t, newest, fmt.Sprint(migrations.Version()), "the newest migration")
}

func names(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("*.sql")
	assert.NoError(t, err)
	return names
}

func applied(t *testing.T, url string) (n int) {
	t.Helper()
	list, err := migrations.Status(t.Context(), url)
	assert.NoError(t, err)
	for i, m := range list {
		assert.True(t, m.Applied == !m.AppliedAt.IsZero() && (!m.Applied || n == i) && strings.HasSuffix(m.Name, ".sql"), m)
		if m.Applied {
			n++
		}
	}
	return n
}

func up(t *testing.T, url string) {
	t.Helper()
	assert.NoError(t, assert.Err(migrations.Up(t.Context(), url)))
}

func down(t *testing.T, url string) {
	t.Helper()
	assert.NoError(t, migrations.Down(t.Context(), url, func(migrations.Rollback) error { return nil }))
}

// schema is everything the migrations make, as text: relations with columns, constraints, indexes, triggers, functions.
func schema(t *testing.T, url string) string {
	t.Helper()
	return ask(t, url, `SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (
		SELECT format('%s %s.%s %s %s', c.relkind, n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod))
			|| ' ' || coalesce(c.reloptions::text, '')
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
		WHERE n.nspname IN ('pawl', 'public', 'books') AND c.relname NOT LIKE 'goose%'
		UNION ALL SELECT pg_get_constraintdef(o.oid) FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid
		WHERE o.connamespace = to_regnamespace('pawl') AND c.relname NOT LIKE 'goose%'
		UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'pawl'
		UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
		UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = to_regnamespace('pawl')
		UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname IN ('pawl', 'books')) AS lines(line)`)
}

func ask(t *testing.T, url, query string) (text string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	assert.NoError(t, err)
	defer conn.Close(t.Context())
	assert.NoError(t, conn.QueryRow(t.Context(), query).Scan(&text))
	return text
}

// TestStranger is every way in which a database and a service fit together, or not.
func TestStranger(t *testing.T) {
	t.Parallel()
	home := db.InstallationPlaceRow{Name: "prod", HomeSystem: 7, HomeDatabase: 5, System: 7, Database: 5}
	change := func(f func(*db.InstallationPlaceRow)) migrations.Place {
		row := home
		f(&row)
		return migrations.Place{InstallationPlaceRow: row}
	}
	for what, c := range map[string]struct {
		place migrations.Place
		name  string
		want  string
	}{
		"home":                                           {change(func(*db.InstallationPlaceRow) {}), "prod", ""},
		"home, and no name is given":                     {change(func(*db.InstallationPlaceRow) {}), "", ""},
		"home, and none was stored":                      {change(func(r *db.InstallationPlaceRow) { r.Name = "" }), "prod", ""},
		"nothing is stored yet":                          {change(func(r *db.InstallationPlaceRow) { r.Name, r.HomeSystem, r.HomeDatabase = "", 0, 0 }), "prod", ""},
		"there is no schema":                             {migrations.Place{}, "prod", ""},
		"the cluster may not be known":                   {change(func(r *db.InstallationPlaceRow) { r.System = 0 }), "prod", ""},
		"it was not known at the start":                  {change(func(r *db.InstallationPlaceRow) { r.HomeSystem = 0 }), "prod", ""},
		"another cluster":                                {change(func(r *db.InstallationPlaceRow) { r.System = 8 }), "prod", "it comes from another PostgreSQL cluster"},
		"another database":                               {change(func(r *db.InstallationPlaceRow) { r.Database = 6 }), "prod", "it is a copy of another database of this cluster"},
		"another name":                                   {change(func(*db.InstallationPlaceRow) {}), "staging", `it belongs to the installation "prod", and this is "staging"`},
		"another name, and the cluster may not be known": {change(func(r *db.InstallationPlaceRow) { r.System = 0 }), "staging", `it belongs to the installation "prod", and this is "staging"`},
	} {
		assert.Equal(t, c.place.Stranger(c.name), c.want, what)
	}
}

// TestSettleOnce: where a database belongs is stored once, with the rights of the service. A name may come later, and stays.
func TestSettleOnce(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	pool := dbtest.Open(t, database.URL, pg.Options{MaxConns: 1})
	settle := func(name, want string) migrations.Place {
		t.Helper()
		place, err := migrations.Settle(t.Context(), db.New(pool), name, cell.Cell{})
		assert.True(t, err == nil && place.Name == want && place.HomeSystem == place.System && place.System != 0 &&
			place.HomeDatabase == place.Database && place.Database != 0, place, err)
		return place
	}
	first := settle("", "")
	second := settle("prod", "prod")
	assert.True(t, second.Same(first) && second.Stranger("") == "" && second.Stranger("staging") != "", second, "before", first)
	settle("staging", "prod")
	later, err := migrations.Settle(t.Context(), db.New(pool), "", cell.Cell{Number: 1, Of: 2})
	assert.True(t, err == nil && later.Cell() == cell.All, "a later service changes the cell", later, err)
	ask(t, database.AdminURL, `UPDATE pawl.installation SET database_oid = 1 RETURNING ''`)
	if place, err := migrations.Settle(t.Context(), db.New(pool), "", cell.Cell{}); err != nil || place.HomeDatabase != 1 || place.Same(first) {
		t.Errorf("a service moves a database by itself: %+v, %v", place, err)
	}
}

// TestDivide: a database and its copy become two cells. Each order goes on in one of them, and no unit of stock is in
// both.
func TestDivide(t *testing.T) {
	t.Parallel()
	lower := dbtest.New(t)
	pool := dbtest.Open(t, lower.URL, pg.Options{MaxConns: 1})
	assert.NoError(t, assert.Err(migrations.Settle(t.Context(), db.New(pool), "", cell.Cell{})))
	for _, sql := range []string{
		`INSERT INTO pawl.inventory (item, on_hand, reserved, tracked) VALUES ('cup', 10, 3, true), ('pot', 0, 0, true), ('any', 0, 0, false)`,
		`INSERT INTO pawl.orders (order_id, status, fence, due_at, amount, currency, item, complete_by, concurrency_key, owner)
			SELECT id, 'charging', 1, now() - interval '1 hour', 1, 'USD', 'cup', now(), 'k', gen_random_uuid() FROM unnest(ARRAY['a', 'b', 'order-123']) AS id`,
		`INSERT INTO pawl.charges (order_no, generation, currency, amount, executor, capture, capture_by, capture_due_at)
			SELECT order_no, 0, 'USD', 1, 'http', 'later', now(), now() FROM pawl.orders`,
		`INSERT INTO pawl.late_undos (order_no, generation, step, reason) SELECT order_no, 0, 'charge', 'late' FROM pawl.orders`,
	} {
		ask(t, lower.AdminURL, `WITH x AS (`+sql+` RETURNING 1) SELECT count(*)::text FROM x`)
	}
	if err := migrations.Adopt(t.Context(), lower.AdminURL, migrations.Adoption{Cell: cell.Cell{Number: 0, Of: 2}}); !errors.Is(err, migrations.ErrNotDivided) {
		t.Error(err)
	}
	var halves [2]cell.Cell
	for range 2 { // the first reply may have been lost
		var err error
		halves, err = migrations.Divide(t.Context(), lower.AdminURL, "ann")
		assert.NoError(t, err)
		assert.Equal(t, halves, [2]cell.Cell{{Number: 0, Of: 2}, {Number: 1, Of: 2}})
	}
	place, err := migrations.ReadPlace(t.Context(), db.New(pool))
	assert.NoError(t, err)
	assert.Contains(t, place.Stranger(""), "0+1/2")
	pool.Close()
	upper := lower.Copy(t)
	const state = `SELECT string_agg(order_id || ' ' || coalesce(hold_reason, 'goes on') || ' ' || fence, ', ' ORDER BY order_id)
		|| '; ' || (SELECT string_agg(item || ' ' || on_hand || ' ' || reserved, ', ' ORDER BY item) FROM pawl.inventory)
		|| '; ' || (SELECT count(*) FROM pawl.late_undos WHERE finished_at IS NULL) || '; ' || (SELECT count(capture_due_at) FROM pawl.charges) || '; ' || (SELECT count(*) FROM pawl.order_numbering)
		FROM pawl.orders`
	for i, database := range []*dbtest.Database{lower, upper} {
		for _, wrong := range []cell.Cell{{}, {Number: 1, Of: 4}} {
			assert.ErrorIs(t, migrations.Adopt(t.Context(), database.AdminURL, migrations.Adoption{Cell: wrong}), migrations.ErrNotDivided,
				wrong)
		}
		if err := migrations.Adopt(t.Context(), database.AdminURL, migrations.Adoption{Cell: halves[1-i]}); err == nil || !strings.Contains(err.Error(), "becomes cell "+halves[i].String()) {
			t.Errorf("both databases can become the same half: %v", err)
		}
		assert.NoError(t, migrations.Adopt(t.Context(), database.AdminURL, migrations.Adoption{Cell: halves[i]}))
		want := []string{
			"a other_cell: 1/2 2, b goes on 1, order-123 goes on 1; any 0 0, cup 7 3, pot 0 0; 2; 2; 0",
			"a goes on 1, b other_cell: 0/2 2, order-123 other_cell: 0/2 2; any 0 0, cup 6 3, pot 0 0; 1; 1; 0",
		}[i]
		assert.Equal(t, ask(t, database.AdminURL, state), want)
		query := db.New(database.Pool)
		_, err = query.OrderNumberingRenew(t.Context(), db.OrderNumberingRenewParams{Skipped: 1, Cell: "0/1"})
		assert.ErrorIs(t, err, pgx.ErrNoRows, "a replica of the undivided cell could admit orders")
		assert.NoError(t, assert.Err(query.OrderNumberingRenew(t.Context(), db.OrderNumberingRenewParams{Skipped: 1, Cell: halves[i].String()})))
	}
}

// TestAdoptAsCopy: nothing of a copy leads to where the original leads, and it is all or nothing.
func TestAdoptAsCopy(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	for _, sql := range []string{
		`UPDATE pawl.installation SET name = 'prod', system_identifier = 1, database_oid = 1`,
		`INSERT INTO pawl.policies (source, hash, created_by) VALUES ('{}', sha256('{}'), 'test')`,
		`INSERT INTO pawl.policy_activations (activation_no, version, actor) VALUES (1, 1, 'test')`,
		`INSERT INTO pawl.tokens (id, name, sha256, roles, created_by, expires_at) VALUES ('0123456789', 'shop', sha256('x'), '{admin}', 'test', now() + interval '1 day')`,
		`INSERT INTO pawl.sessions (sha256, token_id, expires_at) VALUES (sha256('x'), '0123456789', now() + interval '1 hour')`,
		`INSERT INTO pawl.webhook_endpoints (event_no, created_by, secret, previous_secret, previous_secret_until, url) VALUES (0, 'test', 'whsec_QUFB', 'whsec_QUFC', now() + interval '1 day', 'https://shop.example/')`,
		`INSERT INTO pawl.webhook_endpoints (event_no, created_by, secret, url, state, disabled_at, disabled_reason) VALUES (0, 'test', 'whsec_QUFB', 'https://old.example/', 'disabled', now(), 'by test')`,
		`UPDATE pawl.event_relay SET owner = gen_random_uuid(), due_at = now() + interval '1 hour'`,
	} {
		ask(t, database.AdminURL, `WITH x AS (`+sql+` RETURNING 1) SELECT count(*)::text FROM x`)
	}
	const identity = `SELECT concat(i.id, ' ', encode(i.callback_secret, 'hex'), ' ', i.name) FROM pawl.installation AS i`
	const rest = `SELECT concat_ws(', ', (SELECT string_agg(concat_ws(' ', state, disabled_reason, secret = 'whsec_QUFB', previous_secret IS NULL), '; ' ORDER BY endpoint_no) FROM pawl.webhook_endpoints),
		(SELECT count(*) FROM pawl.tokens WHERE revoked_at IS NULL), (SELECT count(*) FROM pawl.sessions WHERE expires_at > now()), (SELECT count(*) FROM pawl.policies WHERE copied_from IS NULL),
		(SELECT count(*) FROM pawl.access_log WHERE event = 'database_adopted_as_copy' AND actor = 'ann'))`
	before, was := ask(t, database.AdminURL, identity), ask(t, database.AdminURL, rest)
	adoption := migrations.Adoption{AsCopy: true, Name: "staging", Actor: "ann"}
	assert.ErrorIs(t, migrations.Adopt(t.Context(), database.URL, adoption), migrations.ErrNotOwner, "the service adopts")
	var inUse *migrations.InUse
	err := migrations.Adopt(t.Context(), database.AdminURL, adoption)
	assert.True(t, errors.As(err, &inUse), "adopted while a service drives it", err)
	assert.Equal(t, ask(t, database.AdminURL, identity)+ask(t, database.AdminURL, rest), before+was, "has changed to")
	ask(t, database.AdminURL, `UPDATE pawl.event_relay SET due_at = now() RETURNING ''`)
	assert.NoError(t, migrations.Adopt(t.Context(), database.AdminURL, adoption))
	now := ask(t, database.AdminURL, identity)
	assert.True(t, now[:36] != before[:36] && now[37:101] != before[37:101] && now[101:] == " staging", before, "has become", now)
	assert.Equal(t, ask(t, database.AdminURL, rest), "disabled the database is a copy f t; disabled by test f t, 0, 0, 0, 1",
		was, "has become")
	if here := ask(t, database.AdminURL, `SELECT (i.system_identifier = c.system_identifier AND i.database_oid = d.oid)::text FROM pawl.installation AS i, pg_control_system() AS c, pg_database AS d
		WHERE d.datname = current_database()`); here != "true" {
		t.Error("it does not belong where it is")
	}
	for _, guarded := range []string{`UPDATE pawl.installation SET id = gen_random_uuid()`, `UPDATE pawl.policies SET created_by = 'x'`} {
		_, err := database.Pool.Exec(t.Context(), guarded)
		assert.Equal(t, denied(err), kept, guarded, err)
	}
}
