package faults

import (
	"bytes"
	"encoding/binary"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestReaderOfTheLog makes the role and the publication as docs/events.md prints them for Debezium, and reads the rows
// from PostgreSQL's log with pgoutput as that role. A replica is killed meanwhile. Every row comes once, those of an order
// in order, and without a column that is withheld. That a slot resumes at a confirmed position is PostgreSQL's promise.
func TestReaderOfTheLog(t *testing.T) {
	build(t)
	t.Parallel()
	server := startPostgres(t, "wal_level", "logical")
	if count(t, server.url, "SELECT current_setting('server_version_num')::bigint") < 150000 {
		t.Skip("NOT TESTED: before PostgreSQL 15, a publication has no list of columns")
	}
	r := startReplicas(t, 2, server.url, hasty...)
	reader := newLogReader(t, server.url)
	stockUp(t, r.addresses()[0], scarce, 10)
	load := &traffic{url: r.any, callers: 16, seed: seed(t), order: smallOrders("log"), cuts: true}
	load.start(t)
	load.flows(100)
	r.all[0].kill()
	reader.read()
	r.replace(0)
	load.flows(100)
	load.finish()
	settle(t, server.url, patience)
	for table, key := range map[string][]string{
		"orders": {"order_no", "order_id"}, "transitions": {"order_no", "seq"}, "stock_movements": {"item", "version"},
	} {
		want := query[string](t, server.url, "SELECT concat_ws(' ', "+strings.Join(key, ", ")+") FROM pawl."+table)
		eventually(t, patience, "all rows are in the log", func() bool { reader.read(); return len(reader.rows[table]) >= len(want) })
		reader.proves(table, key, want)
	}
}

// logReader reads a slot whose rows pgoutput encodes (PostgreSQL manual, 55.9 Logical Replication Message Formats).
type logReader struct {
	t      *testing.T
	conn   *pgx.Conn
	tables map[uint32]logTable
	rows   map[string][]map[string]string // by table
}

type logTable struct {
	name    string
	columns []string
}

// newLogReader prepares the server as the documentation says, and makes the slot: what is committed from now on is read.
func newLogReader(t *testing.T, url string) *logReader {
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
	change(t, url, string(printed[1]))
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.User, config.Password = "broker", "change-me"
	r := &logReader{t: t, tables: map[uint32]logTable{}, rows: map[string][]map[string]string{}}
	if r.conn, err = pgx.ConnectConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.conn.PgConn().Conn().Close() })
	if _, err := r.conn.Exec(t.Context(), "SELECT pg_create_logical_replication_slot('broker', 'pgoutput')"); err != nil {
		t.Fatal(err)
	}
	return r
}

// read takes what has come to the slot since the last time.
func (r *logReader) read() {
	r.t.Helper()
	rows, _ := r.conn.Query(r.t.Context(), // CollectRows returns its error
		`SELECT data FROM pg_logical_slot_get_binary_changes('broker', NULL, NULL, 'proto_version', '1', 'publication_names', 'pawl_events')`)
	messages, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		r.t.Fatal(err)
	}
	for _, message := range messages {
		r.decode(&logText{message})
	}
}

func (r *logReader) decode(text *logText) {
	switch text.take(1)[0] {
	case 'R':
		id := text.uint32()
		text.word() // the schema
		table := logTable{name: text.word()}
		text.take(1) // its replica identity
		for range text.uint16() {
			text.take(1) // whether it is of the key
			table.columns = append(table.columns, text.word())
			text.take(8) // its type
		}
		r.tables[id] = table
	case 'I':
		table := r.tables[text.uint32()]
		text.take(1) // a new row
		row := map[string]string{}
		for i := range text.uint16() {
			if kind := text.take(1)[0]; kind == 't' {
				row[table.columns[i]] = string(text.take(int(text.uint32())))
			}
		}
		r.rows[table.name] = append(r.rows[table.name], row)
	}
}

// proves compares what was read of a table with what is in it: by key, once, and in order within the first part of the key.
func (r *logReader) proves(table string, key, want []string) {
	r.t.Helper()
	var got []string
	last := map[string]int{}
	for _, row := range r.rows[table] {
		for _, withheld := range []string{"payment_method", "fingerprint", "request_id", "metadata"} {
			if _, found := row[withheld]; found {
				r.t.Fatalf("%s come with %s", table, withheld)
			}
		}
		got = append(got, row[key[0]]+" "+row[key[1]])
		if number, err := strconv.Atoi(row[key[1]]); err == nil {
			if number <= last[row[key[0]]] {
				r.t.Errorf("%s: %v comes after %d", table, row, last[row[key[0]]])
			}
			last[row[key[0]]] = number
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.t.Errorf("%s: %d rows read, %d are there", table, len(got), len(want))
	}
}

// logText is what is left of a message.
type logText struct{ left []byte }

func (t *logText) take(n int) (taken []byte) {
	taken, t.left = t.left[:n], t.left[n:]
	return taken
}

func (t *logText) uint16() uint16 { return binary.BigEndian.Uint16(t.take(2)) }
func (t *logText) uint32() uint32 { return binary.BigEndian.Uint32(t.take(4)) }

// word ends with a zero.
func (t *logText) word() string {
	return strings.TrimSuffix(string(t.take(bytes.IndexByte(t.left, 0)+1)), "\x00")
}
