package pg

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Fault is what an error of a statement means for its caller.
type Fault int

const (
	// None: the statement has committed.
	None Fault = iota
	// Again: it was certainly rolled back, and may succeed if sent again.
	Again
	// Busy: it was certainly rolled back because a row that it needed stayed locked.
	Busy
	// Bad: it was certainly rolled back because of its data, and will be again.
	Bad
	// Unknown: it may have committed, or still commit. Read back what it wrote.
	Unknown
)

// again lists the SQLSTATEs after which the same statement should be sent again.
var again = map[string]bool{
	"40001": true, // serialization failure
	"40P01": true, // deadlock detected
	"26000": true, // prepared statement does not exist: a pooler is in between
	"42P05": true, // prepared statement exists already: the same
	"0A000": true, // cached plan must not change result type: a migration ran
}

// aboutData lists the classes of SQLSTATEs that PostgreSQL documents for faults of the data, which recur with the same
// data. All others say nothing about it, such as those of the connection, the disk, a shutdown, a missing schema.
var aboutData = map[string]bool{"09": true, "20": true, "21": true, "22": true, "23": true, "27": true, "44": true, "P0": true}

// aboutServer lists the classes that say nothing about the data even if a trigger raises them. It may also raise a code
// of its own.
var aboutServer = map[string]bool{
	"08": true, "0A": true, "25": true, "26": true, "28": true, "2D": true, "3D": true, "40": true, "42": true,
	"53": true, "54": true, "55": true, "57": true, "58": true, "F0": true, "XX": true,
}

// raise is the function of PostgreSQL that executes the RAISE of a trigger.
const raise = "exec_stmt_raise"

// FaultOf classifies the error of a single statement. An error that PostgreSQL itself did not report (a lost
// connection, a deadline, a router) is Unknown. The driver is not asked: pgx calls some lost replies safe to retry.
func FaultOf(err error) Fault {
	if err == nil {
		return None
	}
	if errors.Is(err, ErrNotSent) || errors.Is(err, ErrAway) {
		return Again
	}
	e, reported := reportedByServer(err)
	switch {
	case !reported, onStandby(err):
		return Unknown
	case again[e.Code]:
		return Again
	case e.Code == "55P03":
		return Busy
	case aboutData[e.Code[:2]], e.Routine == raise && !aboutServer[e.Code[:2]]:
		return Bad
	default:
		return Unknown
	}
}

// reportedByServer returns the error if PostgreSQL itself reported it: then it names a function of its source. Routers
// in between, such as PgBouncer, don't. Their codes may be of their own, or mean something else than PostgreSQL's, and
// the statement may have committed.
func reportedByServer(err error) (e *pgconn.PgError, reported bool) {
	e, reported = errors.AsType[*pgconn.PgError](err)
	return e, reported && e.Routine != "" && len(e.Code) == 5
}

// CodeOf is the SQLSTATE of an error, also of a router's; empty: it has none.
func CodeOf(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// SchemaMismatch reports that a table, column or function of the statement is missing, or that the role may not use it
// (SQLSTATE class 42). The statement was certainly rolled back, and will be until the database is changed. Repeat it
// rarely; its orders are not the cause.
func SchemaMismatch(err error) bool {
	e, reported := reportedByServer(err)
	return reported && strings.HasPrefix(e.Code, "42") && !again[e.Code]
}

// Describe names the SQLSTATE and the constraint for a hold reason or a log line, without any data.
func Describe(err error) string {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return "connection"
	}
	if pg.ConstraintName != "" {
		return pg.Code + " " + pg.ConstraintName
	}
	return pg.Code
}

// Stale reports that the other connections of the pool are probably no better: the server is a standby, as after a
// failover while the address still leads to the old primary, or it shut down or crashed (57P01, 57P02).
func Stale(err error) bool {
	return onStandby(err) || slices.Contains([]string{"57P01", "57P02"}, CodeOf(err))
}

// onStandby reports that the server is a standby, which refused to write (25006), to read an unlogged table, or to
// number the transaction of a durable read. The last two have general codes, so the function in the server is compared.
func onStandby(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (e.Code == "25006" || e.Code == "0A000" && e.Routine == "get_relation_info" ||
		e.Code == "XX000" && e.Routine == "GetNewTransactionId")
}

// repeatFor is how long a read is repeated after its connection was lost, and how long a statement waits for the gate.
// If the database is away for longer, the caller should know.
const repeatFor = time.Second

// Repeat reads, and repeats the read for a moment if the connection is lost, at least once, until ctx or life ends. It
// does not repeat after ErrAway, for which the pool has waited. It returns the error of the database.
func Repeat[T any](ctx, life context.Context, read func(context.Context) (T, error)) (T, error) {
	for began, try := time.Now(), 0; ; try++ {
		v, err := read(ctx)
		if err == nil || errors.Is(err, pgx.ErrNoRows) || errors.Is(err, ErrAway) || FaultOf(err) == Bad || SchemaMismatch(err) ||
			ctx.Err() != nil || life.Err() != nil || try > 0 && time.Since(began) > repeatFor {
			return v, err
		}
		Sleep(ctx, min(5*time.Millisecond<<min(try, 6), 100*time.Millisecond))
	}
}

// Sleep waits for Jitter(d), or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(Jitter(d))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Jitter is d, give or take a fifth, so that tries that failed together are not repeated together.
func Jitter(d time.Duration) time.Duration { return d*4/5 + rand.N(d*2/5+1) }
