-- name: SchemaState :one
-- The newest migration that was applied, 0 for none: goose keeps a row for each. And the
-- privileges on tables and functions that this role has not, or can't have because they are not
-- there, whatever that row says. To write some columns is enough: which of them follows from the statements.
SELECT
  coalesce((SELECT max(g.version_id) FROM public.goose_db_version AS g WHERE g.is_applied), 0)::bigint AS version,
  ARRAY(
    SELECT n.privilege || ' on ' || n.name
    FROM ROWS FROM (unnest(@privileges::text[]), unnest(@names::text[])) AS n(privilege, name)
    WHERE NOT coalesce(CASE n.privilege WHEN 'EXECUTE' THEN has_function_privilege(to_regprocedure(n.name), n.privilege)
      WHEN 'DELETE' THEN has_table_privilege(to_regclass(n.name), n.privilege)
      ELSE has_any_column_privilege(to_regclass(n.name), n.privilege) END, false)
  )::text[] AS lacking;

-- name: SchemaMade :one
-- Whether a migration was ever applied: goose creates its table even to report what was applied.
SELECT (to_regclass('public.goose_db_version') IS NOT NULL)::boolean AS made;

-- name: SchemaFound :one
-- What there is of a schema, and whose. Only catalogs are read: that works for every role, and on every database.
SELECT
  (to_regnamespace('pawl') IS NOT NULL)::boolean AS made,
  EXISTS (SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'pawl' AND c.relname = 'installation') AS ours,
  EXISTS (SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'pawl' AND c.relname = 'migration_checksums') AS development,
  EXISTS (SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'public' AND c.relname = 'goose_db_version') AS recorded,
  EXISTS (SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
      JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid
    WHERE n.nspname = 'public' AND c.relname = 'goose_db_version' AND a.attname = 'is_applied') AS readable;

-- name: SchemaOrders :one
-- How many orders would go with the schema.
SELECT count(*) AS orders FROM pawl.orders;

-- name: SchemaServices :one
-- How many connections running services have to this database: a migration that is taken back takes the
-- schema from under them.
SELECT count(*) AS connections FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND starts_with(a.application_name, @service::text);

-- name: SearchPathUntrusted :many
-- The schemas that this connection finds names in and in which others may create: roles other than this one, the owners of
-- the database and of our schema, and superusers. Operators are named in full, because such a schema may have others.
SELECT n.nspname::text AS schema FROM pg_catalog.pg_namespace AS n
WHERE n.nspname OPERATOR(pg_catalog.=) ANY(pg_catalog.current_schemas(false))
  AND EXISTS (
    SELECT FROM (
      SELECT a.grantee FROM pg_catalog.aclexplode(coalesce(n.nspacl, pg_catalog.acldefault('n', n.nspowner))) AS a
      WHERE a.privilege_type OPERATOR(pg_catalog.=) 'CREATE'
      UNION ALL SELECT n.nspowner) AS may(role)
    WHERE NOT EXISTS (
      SELECT FROM pg_catalog.pg_roles AS r
      WHERE r.oid OPERATOR(pg_catalog.=) may.role AND (r.rolsuper OR r.rolname OPERATOR(pg_catalog.=) current_user
        OR r.rolname OPERATOR(pg_catalog.=) 'pg_database_owner'
        OR EXISTS (SELECT FROM pg_catalog.pg_database AS d
          WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() AND d.datdba OPERATOR(pg_catalog.=) r.oid)
        OR EXISTS (SELECT FROM pg_catalog.pg_namespace AS ours
          WHERE ours.nspname OPERATOR(pg_catalog.=) 'pawl' AND ours.nspowner OPERATOR(pg_catalog.=) r.oid))))
ORDER BY 1;

-- name: SchemaUntrusted :many
-- Tables in which goose keeps what it does and that belong to others: they could have been there before, with triggers of theirs.
SELECT c.relname::text AS name FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'public' AND c.relname IN ('goose_db_version', 'goose_lock')
  AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_roles AS r
    WHERE r.oid = c.relowner AND (r.rolsuper OR r.rolname = current_user
      OR EXISTS (SELECT FROM pg_catalog.pg_database AS d WHERE d.datname = current_database() AND d.datdba = r.oid)
      OR EXISTS (SELECT FROM pg_catalog.pg_namespace AS ours WHERE ours.nspname = 'pawl' AND ours.nspowner = r.oid)))
ORDER BY 1;

-- name: SchemaMayMigrate :one
-- Whether this role can apply a migration: make what is new, and change what is there.
SELECT (has_database_privilege(current_database(), 'CREATE') AND has_schema_privilege('public', 'CREATE')
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_namespace AS n WHERE n.nspname IN ('pawl', 'books') AND NOT pg_has_role(n.nspowner, 'USAGE')))::boolean AS may;
