-- name: InstallationID :one
SELECT i.id FROM pawl.installation AS i;

-- name: BackendPID :one
-- The server process behind this connection.
SELECT pg_backend_pid()::integer AS pid;

-- name: InstallationSecret :one
-- Who we are to providers, and what tokens of callbacks are derived from.
SELECT i.id, i.callback_secret FROM pawl.installation AS i;
