package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// TestReaderOfTheLog does what docs/events.md says of Debezium and of a reader of one's own: it makes the role and the
// publication as printed there, and reads the rows from PostgreSQL's log with pgoutput. The reader is cut off again and again,
// and goes on from the position that it has kept; a replica is killed meanwhile. Every row comes once, those of an order in
// order, and with nothing that is withheld.
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
	reader.read(func() bool { return len(reader.rows["transitions"]) > 200 })
	r.replace(0)
	load.flows(100)
	load.finish()
	settle(t, server.url, patience)

	for table, key := range map[string][]string{
		"orders": {"order_no", "order_id"}, "transitions": {"order_no", "seq"}, "stock_movements": {"item", "version"},
	} {
		want := query[string](t, server.url, "SELECT concat_ws(' ', "+strings.Join(key, ", ")+") FROM pawl."+table)
		reader.read(func() bool { return len(reader.rows[table]) >= len(want) })
		reader.proves(table, key, want)
	}
	t.Logf("%d moves read over %d connections", len(reader.rows["transitions"]), reader.connections)
	if reader.connections < 4 {
		t.Error("the reader was not cut off")
	}
}

// logReader reads a publication. It keeps what it has read together with its position, as one must who wants each row once.
type logReader struct {
	t           *testing.T
	config      *pgconn.Config
	rows        map[string][]map[string]string // by table
	position    uint64                         // in the log: the end of the last transaction in rows
	connections int
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
	for _, name := range []string{`"slot.name": "broker"`, `"publication.name": "pawl_events"`, `"table.include.list": "pawl.orders,pawl.transitions,pawl.stock_movements"`} {
		if !strings.Contains(string(page), name) {
			t.Errorf("docs/events.md: the configuration of Debezium does not say %s", name)
		}
	}
	r := &logReader{t: t, rows: map[string][]map[string]string{}}
	if r.config, err = pgconn.ParseConfig(url); err != nil {
		t.Fatal(err)
	}
	r.run(string(printed[1]))
	r.config.User, r.config.Password = "broker", "change-me"
	r.config.RuntimeParams["replication"] = "database"
	r.run("CREATE_REPLICATION_SLOT broker LOGICAL pgoutput")
	return r
}

func (r *logReader) run(statements string) {
	r.t.Helper()
	conn, err := pgconn.ConnectConfig(r.t.Context(), r.config)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close(r.t.Context())
	if _, err := conn.Exec(r.t.Context(), statements).ReadAll(); err != nil {
		r.t.Fatalf("%v in:\n%s", err, statements)
	}
}

// read reads until it is enough, and loses its connection after some hundred rows.
func (r *logReader) read(enough func() bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for !enough() {
		stream := r.connect(ctx)
		var open []logInsert
		for n := 0; n < 200 && !enough(); n++ {
			message, err := stream.next(ctx, r.position)
			switch message := message.(type) {
			case logInsert:
				open = append(open, message)
			case logCommit:
				for _, insert := range open {
					r.rows[insert.table] = append(r.rows[insert.table], insert.row)
				}
				open, r.position = nil, message.end
			default:
				r.t.Fatal(err)
			}
		}
		_ = stream.conn.Conn().Close() // without a goodbye
	}
}

// connect goes on where the reader is. The server may still take the connection that was lost for alive.
func (r *logReader) connect(ctx context.Context) (stream *logStream) {
	r.t.Helper()
	r.connections++
	eventually(r.t, patience, "the slot is free", func() bool {
		var err error
		stream, err = startStream(ctx, r.config, r.position)
		var inUse *pgconn.PgError
		if err != nil && !(errors.As(err, &inUse) && inUse.Code == "55006") { // object_in_use
			r.t.Fatal(err)
		}
		return err == nil
	})
	return stream
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

// logStream is a connection over which PostgreSQL sends its log, decoded by pgoutput (PostgreSQL manual, 55.4 Streaming
// Replication Protocol, and 55.9 Logical Replication Message Formats; version 1).
type logStream struct {
	conn   *pgconn.PgConn
	tables map[uint32]logTable
}

type logTable struct {
	name    string
	columns []string
}

// logInsert is a row; logCommit is the end of a transaction. All else that pgoutput says needs no answer.
type (
	logInsert struct {
		table string
		row   map[string]string
	}
	logCommit struct{ end uint64 }
)

// startStream begins where a position says. Where that is 0, it is where the slot was made or was last confirmed.
func startStream(ctx context.Context, config *pgconn.Config, position uint64) (*logStream, error) {
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	conn.Frontend().SendQuery(&pgproto3.Query{String: fmt.Sprintf(
		`START_REPLICATION SLOT broker LOGICAL %X/%X (proto_version '1', publication_names 'pawl_events')`, position>>32, uint32(position))})
	if err := conn.Frontend().Flush(); err != nil {
		return nil, err
	}
	for {
		message, err := conn.ReceiveMessage(ctx)
		if refused, ok := message.(*pgproto3.ErrorResponse); ok {
			err = pgconn.ErrorResponseToPgError(refused)
		}
		if err != nil {
			_ = conn.Conn().Close()
			return nil, err
		}
		if _, ok := message.(*pgproto3.CopyBothResponse); ok {
			return &logStream{conn, map[uint32]logTable{}}, nil
		}
	}
}

// next is the next insert or commit. Whenever the server asks, it is told that all up to a position is kept.
func (s *logStream) next(ctx context.Context, kept uint64) (any, error) {
	for {
		message, err := s.conn.ReceiveMessage(ctx)
		if err != nil {
			return nil, err
		}
		data, ok := message.(*pgproto3.CopyData)
		if !ok {
			return nil, fmt.Errorf("received %T", message)
		}
		switch data.Data[0] {
		case 'k': // keepalive
			if err := s.confirm(kept); err != nil {
				return nil, err
			}
		case 'w': // a piece of the log, after three numbers
			if found := s.decode(&logText{data.Data[25:]}); found != nil {
				return found, nil
			}
		}
	}
}

func (s *logStream) confirm(kept uint64) error {
	status := []byte{'r'}
	for _, n := range []uint64{kept, kept, kept, 0} { // written, flushed, applied; a time
		status = binary.BigEndian.AppendUint64(status, n)
	}
	s.conn.Frontend().Send(&pgproto3.CopyData{Data: append(status, 0)})
	return s.conn.Frontend().Flush()
}

func (s *logStream) decode(text *logText) any {
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
		s.tables[id] = table
	case 'I':
		table := s.tables[text.uint32()]
		text.take(1) // a new row
		row := map[string]string{}
		for i := range text.uint16() {
			if kind := text.take(1)[0]; kind == 't' {
				row[table.columns[i]] = string(text.take(int(text.uint32())))
			}
		}
		return logInsert{table.name, row}
	case 'C':
		text.take(9) // flags, and where the commit begins
		return logCommit{binary.BigEndian.Uint64(text.take(8))}
	}
	return nil
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
