// Package pg connects to PostgreSQL: the pool that cancels no statement, the watchdog for statements without an answer,
// what an error means, and what a connection must be before Pawl trusts it.
package pg
