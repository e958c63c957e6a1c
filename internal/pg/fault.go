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

// Fault says what an error of a statement means for the one who sent it.
type Fault int

const (
	// None: the statement has committed.
	None Fault = iota
	// Again: it was certainly rolled back, and may do better if sent again.
	Again
	// Busy: it was certainly rolled back because a row it needed stayed locked.
	Busy
	// Bad: it was certainly rolled back because of the data it worked on, and will
	// be again.
	Bad
	// Unknown: it may have committed, or still commit. Read back what it wrote.
	Unknown
)

// again lists the SQLSTATEs after which sending the same statement is right.
var again = map[string]bool{
	"40001": true, // serialization failure
	"40P01": true, // deadlock detected
	"26000": true, // prepared statement does not exist: a pooler is in between
	"42P05": true, // prepared statement exists already: the same
	"0A000": true, // cached plan must not change result type: a migration ran
}

// environment lists the classes of errors that say nothing about the data of the
// statement: the connection, the server, its disk, a shutdown, a missing schema. What
// is in none of them, codes that people raise in triggers of their own among them, is
// the data's fault and comes again.
var environment = map[string]bool{
	"08": true, "0A": true, "25": true, "26": true, "28": true, "2D": true, "3D": true, "40": true, "42": true,
	"53": true, "54": true, "55": true, "57": true, "58": true, "F0": true, "XX": true,
}

// FaultOf classifies the error of a single statement. An error that does not carry
// an SQLSTATE (a lost connection, a deadline) is Unknown whatever the driver says
// about it: pgx calls some lost replies safe to retry.
func FaultOf(err error) Fault {
	if err == nil {
		return None
	}
	if errors.Is(err, ErrNotSent) || errors.Is(err, ErrAway) {
		return Again
	}
	code := CodeOf(err)
	switch {
	case len(code) != 5:
		return Unknown
	case again[code]:
		return Again
	case code == "55P03":
		return Busy
	case environment[code[:2]]:
		return Unknown
	default:
		return Bad
	}
}

// CodeOf is the SQLSTATE of an error; empty: it is none of the server's.
func CodeOf(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// SchemaMismatch reports that the database is not the one the statement was written for: a table, a
// column or a function is missing, or the role may not use it (SQLSTATE class 42). It was
// certainly rolled back, whatever the data, and sent again it does no better until somebody
// changes the database: to be sent rarely, and to blame no order for.
func SchemaMismatch(err error) bool {
	code := CodeOf(err)
	return strings.HasPrefix(code, "42") && !again[code]
}

// Describe names an SQLSTATE and the constraint for a hold reason or a log line:
// enough to find the rule that refused, and none of the data.
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

// Stale reports that the other connections of the pool are no better than this one: the server is a standby, as after a
// failover when the address still leads to the old primary (SQLSTATE 25006), or it shut down or crashed (57P01, 57P02).
func Stale(err error) bool {
	return slices.Contains([]string{"25006", "57P01", "57P02"}, CodeOf(err))
}

// repeatFor is how long a read is repeated whose connection was lost, once in any case, and how long a statement waits for the
// gate. A connection is lost now and then, by itself; a database that is away for longer is what the caller should hear of.
const repeatFor = time.Second

// Repeat reads for a caller, and again for a moment if the connection is lost: until ctx or life has ended, and at least once.
// ErrAway is not repeated: the pool has waited. The error is the database's own.
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

// Jitter is d, give or take a fifth: what failed together is not to be tried again together.
func Jitter(d time.Duration) time.Duration { return d*4/5 + rand.N(d*2/5+1) }
