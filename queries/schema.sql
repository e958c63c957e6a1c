-- name: SchemaState :one
-- Returns the newest applied migration, or 0 (goose keeps a row for each), and the privileges on tables and functions
-- that this role lacks, or that do not exist, whatever that row says. The privilege to write some columns is enough:
-- the statements determine which.
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
-- Reports whether goose has ever run: it creates its table even to report its state.
SELECT (to_regclass('public.goose_db_version') IS NOT NULL)::boolean AS made;

-- name: SchemaFound :one
-- Returns what exists of a schema, and whose it is. It only reads catalogs, which works for every role on every
-- database.
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
-- Counts the orders that would be removed with the schema.
SELECT count(*) AS orders FROM pawl.orders;

-- name: SchemaServices :one
-- Counts the connections of running services to this database: undoing a migration would remove the schema while they
-- use it.
SELECT count(*) AS connections FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND starts_with(a.application_name, @service::text);

-- name: ServicesDisconnect :one
-- Ends the connections of services to this database. They connect anew, and then check where they are.
SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid)) AS connections FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND starts_with(a.application_name, @service::text);

-- name: SearchPathUntrusted :many
-- Lists the schemas on the search path of this connection in which others may create objects: roles other than this
-- one, the owners of the database and of our schema, and superusers. Operators are qualified, because such a schema
-- may contain others.
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
-- Lists the tables of goose that belong to others: they could have existed before, with others' triggers.
SELECT c.relname::text AS name FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'public' AND c.relname IN ('goose_db_version', 'goose_lock')
  AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_roles AS r
    WHERE r.oid = c.relowner AND (r.rolsuper OR r.rolname = current_user
      OR EXISTS (SELECT FROM pg_catalog.pg_database AS d WHERE d.datname = current_database() AND d.datdba = r.oid)
      OR EXISTS (SELECT FROM pg_catalog.pg_namespace AS ours WHERE ours.nspname = 'pawl' AND ours.nspowner = r.oid)))
ORDER BY 1;

-- name: SchemaMayMigrate :one
-- Reports whether this role can apply a migration: create objects, and change the existing ones.
SELECT (has_database_privilege(current_database(), 'CREATE') AND has_schema_privilege('public', 'CREATE')
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_namespace AS n WHERE n.nspname IN ('pawl', 'books')
    AND NOT pg_has_role(n.nspowner, 'USAGE')))::boolean AS may;
