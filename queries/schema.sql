-- name: SchemaState :one
-- The newest migration that was applied, 0 for none: goose keeps a row for each. And the
-- privileges on tables that this role has not, or can't have because the table is not
-- there, whatever that row says.
SELECT
  coalesce((SELECT max(g.version_id) FROM public.goose_db_version AS g WHERE g.is_applied), 0)::bigint AS version,
  ARRAY(
    SELECT n.privilege || ' on ' || n.name
    FROM ROWS FROM (unnest(@privileges::text[]), unnest(@tables::text[])) AS n(privilege, name)
    WHERE NOT coalesce(has_table_privilege(to_regclass(n.name), n.privilege), false)
  )::text[] AS lacking;

-- name: SchemaOrders :one
-- How many orders would go with the schema.
SELECT count(*) AS orders FROM pawl.orders;

-- name: SchemaServices :one
-- How many connections running services have to this database: a migration that is taken back takes the
-- schema from under them.
SELECT count(*) AS connections FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND starts_with(a.application_name, @service::text);
