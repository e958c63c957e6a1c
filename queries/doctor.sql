-- Checks of `pawl doctor`.

-- name: ServerSettings :many
-- Returns settings as they are for this connection, including those of the role and the database. Settings that this
-- server does not have are left out. Sizes and times are in the unit of pg_settings.
SELECT s.name::text AS name, s.setting::text AS setting FROM pg_catalog.pg_settings AS s WHERE s.name = ANY(@names::text[]);

-- name: ServerFacts :one
-- Returns facts about this role and the server. A role other than the one that logged in sees its own statements in
-- pg_stat_activity only if it has the rights of that one, or pg_read_all_stats.
SELECT current_user::text AS role, current_database()::text AS database,
  r.rolsuper::boolean AS superuser,
  EXISTS (SELECT FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'pawl' AND pg_has_role(n.nspowner, 'USAGE'))::boolean AS owner,
  (pg_has_role(session_user, 'USAGE') OR pg_has_role('pg_read_all_stats', 'USAGE'))::boolean AS sees_statements,
  pg_is_in_recovery()::boolean AS standby,
  pg_database_size(current_database())::bigint AS size
FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user;

-- name: ServerConnections :one
-- Counts the connections of all clients of the server, including this one, and those of running services on this
-- database.
SELECT count(*)::bigint AS used,
  count(*) FILTER (WHERE a.datname = current_database() AND starts_with(a.application_name, @service::text))::bigint AS services
FROM pg_stat_activity AS a
WHERE a.usesysid IS NOT NULL AND coalesce(a.backend_type, 'client backend') = 'client backend';

-- name: ServerStandbys :one
-- Counts the connected standbys, and the synchronous ones. Without pg_read_all_stats, a role does not see what they
-- are (hidden). Base backups and logical replication are not standbys.
SELECT count(*)::bigint AS connected, count(*) FILTER (WHERE r.sync_state IN ('sync', 'quorum'))::bigint AS synchronous,
  count(*) FILTER (WHERE r.sync_state IS NULL)::bigint AS hidden
FROM pg_stat_replication AS r
WHERE r.state IS DISTINCT FROM 'backup'
  AND NOT EXISTS (SELECT FROM pg_replication_slots AS s WHERE s.active_pid = r.pid AND s.slot_type = 'logical');

-- name: ServerTime :one
SELECT clock_timestamp()::timestamptz AS now;

-- name: SchemaSwitchedOff :many
-- Lists objects that exist but do not work: disabled triggers, invalid indexes, and tables that a crash empties,
-- except the one that it must empty.
SELECT format('trigger %s on %s is switched off', t.tgname, t.tgrelid::regclass)::text AS what
FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.tgrelid
WHERE c.relnamespace = to_regnamespace('pawl') AND NOT t.tgisinternal AND t.tgenabled IN ('D', 'R')
UNION ALL
SELECT format('index %s is not valid', i.indexrelid::regclass)
FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indrelid
WHERE c.relnamespace = to_regnamespace('pawl') AND NOT i.indisvalid
UNION ALL
SELECT format('table %s is not logged', c.oid::regclass)
FROM pg_catalog.pg_class AS c
WHERE c.relnamespace = to_regnamespace('pawl') AND c.relkind = 'r' AND c.relpersistence = 'u' AND c.relname <> 'order_numbering'
ORDER BY 1;

-- name: OrderNumberingRelaxed :one
-- Reports whether steps of orders may commit without waiting for the disk.
SELECT (c.relpersistence = 'u')::boolean AS relaxed FROM pg_catalog.pg_class AS c WHERE c.oid = 'pawl.order_numbering'::regclass;

-- name: WebhookEndpointsDisabled :many
SELECT concat('whe_', e.endpoint_no)::text AS id, e.disabled_at::timestamptz AS disabled_at, e.disabled_reason::text AS reason
FROM pawl.webhook_endpoints AS e WHERE e.state = 'disabled' ORDER BY e.endpoint_no;
