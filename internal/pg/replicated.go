package pg

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrNotReplicated: somebody ended the wait of a commit for its synchronous standby, as pg_cancel_backend does. The
// statement has committed on this server; whether anywhere else, nobody knows. FaultOf calls it Unknown.
var ErrNotReplicated = errors.New("committed, but the wait for the standby was ended")

const notReplicated = "pawl.not_replicated"

// noteUnreplicated keeps in mind that the statement under way was not waited for. PostgreSQL says so in a warning
// and then answers as if all were well. The routine is the one part of a notice that is not translated.
func noteUnreplicated(c *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" {
		c.CustomData()[notReplicated] = true
	}
}

// takeUnreplicated reports whether that was so, once.
func takeUnreplicated(c *pgconn.PgConn) bool {
	was := c.CustomData()[notReplicated] != nil
	delete(c.CustomData(), notReplicated)
	return was
}
