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

// ErrSchemaMismatch says that the statements of this program can't run on the schema of the database.
var ErrSchemaMismatch = errors.New("statements can't be prepared")

// Check makes the server parse every statement of Queries, without executing any. An ErrSchemaMismatch names those that
// fail, with SQLSTATE and message; any other error says nothing about the schema. The statements are prepared without a
// name, so it works behind a pooler and leaves nothing behind on the connection.
//
// Parsing checks tables, columns, types and functions. It does not check privileges, the index that an ON CONFLICT
// needs, or the bodies of functions and triggers.
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

// NoSchema is the error for a database without a complete schema of a release.
type NoSchema struct {
	Found  string // what is there instead
	Advice string // what to do about it
	Empty  bool   // nothing is in the way of a migration
}

func (n *NoSchema) Error() string { return n.Found + ": " + n.Advice }

const ownDatabase = "give Pawl a database of its own: createdb NAME, and set --database-url to it"

// FindSchema returns nil for a database with the schema of any release. Errors: *NoSchema.
func FindSchema(ctx context.Context, on db.DBTX) error {
	found, err := db.New(on).SchemaFound(ctx)
	if err != nil {
		return fmt.Errorf("look for schema pawl: %w", err)
	}
	const partly = " exists, but not public.goose_db_version, the table of applied migrations"
	switch {
	case found.Development: // has other migration numbers, and a table of their checksums
		return &NoSchema{Found: "schema pawl is that of an earlier development version, which this program can't migrate",
			Advice: "create a new database: createdb NAME, and set --database-url to it"}
	case found.Ours && found.Recorded:
		return nil
	case found.Ours:
		return &NoSchema{Found: "schema pawl" + partly, Advice: "restore it from the backup of the schema"}
	case found.Made:
		return &NoSchema{Found: "the database has a schema pawl that Pawl did not create", Advice: ownDatabase}
	case found.Recorded && !found.Readable:
		return &NoSchema{Found: "schema pawl is missing, and the table public.goose_db_version belongs to another program", Advice: ownDatabase}
	case found.Recorded:
		state, err := db.New(on).SchemaState(ctx, db.SchemaStateParams{})
		if err == nil && state.Version > 0 {
			if now, err := db.New(on).SchemaFound(ctx); err == nil && now.Ours { // another replica has migrated it since the first look
				return nil
			}
			return &NoSchema{Found: "schema pawl is missing, although public.goose_db_version says that migrations were applied",
				Advice: "if that table belongs to another program, " + ownDatabase + ". If schema pawl was dropped, restore a backup, " +
					"or to begin without data DROP SCHEMA IF EXISTS books CASCADE, DROP TABLE public.goose_db_version, and run pawl migrate up"}
		}
	}
	return &NoSchema{Found: "schema pawl is missing", Advice: "run pawl migrate up", Empty: true}
}

// allStatements calls every method of the queries that sends a statement, with zero arguments, and records the
// statement.
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
			panic("db: " + queries.Type().Method(i).Name + " did not send its one statement") // sqlc generates different code now
		}
	}
	return noted
}

// prepare makes the server parse the statements, and names those that fail. All are sent at once: on a busy machine,
// waiting for a hundred answers one by one takes seconds.
func prepare(ctx context.Context, conn *pgconn.PgConn, statements []string) (refused []string, err error) {
	pipeline := conn.StartPipeline(ctx)
	defer func() { err = errors.Join(err, pipeline.Close()) }()
	for _, sql := range statements {
		pipeline.SendPrepare("", sql, nil)
		pipeline.SendPipelineSync() // so that the next ones are parsed after a failure
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

// parsed reads the answer for the next statement. An error says nothing about the statement.
func parsed(pipeline *pgconn.Pipeline) (refusal *pgconn.PgError, err error) {
	_, err = pipeline.GetResults()
	if err != nil && (!errors.As(err, &refusal) || passes(refusal.Code)) {
		return nil, err
	}
	_, err = pipeline.GetResults() // of the sync after it
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

// passes reports SQLSTATEs that say nothing about the statement: the connection or the server is ending, busy or out of
// resources, or a table is locked.
func passes(code string) bool {
	switch code[:2] {
	case "08", "40", "53", "57", "58", "XX":
		return true
	default:
		return code == "55P03"
	}
}

// notepad is a DBTX that records statements instead of executing them.
type notepad []string

var errNoted = errors.New("recorded, not executed")

func (n *notepad) note(sql string) error {
	*n = append(*n, sql)
	return errNoted
}

// Exec records a statement.
func (n *notepad) Exec(_ context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, n.note(sql)
}

// Query records a statement.
func (n *notepad) Query(_ context.Context, sql string, _ ...any) (pgx.Rows, error) {
	return nil, n.note(sql)
}

// QueryRow records a statement.
func (n *notepad) QueryRow(_ context.Context, sql string, _ ...any) pgx.Row {
	return row{err: n.note(sql)}
}
