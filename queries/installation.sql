-- name: InstallationID :one
SELECT i.id FROM installation AS i;

-- name: BackendPID :one
-- The server process behind this connection.
SELECT pg_backend_pid()::integer AS pid;
