package faults

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestReaderOfTheLog makes the role and the publication as docs/events.md prints them for Debezium, and follows PostgreSQL's
// log as that role: by a subscription of another database. A replica is killed meanwhile. Every row comes once, those of an
// order in order. A column that is withheld would stop the subscription, whose tables have no place for it.
func TestReaderOfTheLog(t *testing.T) {
	build(t)
	t.Parallel()
	server := startPostgres(t, "wal_level", "logical")
	if count(t, server.url, "SELECT current_setting('server_version_num')::bigint") < 150000 {
		t.Skip("NOT TESTED: before PostgreSQL 15, a publication has no list of columns")
	}
	r := startReplicas(t, 2, server.url, hasty...)
	reader := subscribe(t, server)
	stockUp(t, r.addresses()[0], scarce, 10)
	load := &traffic{url: r.any, callers: 16, seed: seed(t), order: smallOrders("log"), cuts: true}
	load.start(t)
	load.flows(100)
	r.all[0].kill()
	r.replace(0)
	load.flows(100)
	load.finish()
	settle(t, server.url, patience)
	for _, rows := range []string{
		"SELECT concat_ws(' ', order_no, order_id) FROM pawl.orders",
		"SELECT concat_ws(' ', order_no, seq) FROM pawl.transitions",
		"SELECT concat_ws(' ', item, version) FROM pawl.stock_movements",
	} {
		want := slices.Sorted(slices.Values(query[string](t, server.url, rows)))
		eventually(t, patience, "all rows have come: "+rows, func() bool { return len(query[string](t, reader, rows)) >= len(want) })
		if got := slices.Sorted(slices.Values(query[string](t, reader, rows))); !slices.Equal(got, want) {
			t.Errorf("%s: %d rows have come, %d are there", rows, len(got), len(want))
		}
	}
	for of, by := range map[string]string{"transitions": "order_no ORDER BY seq", "stock_movements": "item ORDER BY version"} {
		late := `SELECT count(*) FROM (SELECT came < lag(came) OVER (PARTITION BY ` + by + `) AS late FROM pawl.` + of + `) AS x WHERE x.late`
		if n := count(t, reader, late); n > 0 {
			t.Errorf("%d %s came before earlier ones", n, of)
		}
	}
}

// subscribe makes a database that follows another one of its server, as the documentation says: what is committed from now on
// comes to it.
func subscribe(t *testing.T, server *postgres) (url string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	printed := regexp.MustCompile("(?s)```sql\n(CREATE ROLE broker.*?)```").FindSubmatch(page)
	if printed == nil {
		t.Fatal("docs/events.md does not say how to make the role")
	}
	for _, name := range []string{
		`"slot.name": "broker"`, `"publication.name": "pawl_events"`, `"table.include.list": "pawl.orders,pawl.transitions,pawl.stock_movements"`,
	} {
		if !strings.Contains(string(page), name) {
			t.Errorf("docs/events.md: the configuration of Debezium does not say %s", name)
		}
	}
	change(t, server.url, string(printed[1]))
	config, err := pgx.ParseConfig(server.url)
	if err != nil {
		t.Fatal(err)
	}
	broker := fmt.Sprintf("host='%s' port=%d dbname=postgres user=broker password=change-me", config.Host, config.Port)
	conn, err := pgx.Connect(t.Context(), broker)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "SELECT pg_create_logical_replication_slot('broker', 'pgoutput')"); err != nil {
		t.Fatal(err)
	}
	change(t, server.url, "CREATE DATABASE reader")
	url = server.server.URL("reader")
	change(t, url, `CREATE SCHEMA pawl;
		CREATE TABLE pawl.orders (came bigserial, order_no bigint, order_id text, created_at text, amount text, currency text,
			item text, quantity text);
		CREATE TABLE pawl.transitions (came bigserial, order_no bigint, seq int, at text, from_status text, to_status text,
			verb text, actor text, on_behalf_of text, reason text);
		CREATE TABLE pawl.stock_movements (came bigserial, item text, version int, at text, kind text, change text,
			on_hand text, actor text, on_behalf_of text, reason text)`)
	change(t, url, `CREATE SUBSCRIPTION reader CONNECTION '`+strings.ReplaceAll(broker, "'", "''")+`' PUBLICATION pawl_events
		WITH (slot_name = 'broker', create_slot = false, copy_data = false)`)
	return url
}
