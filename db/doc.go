// Package db is the database as Go sees it: the statements of queries/, typed by
// sqlc, and the few things around a pool that they need.
//
// Every write is one statement with arguments. It commits by itself, so there is no
// COMMIT whose reply can be lost on its own; and pgx never sends it a second time,
// as it may a statement without arguments. Nothing here uses database/sql, which
// repeats a statement whose reply was lost.
package db
