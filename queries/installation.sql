-- name: InstallationID :one
SELECT i.id FROM pawl.installation AS i;

-- name: BackendPID :one
-- Returns the server process of this connection.
SELECT pg_backend_pid()::integer AS pid;

-- name: InstallationSecret :one
-- Returns our identity toward providers, and the secret that callback tokens are derived from.
SELECT i.id, i.callback_secret FROM pawl.installation AS i;

-- name: InstallationPlace :one
-- Returns where the database belongs, and where it is. 0 and empty: not known, or not stored yet.
SELECT i.id, coalesce(i.name, '')::text AS name, i.cell,
  coalesce(i.system_identifier, 0)::bigint AS home_system, coalesce(i.database_oid, 0)::bigint AS home_database,
  coalesce(pawl.system_identifier(), 0)::bigint AS system, a.datid::bigint AS database
FROM pawl.installation AS i JOIN pg_stat_activity AS a ON a.pid = pg_backend_pid();

-- name: InstallationSettle :execrows
-- Stores where the database belongs, unless that is stored already. The first service decides which orders it has.
UPDATE pawl.installation AS i SET
  system_identifier = coalesce(i.system_identifier, pawl.system_identifier()),
  database_oid = coalesce(i.database_oid, (SELECT a.datid FROM pg_stat_activity AS a WHERE a.pid = pg_backend_pid())),
  name = coalesce(i.name, nullif(@name::text, '')),
  cell = CASE WHEN i.database_oid IS NULL THEN @cell::text ELSE i.cell END
WHERE i.database_oid IS NULL OR i.name IS NULL AND @name::text <> '' OR i.system_identifier IS NULL AND pawl.system_identifier() IS NOT NULL;

-- name: InstallationDrivenUntil :one
-- Returns until when a service has a lease on anything in this database. No row: there is no lease.
SELECT l.due_at::timestamptz AS until FROM (
  SELECT o.due_at FROM pawl.orders AS o WHERE o.owner IS NOT NULL AND o.due_at > now()
  UNION ALL SELECT r.due_at FROM pawl.event_relay AS r WHERE r.owner IS NOT NULL AND r.due_at > now()
  UNION ALL SELECT e.due_at FROM pawl.webhook_endpoints AS e WHERE e.owner IS NOT NULL AND e.due_at > now()
) AS l(due_at) ORDER BY l.due_at DESC LIMIT 1;

-- name: InstallationAdopt :execrows
-- Records that the database belongs where it is. Without a name or a cell, those stay.
WITH logged AS (
  INSERT INTO pawl.access_log (event, actor, subject, detail)
  SELECT @event::text, @actor::text, i.id::text,
    'belonged to cluster ' || coalesce(i.system_identifier::text, '?') || ', database ' || coalesce(i.database_oid::text, '?')
  FROM pawl.installation AS i
)
UPDATE pawl.installation AS i SET
  system_identifier = pawl.system_identifier(),
  database_oid = (SELECT a.datid FROM pg_stat_activity AS a WHERE a.pid = pg_backend_pid()),
  name = coalesce(nullif(@name::text, ''), i.name),
  cell = coalesce(nullif(@cell::text, ''), i.cell)
WHERE i.singleton;

-- name: InstallationDivide :execrows
-- Says that the database has two cells, of which a copy will get one. No row: it is not the undivided cell.
WITH logged AS (
  INSERT INTO pawl.access_log (event, actor, subject, detail)
  SELECT 'database_divided', @actor::text, i.id::text, i.cell || ' into ' || @halves::text FROM pawl.installation AS i
)
UPDATE pawl.installation AS i SET cell = @halves::text WHERE i.cell = @cell::text;

-- name: InstallationHistoryContinues :one
-- Reports whether this is the database on which the event relay recorded its history, and no copy of it or standby that
-- was promoted since: it is in the same cluster, with the same number, and on the same timeline of the log.
SELECT (coalesce(r.history, '') = left(pg_walfile_name(pg_current_wal_lsn()), 8) || '/' || a.datid::text
  AND coalesce(i.system_identifier <> pawl.system_identifier(), false) = false)::boolean AS continues
FROM pawl.installation AS i, pawl.event_relay AS r, pg_stat_activity AS a WHERE a.pid = pg_backend_pid();
