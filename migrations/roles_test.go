package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"pawl/db"
	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/access"
	"pawl/internal/books"
	"pawl/internal/pg"
	"pawl/migrations"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// shopRoles are the roles of a database, with a few rows in its books.
type shopRoles struct {
	*dbtest.Database
	prefix string
}

// makeRoles makes roles of the test's own.
func makeRoles(t *testing.T) *shopRoles {
	t.Helper()
	r := &shopRoles{Database: dbtest.New(t)}
	r.prefix = "r" + strings.TrimPrefix(r.Pool.Config().ConnConfig.Database, "pawl_test_") // roles belong to the whole server
	assert.NoError(t, migrations.Roles(t.Context(), r.AdminURL, r.prefix))
	t.Cleanup(func() {
		for _, sql := range []string{"DROP OWNED BY %s_owner, %[1]s_serve, %[1]s_read CASCADE", "DROP ROLE %s_owner, %[1]s_serve, %[1]s_read"} {
			assert.Succeeds(t, assert.Err(r.Pool.Exec(context.WithoutCancel(t.Context()), fmt.Sprintf(sql, r.prefix))))
		}
	})
	tx, err := r.Pool.Begin(t.Context())
	assert.NoError(t, err)
	c := &client{t, tx}
	c.plantSold()
	c.do(`UPDATE orders SET payment_method = NULL, customer_id = customer_id`)
	assert.NoError(t, tx.Commit(t.Context()))
	return r
}

func (r *shopRoles) urlAs(role string) string {
	return strings.Replace(r.AdminURL, "options=", "options=-crole%3D"+r.prefix+"_"+role+"%09", 1)
}

// as connects with one of the roles.
func (r *shopRoles) as(t *testing.T, role string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), r.urlAs(role))
	assert.NoError(t, err)
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// denied is the SQLSTATE of an error, or nothing.
func denied(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

const (
	noRight = "42501" // insufficient_privilege
	kept    = "55000" // object_not_in_prerequisite_state, by the triggers that keep history
)

// TestRolesAreDenied tries what each role must not do, as that role.
func TestRolesAreDenied(t *testing.T) {
	t.Parallel()
	r := makeRoles(t)
	if _, err := r.Pool.Exec(t.Context(), `REVOKE CREATE ON SCHEMA public FROM PUBLIC`); err != nil { // PostgreSQL 14 grants it
		t.Fatal(err)
	}
	for role, tries := range map[string]map[string]string{
		"serve": {
			`CREATE TABLE pawl.more ()`: noRight, `CREATE TABLE public.more ()`: noRight, `CREATE SCHEMA more`: noRight,
			`ALTER TABLE pawl.orders ADD COLUMN tip numeric`: noRight, `ALTER TABLE pawl.orders DISABLE TRIGGER orders_guard`: noRight,
			`DROP TABLE pawl.charges`: noRight, `TRUNCATE pawl.orders`: noRight, `DROP TRIGGER kept ON pawl.transitions`: noRight,
			`SET session_replication_role = replica`: noRight, `CREATE OR REPLACE FUNCTION pawl.guard_order() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`: noRight,
			`UPDATE pawl.transitions SET actor = 'somebody else'`: noRight, `DELETE FROM pawl.transitions`: noRight,
			`UPDATE pawl.stock_movements SET change = 1`: noRight, `DELETE FROM pawl.stock_movements`: noRight,
			`INSERT INTO pawl.transitions (order_no, seq, to_status, fence, at) VALUES (1, 1, 'charging', 1, '2020-01-01')`:                                           noRight,
			`INSERT INTO pawl.stock_movements (item, version, kind, change, on_hand, sold, actor, request_id, position) VALUES ('x', 1, 'set', 1, 1, 0, 'x', 'x', 1)`: noRight,
			`UPDATE pawl.access_log SET actor = 'x'`: noRight, `DELETE FROM pawl.access_log`: noRight,
			`DELETE FROM pawl.orders`: noRight, `DELETE FROM pawl.charges`: noRight, `DELETE FROM pawl.charge_operations`: noRight,
			`DELETE FROM pawl.reservations`: noRight, `DELETE FROM pawl.confirmations`: noRight, `DELETE FROM pawl.step_calls`: noRight,
			`UPDATE pawl.erasures SET orders = 1`: noRight, `SELECT pawl.erase_orders('{}', '', '', '', NULL)`: noRight,
			`UPDATE pawl.forgotten_batches SET id_hashes = '{}'`: noRight, `UPDATE pawl.forgotten_sums SET orders = 0`: noRight,
			`INSERT INTO pawl.forgotten_batches (archive, order_nos) VALUES (false, '{}')`: noRight, `UPDATE pawl.confirmations SET generation = 1`: noRight,
			`UPDATE pawl.installation SET callback_secret = ''`: noRight, `UPDATE pawl.policies SET source = ''`: noRight,
			`UPDATE pawl.policy_activations SET actor = 'x'`: noRight, `DELETE FROM pawl.policies`: noRight,
			`INSERT INTO pawl.tokens (id, name, sha256, roles, created_by, expires_at) VALUES ('0123456789', 'mine', sha256(''), '{admin}', 'me', now())`: noRight,
			`UPDATE pawl.tokens SET roles = '{admin}'`: noRight, `UPDATE pawl.tokens SET used_at = now()`: noRight, `DELETE FROM public.goose_db_version`: noRight,
			`SELECT FROM pawl.tokens FOR UPDATE`: noRight, `UPDATE pawl.tokens SET revoked_at = NULL`: noRight, `UPDATE pawl.tokens SET sha256 = sha256('')`: noRight,
			`UPDATE pawl.sessions SET sha256 = sha256('')`: noRight, `UPDATE pawl.sessions SET token_id = ''`: noRight, `UPDATE pawl.sessions SET opened_at = now()`: noRight,
			`UPDATE pawl.sessions SET expires_at = 'infinity'`: noRight, `SELECT FROM pawl.sessions FOR UPDATE`: noRight, `DELETE FROM pawl.sessions`: noRight,
			`INSERT INTO pawl.sessions (sha256, token_id, opened_at, expires_at) SELECT sha256(''), t.id, now(), now() FROM pawl.tokens AS t`: noRight,
			`INSERT INTO pawl.access_log (at, event, actor) VALUES ('2020-01-01', 'token_created', 'maria')`:                                  noRight,
			`INSERT INTO pawl.access_log (entry_no, event, actor) OVERRIDING SYSTEM VALUE VALUES (1, 'token_created', 'maria')`:               noRight,
			`UPDATE pawl.orders SET submitted_by = 'token:maria'`:                                                                             noRight, `UPDATE pawl.orders SET customer_id = 'maria'`: noRight, `UPDATE pawl.orders SET amount = 0`: noRight,
			`UPDATE pawl.orders SET order_id = 'x'`: noRight, `UPDATE pawl.orders SET metadata = '{}'`: noRight, `UPDATE pawl.charges SET amount = 0`: noRight,
			`UPDATE pawl.charges SET currency = 'USD'`: noRight, `UPDATE pawl.charges SET executor = NULL`: noRight, `UPDATE pawl.charges SET reference = ''`: noRight,
			`UPDATE pawl.charge_operations SET amount = 0`: noRight, `UPDATE pawl.reservations SET quantity = 1`: noRight, `UPDATE pawl.inventory SET item = 'x'`: noRight,
			`UPDATE pawl.step_calls SET started_at = now()`: noRight, `UPDATE pawl.idempotency_keys SET principal = 'token:maria'`: noRight,
			`UPDATE pawl.idempotency_keys SET fingerprint = ''`: noRight, `UPDATE pawl.webhook_endpoints SET created_by = 'token:maria'`: noRight,
			`UPDATE pawl.webhook_deliveries SET body = ''`: noRight, `UPDATE pawl.webhook_changes SET actor = 'token:maria'`: noRight,
			`DO $$ BEGIN LOCK TABLE pawl.tokens; END $$`: noRight, `DO $$ BEGIN LOCK TABLE pawl.sessions; END $$`: noRight, `DO $$ BEGIN LOCK TABLE pawl.orders; END $$`: noRight,
			`CREATE FUNCTION pawl.sha256(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT $1'`: noRight, `ALTER FUNCTION pawl.end_session(bytea, inet) SECURITY INVOKER`: noRight,
		},
		"read": {
			`SELECT FROM pawl.orders`: noRight, `SELECT payment_method FROM pawl.orders`: noRight, `SELECT callback_secret FROM pawl.installation`: noRight,
			`SELECT FROM pawl.tokens`: noRight, `SELECT secret FROM pawl.webhook_endpoints`: noRight, `SELECT payment_method FROM pawl.transitions`: noRight, `SELECT source FROM pawl.policies`: noRight,
			`UPDATE books.orders SET status = 'failed'`: noRight, `INSERT INTO books.inventory (item) VALUES ('x')`: noRight, `CREATE TABLE books.more ()`: noRight,
		},
		"owner": { // owns the tables, and still writes no history anew
			`UPDATE pawl.transitions SET actor = 'somebody else'`: kept, `DELETE FROM pawl.transitions`: kept, `TRUNCATE pawl.transitions`: kept,
			`DELETE FROM pawl.erasures`: kept, `DELETE FROM pawl.forgotten_sums`: kept, `DELETE FROM pawl.forgotten_batches`: kept,
			`UPDATE pawl.stock_movements SET change = 1`: kept, `DELETE FROM pawl.stock_movements`: kept,
			`UPDATE pawl.access_log SET actor = 'x'`: kept, `DELETE FROM pawl.access_log`: kept, `DELETE FROM pawl.orders`: kept,
			`DELETE FROM pawl.charges`: kept, `DELETE FROM pawl.charge_operations`: kept, `DELETE FROM pawl.reservations`: kept, `DELETE FROM pawl.confirmations`: kept,
			`DELETE FROM pawl.step_calls`: kept, `DELETE FROM pawl.step_answers`: kept, `DELETE FROM pawl.late_undos`: kept, `DELETE FROM pawl.tokens`: kept,
			`UPDATE pawl.policies SET source = ''`: kept, `UPDATE pawl.installation SET id = gen_random_uuid()`: kept,
		},
	} {
		conn := r.as(t, role)
		for sql, want := range tries {
			_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
			assert.Equal(t, denied(err), want, role, "sends", sql, err)
		}
	}
}

// TestServiceBecomesNobody: whoever is in the service has its role, and reads every hash. It opens no session with them, and makes
// none last longer.
func TestServiceBecomesNobody(t *testing.T) {
	t.Parallel()
	r := makeRoles(t)
	query := db.New(r.Pool) // of the owner, who makes tokens and links
	if _, err := access.Create(t.Context(), query, access.Template{Name: "maria", Roles: access.AllRoles, Lifetime: time.Hour, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	conn := r.as(t, "serve")
	pool := dbtest.Open(t, r.urlAs("serve"), pg.Options{MaxConns: 4})
	assert.NoError(t, engine.CheckSchema(t.Context(), pool, migrations.Version()), "the service does not start:")
	control, err := access.New(t.Context(), db.New(pool), access.Config{})
	assert.NoError(t, err)
	defer control.Stop()
	link, _, err := access.MakeLink(t.Context(), query, "maria", "test")
	assert.NoError(t, err)
	stolen := func(what, sql string) {
		t.Helper()
		var opened int
		err := conn.QueryRow(t.Context(), sql).Scan(&opened)
		assert.True(t, err == nil && opened == 0, what, "opens", opened, "sessions", err)
	}
	const chosen = `, sha256('mine'), '', NULL)`
	stolen("the hash of a link", `SELECT count(*) FROM pawl.sessions AS s, pawl.open_session(s.sha256`+chosen)
	stolen("the hash of a token", `SELECT count(*) FROM pawl.tokens AS t, pawl.open_session(t.sha256`+chosen)
	session, err := control.OpenSession(t.Context(), link, "", netip.MustParseAddr("192.0.2.1"))
	if err != nil || session.Name != "token:maria" || time.Until(session.ExpiresAt) > time.Hour {
		t.Fatal(session, err) // it ends with its token
	}
	stolen("the hash of a cookie", `SELECT count(*) FROM pawl.sessions AS s, pawl.open_session(s.sha256`+chosen)
	assert.ErrorIs(t, assert.Err(control.OpenSession(t.Context(), link, "", netip.Addr{})), access.ErrLink, "a link that was opened")
	by := access.Request{Session: session.Cookie}
	if p, err := control.Identify(t.Context(), by); err != nil || p.Name != session.Name {
		t.Error(p, err)
	}
	assert.NoError(t, control.EndSession(t.Context(), session.Cookie, netip.Addr{}))
	if p, err := control.Identify(t.Context(), by); err == nil {
		t.Error("the session goes on as", p.Name)
	}
	want := "link_made test - maria, session_opened token:maria 192.0.2.1 maria, session_ended token:maria - maria"
	got := ask(t, r.URL, `SELECT string_agg(concat_ws(' ', event, actor, coalesce(host(address), '-'), subject), ', ' ORDER BY entry_no) FROM access_log WHERE event <> 'token_created'`)
	assert.Equal(t, got, want, "the access log")
}

// TestInventedEntries: the service's role writes into the access log what was never done, and a proof of the books finds it.
func TestInventedEntries(t *testing.T) {
	t.Parallel()
	r := makeRoles(t)
	query := db.New(r.Pool)
	control, err := access.New(t.Context(), query, access.Config{})
	assert.NoError(t, err)
	defer control.Stop()
	must := func(err error) {
		t.Helper()
		assert.NoError(t, err)
	}
	maria := access.Template{Name: "maria", Roles: access.AllRoles, Lifetime: time.Hour, Actor: "test"}
	_, err = access.Create(t.Context(), query, maria)
	must(err)
	link, _, err := access.MakeLink(t.Context(), query, "maria", "test")
	must(err)
	session, err := control.OpenSession(t.Context(), link, "", netip.Addr{})
	must(err)
	must(control.EndSession(t.Context(), session.Cookie, netip.Addr{}))
	rotated, err := access.Rotate(t.Context(), query, maria, time.Hour)
	must(err)
	_, err = access.Revoke(t.Context(), query, rotated.ID, "test")
	must(err)
	wantInvented := func(want int64) {
		t.Helper()
		report, err := books.Verify(t.Context(), r.Pool, books.Options{})
		must(err)
		log := report.Checks[slices.IndexFunc(report.Checks, func(c books.VerificationCheck) bool { return c.Name == "access_log" })]
		assert.True(t, log.Checked == 6+want && log.Violations == want,
			"of", log.Checked, "entries", log.Violations, "are invented, want", want, log.Offenders)
	}
	wantInvented(0) // one of each kind
	_, err = r.as(t, "serve").Exec(t.Context(), `INSERT INTO pawl.access_log (event, actor, subject, detail)
		SELECT l.event, l.actor, l.subject, l.detail FROM pawl.access_log AS l`)
	must(err)
	wantInvented(6)
}

// TestReadersSeeTheBooks: all views, in which nothing is withheld by accident, and no column of what is secret.
func TestReadersSeeTheBooks(t *testing.T) {
	t.Parallel()
	r := makeRoles(t)
	conn := r.as(t, "read")
	rows, err := conn.Query(t.Context(), `SELECT viewname::text FROM pg_views WHERE schemaname = 'books'`)
	assert.NoError(t, err)
	views, err := pgx.CollectRows(rows, pgx.RowTo[string])
	assert.Require(t, err == nil && len(views) >= 8, views, err)
	for _, view := range views {
		var all string
		assert.NoError(t, conn.QueryRow(t.Context(), `SELECT coalesce(jsonb_agg(v), '[]')::text FROM books.`+view+` AS v`).Scan(&all),
			view)
	}
	var status string
	if err := conn.QueryRow(t.Context(), `SELECT status FROM books.orders WHERE order_id = 'planted'`).Scan(&status); err != nil || status != string(fsm.Completed) {
		t.Error(status, err)
	}
}

// ownersStatements are what the service does not send: who makes tokens is the owner.
var ownersStatements = []string{"TokenCreate", "TokenRotate", "TokensRevoke", "SessionLink"}

// TestServiceMaySendItsStatements has the server plan every statement of queries/ as the role of the service, which looks at
// its privileges. What it lacks is to be granted in roles/roles.sql, unless it is for the owner.
func TestServiceMaySendItsStatements(t *testing.T) {
	t.Parallel()
	r := makeRoles(t)
	conn := r.as(t, "serve")
	files, err := filepath.Glob("../db/*.sql.go")
	assert.Require(t, err == nil && len(files) >= 10, files, err)
	seen := 0
	dbtest.Generated(t, files, func(name, sql string) {
		seen++
		_, err := dbtest.Explain(t.Context(), conn, name, sql)
		owners := slices.Contains(ownersStatements, name)
		assert.True(t, owners == (denied(err) == noRight) && (err == nil || owners), name, err)
	})
	assert.True(t, seen >= 100, seen, "statements")
}

// TestRolesOfAnOrdinaryOwner: nobody has to be a superuser, and again after a migration changes nothing but what it added.
func TestRolesOfAnOrdinaryOwner(t *testing.T) {
	t.Parallel()
	empty := dbtest.Empty(t)
	prefix := "ordinary" + regexp.MustCompile(`test_(\w+)`).FindStringSubmatch(empty)[1]
	ordinaryOwner(t, empty, prefix)
	as := func(role string) string { return empty + "&options=-crole%3D" + prefix + role }
	up(t, as("_admin"))
	for range 2 {
		assert.NoError(t, migrations.Roles(t.Context(), as("_admin"), prefix))
	}
	owned := `SELECT count(*)::text FROM pg_class WHERE relnamespace IN ('pawl'::regnamespace, 'books'::regnamespace) AND relowner <> '` + prefix + `_owner'::regrole`
	assert.Equal(t, ask(t, empty, owned), "0", "tables belong to others")
	up(t, as("_serve")) // nothing is pending: a service starts
	assert.Equal(t, applied(t, as("_serve")), len(names(t)), "the service sees migrations")
	assert.ErrorIs(t, migrations.Down(t.Context(), as("_serve"), func(migrations.Rollback) error { return nil }), migrations.ErrNotOwner,
		"the service takes a migration back")
	down(t, as("_owner"))
	assert.ErrorIs(t, assert.Err(migrations.Up(t.Context(), as("_serve"))), migrations.ErrNotOwner, "the service migrates")
	ready := func() error {
		t.Helper()
		pool, err := pg.Open(t.Context(), as("_serve"), pg.Options{MaxConns: 1})
		assert.NoError(t, err)
		defer pool.Close()
		return engine.CheckSchema(t.Context(), pool, migrations.Version())
	}
	serves := func(what string) {
		t.Helper()
		assert.Succeeds(t, ready(), what)
		assert.Equal(t, ask(t, empty, owned), "0", what, "tables belong to others")
	}
	up(t, as("_owner"))
	serves("the newest migration was taken back and applied again")
	for range names(t) {
		down(t, as("_owner"))
	}
	up(t, as("_owner"))
	serves("all were")
	stockGoose(t, as("_owner"))
	if err := ready(); !errors.Is(err, engine.ErrNotMigrated) || !strings.Contains(err.Error(), "not there, or not granted: ") ||
		!strings.Contains(err.Error(), "SELECT on pawl.sessions, ") || !strings.HasSuffix(err.Error(), ": as its owner, run pawl migrate up") {
		t.Errorf("after goose the service says %v", err)
	}
	var starts sync.WaitGroup // of replicas, at one moment
	for range 4 {
		starts.Go(func() {
			assert.Succeeds(t, assert.Err(migrations.Up(t.Context(), as("_owner"))))
		})
	}
	starts.Wait()
	serves("goose did")
}

// ordinaryOwner has the database belong to a role that may make roles and is no superuser.
func ordinaryOwner(t *testing.T, empty, prefix string) {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), empty)
	assert.NoError(t, err)
	exec := func(sql string) {
		t.Helper()
		assert.NoError(t, assert.Err(admin.Exec(context.WithoutCancel(t.Context()), strings.ReplaceAll(sql, "PREFIX", prefix))), sql)
	}
	exec(`CREATE ROLE PREFIX_admin CREATEROLE`)
	exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I OWNER TO PREFIX_admin', current_database()); END $$`)
	t.Cleanup(func() {
		exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I OWNER TO %I', current_database(), session_user); END $$`)
		exec(`DROP OWNED BY PREFIX_owner, PREFIX_serve, PREFIX_read, PREFIX_admin CASCADE`)
		exec(`DROP ROLE PREFIX_owner, PREFIX_serve, PREFIX_read, PREFIX_admin`)
		admin.Close(context.WithoutCancel(t.Context()))
	})
}

// stockGoose takes the four newest migrations back, with the tables of sessions, and applies them again with goose
// itself.
func stockGoose(t *testing.T, url string) {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	assert.NoError(t, err)
	conn := stdlib.OpenDB(*config)
	defer conn.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, conn, os.DirFS("."))
	if err == nil {
		_, err = provider.DownTo(t.Context(), migrations.Version()-4)
	}
	if err == nil {
		_, err = provider.Up(t.Context())
	}
	assert.NoError(t, err)
}

func TestRolesSQL(t *testing.T) {
	t.Parallel()
	text, err := migrations.RolesSQL("shop")
	assert.True(t, err == nil && !strings.Contains(text, "pawl_") && strings.Count(text, "shop_serve") >= 5, text, err)
	for _, prefix := range []string{"", "Shop", "shop; DROP TABLE x", "1shop", strings.Repeat("x", 41)} {
		assert.ErrorIs(t, assert.Err(migrations.RolesSQL(prefix)), migrations.ErrPrefix, prefix)
	}
}
