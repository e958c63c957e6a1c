package migrations_test

import (
	"errors"
	"testing"

	"pawl/db"
	"pawl/internal/pg"
	"pawl/migrations"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

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
		place, err := migrations.Settle(t.Context(), db.New(pool), name)
		if err != nil || place.Name != want || place.HomeSystem != place.System || place.System == 0 || place.HomeDatabase != place.Database || place.Database == 0 {
			t.Errorf("%+v, %v", place, err)
		}
		return place
	}
	first := settle("", "")
	if second := settle("prod", "prod"); !second.Same(first) || second.Stranger("") != "" || second.Stranger("staging") == "" {
		t.Errorf("%+v, before %+v", second, first)
	}
	settle("staging", "prod")
	ask(t, database.AdminURL, `UPDATE pawl.installation SET database_oid = 1 RETURNING ''`)
	if place, err := migrations.Settle(t.Context(), db.New(pool), ""); err != nil || place.HomeDatabase != 1 || place.Same(first) {
		t.Errorf("a service moves a database by itself: %+v, %v", place, err)
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
	if err := migrations.Adopt(t.Context(), database.AdminURL, adoption); !errors.As(err, &inUse) {
		t.Errorf("adopted while a service drives it: %v", err)
	}
	assert.Equal(t, ask(t, database.AdminURL, identity)+ask(t, database.AdminURL, rest), before+was, "has changed to")
	ask(t, database.AdminURL, `UPDATE pawl.event_relay SET due_at = now() RETURNING ''`)
	assert.NoError(t, migrations.Adopt(t.Context(), database.AdminURL, adoption))
	if now := ask(t, database.AdminURL, identity); now[:36] == before[:36] || now[37:101] == before[37:101] || now[101:] != " staging" {
		t.Errorf("%s has become %s", before, now)
	}
	if now := ask(t, database.AdminURL, rest); now != "disabled the database is a copy f t; disabled by test f t, 0, 0, 0, 1" {
		t.Errorf("%s has become %s", was, now)
	}
	if here := ask(t, database.AdminURL, `SELECT (i.system_identifier = c.system_identifier AND i.database_oid = d.oid)::text FROM pawl.installation AS i, pg_control_system() AS c, pg_database AS d
		WHERE d.datname = current_database()`); here != "true" {
		t.Error("it does not belong where it is")
	}
	for _, guarded := range []string{`UPDATE pawl.installation SET id = gen_random_uuid()`, `UPDATE pawl.policies SET created_by = 'x'`} {
		if _, err := database.Pool.Exec(t.Context(), guarded); denied(err) != kept {
			t.Errorf("%s: %v", guarded, err)
		}
	}
}
