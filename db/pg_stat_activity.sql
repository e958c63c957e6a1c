-- For sqlc alone, which does not know this view of PostgreSQL's: the columns of it that statements use.
CREATE TABLE pg_stat_activity (
  pid              integer,
  usesysid         oid,
  datid            oid,
  datname          text,
  application_name text,
  backend_type     text,
  state            text,
  query            text,
  backend_start    timestamptz,
  query_start      timestamptz,
  state_change     timestamptz,
  wait_event_type  text
);
