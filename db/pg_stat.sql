-- For sqlc alone, which does not know these views of PostgreSQL's: the columns of them that statements use.
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

CREATE TABLE pg_stat_replication (
  pid        integer,
  state      text,
  sync_state text
);

CREATE TABLE pg_replication_slots (
  slot_type  text,
  active_pid integer
);
