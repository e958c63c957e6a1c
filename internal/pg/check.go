package pg

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"pawl/db"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrSchemaMismatch: the schema of the database is not one that the statements of this program can
// run on.
var ErrSchemaMismatch = errors.New("statements can't be prepared")

// Check has the server parse every statement of Queries, and executes none. An error that
// is ErrSchemaMismatch names those that it refuses, each with the SQLSTATE and the message of the
// server; any other error says nothing about the schema. The statements are prepared without
// a name, so it works behind a pooler, too, and leaves nothing behind on the connection.
//
// The server looks at tables, columns, types and functions when it parses. It does not look at
// privileges, at the index that an ON CONFLICT needs, or into the bodies of functions and
// triggers: that only running a statement does.
func Check(ctx context.Context, conn *pgx.Conn) error {
	statements := allStatements(ctx)
	refused, err := prepare(ctx, conn.PgConn(), statements)
	if err != nil {
		return fmt.Errorf("prepare statements: %w", err)
	}
	if len(refused) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d of %d: %s", ErrSchemaMismatch, len(refused), len(statements), listed(refused))
}

// NoSchema is the error of a database that has no schema of Pawl's, only a part of it, or one from before the first release.
type NoSchema struct {
	Found  string // what is there instead
	Advice string // what to do about it
	Empty  bool   // nothing is in the way of a migration
}

func (n *NoSchema) Error() string { return n.Found + ": " + n.Advice }

const ownDatabase = "give Pawl a database of its own: createdb NAME, and name it in --database-url"

// FindSchema returns nil for a database that has a schema of Pawl's, of whatever released version. Errors: *NoSchema.
func FindSchema(ctx context.Context, on db.DBTX) error {
	found, err := db.New(on).SchemaFound(ctx)
	if err != nil {
		return fmt.Errorf("look for schema pawl: %w", err)
	}
	switch {
	case found.Development: // its migrations had other numbers, and a table of their checksums
		return &NoSchema{Found: "schema pawl is that of an earlier development version, which this program can't migrate",
			Advice: "make a new database: createdb NAME, and name it in --database-url"}
	case found.Ours && found.Recorded:
		return nil
	case found.Ours:
		return &NoSchema{Found: "schema pawl is there, but not public.goose_db_version, the table of the migrations that were applied",
			Advice: "restore it from the backup that the schema is from"}
	case found.Made:
		return &NoSchema{Found: "the database has a schema pawl that Pawl did not make", Advice: ownDatabase}
	case found.Recorded && !found.Readable:
		return &NoSchema{Found: "schema pawl is missing, and the table public.goose_db_version is another program's", Advice: ownDatabase}
	case found.Recorded:
		state, err := db.New(on).SchemaState(ctx, db.SchemaStateParams{})
		if err == nil && state.Version > 0 {
			return &NoSchema{Found: "schema pawl is missing, although public.goose_db_version says that migrations were applied", Advice: "if that table is another program's, " + ownDatabase +
				". If somebody dropped schema pawl, restore a backup, or to begin without data DROP SCHEMA IF EXISTS books CASCADE, DROP TABLE public.goose_db_version, and run pawl migrate up"}
		}
	}
	return &NoSchema{Found: "schema pawl is missing", Advice: "run pawl migrate up", Empty: true}
}

// allStatements calls every method of the queries that sends a statement, with zero values for its arguments, and notes
// the statement. One that is added is noted without anybody having to list it.
func allStatements(ctx context.Context) []string {
	var noted notepad
	queries := reflect.ValueOf(db.New(&noted))
	for i := range queries.NumMethod() {
		method := queries.Method(i)
		signature := method.Type()
		if signature.NumIn() == 0 || signature.In(0) != reflect.TypeFor[context.Context]() {
			continue // WithTx sends nothing
		}
		args := []reflect.Value{reflect.ValueOf(ctx)}
		for n := 1; n < signature.NumIn(); n++ {
			args = append(args, reflect.Zero(signature.In(n)))
		}
		before := len(noted)
		method.Call(args) // its error is errNoted
		if len(noted) != before+1 {
			panic("db: " + queries.Type().Method(i).Name + " did not send its one statement") // sqlc makes other code now
		}
	}
	return noted
}

// prepare has the server parse the statements, and names those that it refuses. All are sent at once: on a machine that
// is busy each answer that is waited for costs a turn of both sides, and a hundred of them cost seconds.
func prepare(ctx context.Context, conn *pgconn.PgConn, statements []string) (refused []string, err error) {
	pipeline := conn.StartPipeline(ctx)
	defer func() { err = errors.Join(err, pipeline.Close()) }()
	for _, sql := range statements {
		pipeline.SendPrepare("", sql, nil)
		pipeline.SendPipelineSync() // what is after one that is refused is parsed all the same
	}
	if err := pipeline.Flush(); err != nil {
		return nil, err
	}
	for _, sql := range statements {
		refusal, err := parsed(pipeline)
		if err != nil {
			return nil, err
		}
		if refusal != nil {
			refused = append(refused, fmt.Sprintf("%s: %s (%s)", nameOf(sql), refusal.Message, refusal.Code))
		}
	}
	return refused, nil
}

// parsed reads what the server says of the next statement. Its error is no verdict on the statement.
func parsed(pipeline *pgconn.Pipeline) (refusal *pgconn.PgError, err error) {
	_, err = pipeline.GetResults()
	if err != nil && (!errors.As(err, &refusal) || passes(refusal.Code)) {
		return nil, err
	}
	_, err = pipeline.GetResults() // of the sync behind it
	return refusal, err
}

// listedMost is how many statements an error names; a table that is missing makes dozens fail.
const listedMost = 5

func listed(refused []string) string {
	if more := len(refused) - listedMost; more > 0 {
		return fmt.Sprintf("%s; and %d more", strings.Join(refused[:listedMost], "; "), more)
	}
	return strings.Join(refused, "; ")
}

// passes tells the SQLSTATEs that are no verdict on the statement: the connection or the server
// is going, busy or short of something, or a table is locked.
func passes(code string) bool {
	switch code[:2] {
	case "08", "40", "53", "57", "58", "XX":
		return true
	default:
		return code == "55P03"
	}
}

// notepad is a DBTX that notes what it should execute.
type notepad []string

var errNoted = errors.New("noted, not executed")

func (n *notepad) note(sql string) error {
	*n = append(*n, sql)
	return errNoted
}

// Exec notes a statement of Queries.
func (n *notepad) Exec(_ context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, n.note(sql)
}

// Query notes a statement of Queries.
func (n *notepad) Query(_ context.Context, sql string, _ ...any) (pgx.Rows, error) {
	return nil, n.note(sql)
}

// QueryRow notes a statement of Queries.
func (n *notepad) QueryRow(_ context.Context, sql string, _ ...any) pgx.Row {
	return row{err: n.note(sql)}
}
