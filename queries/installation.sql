-- name: InstallationID :one
SELECT i.id FROM installation AS i;
