package faults

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pawl/internal/pgembed"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// postgres is a server of one test. It keeps what it commits (fsync is on): that is what the test is about.
type postgres struct {
	t        testing.TB
	dir      string
	bin      string // the folder of its programs; empty: the one that is installed
	settings map[string]string
	url      string
	server   *pgembed.Server
}

// startPostgres starts a server. Settings are names and values in turn.
func startPostgres(t testing.TB, settings ...string) *postgres {
	t.Helper()
	return startPostgresFrom(t, "", settings...)
}

func startPostgresFrom(t testing.TB, bin string, settings ...string) *postgres {
	t.Helper()
	s := &postgres{t: t, dir: dbtest.Folder(t), bin: bin, settings: map[string]string{}}
	for pair := range slices.Chunk(settings, 2) {
		s.settings[pair[0]] = pair[1]
	}
	s.start()
	t.Cleanup(func() {
		s.signal(syscall.SIGCONT) // a stopped process hears nothing else
		assert.Succeeds(t, s.server.Stop(context.WithoutCancel(t.Context())))
	})
	s.url = s.server.URL("postgres")
	return s
}

// start starts the server, after its end as well, and returns when it answers. Processes that were killed may still be
// on their way out: then it is tried again.
func (s *postgres) start() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), startLimit)
	defer cancel()
	eventually(s.t, startLimit, "PostgreSQL starts", func() bool {
		server, err := pgembed.Start(ctx, pgembed.Config{Dir: s.dir, BinDir: s.bin, Settings: s.settings})
		if err != nil {
			s.t.Log(err)
		}
		s.server = server
		return err == nil
	})
}

// ended waits for the end of the server, and gives its folder free.
func (s *postgres) ended() {
	s.t.Helper()
	select {
	case <-s.server.Exited():
	case <-time.After(endLimit):
		s.t.Fatal("PostgreSQL does not end")
	}
	assert.Succeeds(s.t, s.server.Stop(s.t.Context()))
}

// kill ends all processes of the server at once, as the loss of its machine does.
func (s *postgres) kill() {
	s.t.Helper()
	s.all(syscall.SIGKILL)
	s.ended()
}

// immediate is pg_ctl stop -m immediate: no checkpoint, no goodbye.
func (s *postgres) immediate() {
	s.t.Helper()
	s.signal(syscall.SIGQUIT)
	s.ended()
}

// signal sends a signal to the first process of the server.
func (s *postgres) signal(sig syscall.Signal) { _ = syscall.Kill(s.server.PID(), sig) }

// all sends a signal to all processes of the server, also to those that have just begun and that it does not list itself
// yet: one that is forgotten waits for ever for a lock of those that were killed, and no server starts beside it. The first
// process is stopped before one looks, so that none is added.
func (s *postgres) all(sig syscall.Signal) (pids []int) {
	s.t.Helper()
	first := strconv.Itoa(s.server.PID())
	s.signal(syscall.SIGSTOP)
	eventually(s.t, patience, "the server is stopped", func() bool { return strings.HasPrefix(s.ps("-o", "stat=", "-p", first), "T") })
	for line := range strings.Lines(s.ps("-A", "-o", "ppid=,pid=")) {
		if ids := strings.Fields(line); ids[0] == first {
			pid, err := strconv.Atoi(ids[1])
			assert.NoError(s.t, err)
			pids = append(pids, pid)
		}
	}
	pids = append(pids, s.server.PID())
	send(sig, pids)
	return pids
}

func (s *postgres) ps(arguments ...string) string {
	s.t.Helper()
	said, err := exec.CommandContext(s.t.Context(), "ps", arguments...).Output()
	assert.NoError(s.t, err, "ps", arguments)
	return string(said)
}

func send(sig syscall.Signal, pids []int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
}

// TestStartOnBrokenConnections breaks the first connections of a start: three at once, and the others each after twice
// as many bytes as the one before. So the start is broken at every step, and repeats what was lost.
func TestStartOnBrokenConnections(t *testing.T) {
	build(t)
	t.Parallel()
	for name, database := range map[string]string{"an empty database": dbtest.Empty(t), "a migrated one": dbtest.New(t).URL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const broken = 16
			var made atomic.Int64
			proxy := dbtest.NewProxy(t, database)
			proxy.OnConnect(func() int64 {
				switch n := made.Add(1); {
				case n <= 3:
					return 0
				case n <= broken:
					return 64 << (n - 4)
				default:
					return dbtest.Unlimited
				}
			})
			p := launch(t, nil, "serve", "--database-url", proxy.URL, "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss", "--max-conns", "4")
			address := p.url()
			n := made.Load()
			assert.True(t, n > broken/2, n, "connections were made")
			c := newClient(1, false)
			a := c.insist(t.Context(), address, order{id: "one", amount: "1.00", item: "widget"})
			assert.Equal(t, a.state(), "completed", a)
			eventually(t, patience, "GET /health is 200", func() bool { return c.get(t.Context(), address+"/health").code == http.StatusOK })
			t.Logf("%d connections were made\n%s", made.Load(), p.stderr())
			p.terminate()
		})
	}
}

// TestSchemaOfAnotherProgram starts the program on a database that it can't work on. It ends with a sentence, and not with
// a code that has a supervisor wait for the database.
func TestSchemaOfAnotherProgram(t *testing.T) {
	build(t)
	t.Parallel()
	database := dbtest.New(t)
	query[string](t, database.AdminURL, `ALTER TABLE late_undos RENAME COLUMN claims TO claimed`)
	code, said := run(t, "serve", "--database-url", database.URL, "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss")
	assert.True(t, code == 1 && strings.Contains(said, "LateUndo") && !strings.Contains(said, "pawl serves"),
		"ends with", code, "and says", said)
}

// TestNoSchema is about databases without a schema of Pawl's, as there are in the first minute, and after an accident:
// every command says what there is instead and what to do about it.
func TestNoSchema(t *testing.T) {
	build(t)
	t.Parallel()
	const (
		goose     = `CREATE TABLE public.goose_db_version (id serial PRIMARY KEY, version_id bigint NOT NULL, is_applied boolean NOT NULL, tstamp timestamp DEFAULT now())`
		elsewhere = "give Pawl a database of its own: createdb NAME, and set --database-url to it"
	)
	serves := []string{"serve", "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss"}
	reads := [][]string{{"verify"}, {"token", "list"}, {"migrate", "roles", "--prefix", "other"}}
	writes := [][]string{serves, {"migrate", "up"}, {"doctor"}}
	all := append(reads, writes...)
	for _, c := range []struct {
		name     string
		migrated bool
		spoil    string
		commands [][]string
		says     []string
	}{
		{"an empty database", false, `SELECT 1`, reads, []string{"schema pawl is missing: run pawl migrate up"}},
		{"a schema of the same name", false, `CREATE SCHEMA pawl; CREATE TABLE pawl.orders (id int)`, all, []string{"the database has a schema pawl that Pawl did not create", elsewhere}},
		{"first migrations of another program", false, goose + `; INSERT INTO public.goose_db_version (version_id, is_applied) VALUES (0, true), (1, true)`, all,
			[]string{"schema pawl is missing, although", elsewhere}},
		{"later migrations of another program", false, goose + `; INSERT INTO public.goose_db_version (version_id, is_applied) VALUES (0, true), (20260101120000, true)`, all,
			[]string{"schema pawl is missing, although", elsewhere}},
		{"a table of the same name as goose's", false, `CREATE TABLE public.goose_db_version (id int)`, all, []string{"public.goose_db_version belongs to another program", elsewhere}},
		{"a schema that was dropped", true, `DROP SCHEMA pawl CASCADE`, all, []string{"schema pawl is missing, although", "DROP TABLE public.goose_db_version, and run pawl migrate up"}},
		{"migrations of an earlier development version", true, `CREATE TABLE pawl.migration_checksums ()`, writes,
			[]string{"schema pawl is that of an earlier development version", "createdb NAME"}},
		{"migrations without a record", true, `DROP TABLE public.goose_db_version`, writes, []string{"not public.goose_db_version", "restore it from the backup"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			database := dbtest.Empty(t)
			if c.migrated {
				code, said := run(t, "migrate", "up", "--database-url", database)
				assert.Require(t, code == 0, said)
			}
			change(t, database, c.spoil)
			for _, command := range c.commands {
				code, said := run(t, append(command, "--database-url", database)...)
				for _, words := range c.says {
					assert.Contains(t, said, words, command[0], "ends with", code, "and says")
				}
				assert.True(t, code != 0 && !strings.Contains(said, "pawl serves"), command[0], "ends with", code, "and says", said)
			}
		})
	}
}

// change runs statements that return nothing.
func change(t *testing.T, databaseURL, statements string) {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), databaseURL)
	assert.NoError(t, err)
	defer conn.Close(t.Context())
	assert.NoError(t, assert.Err(conn.Exec(t.Context(), statements).ReadAll()))
}

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
		got := slices.Sorted(slices.Values(query[string](t, reader, rows)))
		assert.True(t, slices.Equal(got, want), rows, len(got), "rows have come", len(want), "are there")
	}
	for of, by := range map[string]string{"transitions": "order_no ORDER BY seq", "stock_movements": "item ORDER BY version"} {
		late := `SELECT count(*) FROM (SELECT came < lag(came) OVER (PARTITION BY ` + by + `) AS late FROM pawl.` + of + `) AS x WHERE x.late`
		n := count(t, reader, late)
		assert.True(t, n == 0, n, of, "came before earlier ones")
	}
}

// subscribe makes a database that follows another one of its server, as the documentation says: what is committed from
// now on comes to it.
func subscribe(t *testing.T, server *postgres) (url string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/events.md")
	assert.NoError(t, err)
	printed := regexp.MustCompile("(?s)```sql\n(CREATE ROLE broker.*?)```").FindSubmatch(page)
	assert.Require(t, printed != nil, "docs/events.md does not say how to make the role")
	for _, name := range []string{
		`"slot.name": "broker"`, `"publication.name": "pawl_events"`, `"table.include.list": "pawl.orders,pawl.transitions,pawl.stock_movements"`,
	} {
		assert.Contains(t, string(page), name, "docs/events.md: the configuration of Debezium does not say")
	}
	change(t, server.url, string(printed[1]))
	config, err := pgx.ParseConfig(server.url)
	assert.NoError(t, err)
	broker := fmt.Sprintf("host='%s' port=%d dbname=postgres user=broker password=change-me", config.Host, config.Port)
	conn, err := pgx.Connect(t.Context(), broker)
	assert.NoError(t, err)
	defer conn.Close(t.Context())
	assert.NoError(t, assert.Err(conn.Exec(t.Context(), "SELECT pg_create_logical_replication_slot('broker', 'pgoutput')")))
	change(t, server.url, "CREATE DATABASE reader")
	url = server.server.URL("reader")
	change(t, url, `CREATE SCHEMA pawl;
		CREATE TABLE pawl.orders (came bigserial, order_no bigint, order_id text, created_at text, amount text, currency text,
			item text, quantity text, lines text);
		CREATE TABLE pawl.transitions (came bigserial, order_no bigint, seq int, at text, from_status text, to_status text,
			verb text, actor text, on_behalf_of text, reason text);
		CREATE TABLE pawl.stock_movements (came bigserial, item text, version int, at text, kind text, change text,
			on_hand text, actor text, on_behalf_of text, reason text)`)
	change(t, url, `CREATE SUBSCRIPTION reader CONNECTION '`+strings.ReplaceAll(broker, "'", "''")+`' PUBLICATION pawl_events
		WITH (slot_name = 'broker', create_slot = false, copy_data = false)`)
	return url
}
