-- +goose Up

-- All objects are in a schema of their own, and are named with it. So a table or an operator that another role
-- creates in a schema of the search_path is never used instead. Views for people are in `books`.
CREATE SCHEMA pawl;

-- Always one row. The id is part of every key that is sent to providers, so that a database that was dropped and
-- created again never reuses a key that a provider still remembers.
CREATE TABLE pawl.installation (
  singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  id         uuid NOT NULL DEFAULT gen_random_uuid(),
  created_at timestamptz NOT NULL DEFAULT now(),

  -- Where the database belongs, stored when a service first starts on it. A service that finds itself elsewhere is on
  -- a copy, and only reads. A restored dump has another identifier or database. A copy of the files has the same
  -- ones, but its service may have another name.
  system_identifier bigint,           -- of the cluster; null: unknown
  database_oid      oid,
  name              text COLLATE "C", -- given by the owner; null: none
  cell              text COLLATE "C" NOT NULL DEFAULT '0/1' CHECK (cell ~ '^[0-9]+(\+[0-9]+)?/[0-9]+$'), -- which orders it has

  -- Callback tokens are derived from it: a reader of it can answer for a provider.
  callback_secret   bytea NOT NULL DEFAULT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')
);
INSERT INTO pawl.installation DEFAULT VALUES;

-- The identifier of this cluster, or null if the role may not read it.
-- +goose StatementBegin
CREATE FUNCTION pawl.system_identifier() RETURNS bigint LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN (SELECT c.system_identifier FROM pg_control_system() AS c);
EXCEPTION WHEN insufficient_privilege THEN
  RETURN NULL;
END $$;
-- +goose StatementEnd

-- The constraints of values, as domains. PostgreSQL caches the check of a domain for the next statement. The text of
-- a table CHECK, like the condition of a trigger, is parsed again for every statement that writes the table, whatever
-- columns it sets. For single orders, that was a fifth of its work.
CREATE DOMAIN pawl.order_status AS text COLLATE "C" CONSTRAINT order_status CHECK (VALUE IN
  ('pending', 'charging', 'reserving', 'confirming', 'completed',
   'releasing', 'refunding', 'failed', 'canceled'));
CREATE DOMAIN pawl.order_hold AS text COLLATE "C" CONSTRAINT order_hold CHECK (VALUE IN
  ('retry', 'callback', 'scheduled', 'queued', 'approval', 'paused', 'attention'));
CREATE DOMAIN pawl.order_stop AS text COLLATE "C" CONSTRAINT order_stop CHECK (VALUE IN ('cancel', 'pause', 'deadline'));
CREATE DOMAIN pawl.order_outcome AS text COLLATE "C" CONSTRAINT order_outcome CHECK (VALUE IN ('failed', 'canceled'));
CREATE DOMAIN pawl.order_step AS text COLLATE "C" CONSTRAINT order_step CHECK (VALUE IN ('charge', 'reserve', 'confirm'));
CREATE DOMAIN pawl.given_name AS text COLLATE "C" CONSTRAINT given_name CHECK (VALUE <> '');
CREATE DOMAIN pawl.currency_code AS text COLLATE "C" CONSTRAINT currency_code CHECK (VALUE ~ '^[A-Z]{3}$');
CREATE DOMAIN pawl.money_amount AS numeric CONSTRAINT money_amount CHECK (VALUE >= 0 AND VALUE < 1e15 AND scale(VALUE) <= 4);
CREATE DOMAIN pawl.item_quantity AS integer CONSTRAINT item_quantity CHECK (VALUE >= 1);
CREATE DOMAIN pawl.take_over_count AS smallint CONSTRAINT take_over_count CHECK (VALUE >= 0);
CREATE DOMAIN pawl.moment AS timestamptz CONSTRAINT moment CHECK (isfinite(VALUE));

-- An order is one row. Columns that every move writes are next to each other, so that the WAL record of a move has
-- little more than them.
CREATE TABLE pawl.orders (
  order_no       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  created_at     pawl.moment NOT NULL DEFAULT now(),
  due_at         pawl.moment,                          -- when any replica may claim the order
  finished_at    pawl.moment,
  owner          uuid,                            -- the process that drives it
  fence          bigint NOT NULL DEFAULT 0,       -- raised by every claim
  generation     integer NOT NULL DEFAULT 0,      -- raised by every redrive
  quantity       pawl.item_quantity NOT NULL DEFAULT 1,
  seq            integer NOT NULL DEFAULT 1,      -- raised by every write, number of its history row
  take_overs     pawl.take_over_count NOT NULL DEFAULT 0, -- claims since the last move
  status         pawl.order_status NOT NULL,
  hold           pawl.order_hold,                      -- what a waiting order waits for
  hold_reason    text,
  stop_requested pawl.order_stop,
  outcome        pawl.order_outcome,                   -- set by the first undoing move
  ended_as       pawl.order_status,                    -- written by the final move only
  failure_step   pawl.order_step,
  failure_code   text,
  failure_detail text,
  order_id       pawl.given_name NOT NULL UNIQUE,
  currency       pawl.currency_code NOT NULL,
  item           text COLLATE "C" NOT NULL,       -- '' if the order has lines
  amount         pawl.money_amount NOT NULL,
  metadata       jsonb,
  submitted_by   text COLLATE "C",                -- the principal that sent it; null: the service was open

  -- Columns for remote steps, people and deadlines. All of them may be null, so that an order that the ledger
  -- completes pays nothing for them. They have no checks, which cost every statement (see above); `pawl verify`
  -- checks them.
  policy          integer,          -- version it started with; null: the ledger for every step
  calls           integer,          -- number of calls, over all steps and generations, and so the number of the last one
  retries         integer,          -- retries in the current window, by answers that count; null: no call has left the step unsettled
  retry_window_started_at timestamptz, -- when that window began
  in_doubt_since  timestamptz,      -- time of the first call that may have taken effect unconfirmed
  start_at        timestamptz,      -- earliest start
  complete_by     timestamptz,      -- the deadline; afterwards the order is undone
  reservation_ttl double precision, -- seconds a reservation waits for its confirmation
  reserved_until  timestamptz,      -- end of that time
  approval_until  timestamptz,      -- set when the wait for approval begins; the year 9999: no timeout
  approved_at     timestamptz,
  permit_at       timestamptz,      -- when it got its concurrency permit
  customer_id     text COLLATE "C",
  payment_method  text,             -- opaque; never shown
  concurrency_key text COLLATE "C",
  action          jsonb,            -- what the customer must do
  charge_operations integer,        -- how many were requested, and so the number of the last one; null: none
  lines           json,             -- as the API writes them, to the byte; null: it is an order of one item
  disputes        integer,          -- number of rows in disputes; null: none
  route           text COLLATE "C"  -- the provider that charges its generation, by its name in the policy; null: there is only one
) WITH (
  -- There is room for three more versions of a row, so moves stay on its page (HOT).
  fillfactor = 50,
  -- Every ended order leaves a dead index entry where the claim scan starts.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = false
);

-- The units of each item of an order, numbered in the order of the items, in which stock rows are locked. Lines of
-- another kind have no stock. The body is parsed here, so it depends on no search_path.
-- +goose StatementBegin
CREATE FUNCTION pawl.items_of(item text, quantity integer, lines json) RETURNS TABLE (number smallint, name text, units integer)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
  SELECT 1::smallint, items_of.item, items_of.quantity WHERE items_of.lines IS NULL
  UNION ALL
  SELECT (row_number() OVER (ORDER BY l.item COLLATE "C"))::smallint, l.item, sum(l.quantity)::integer
  FROM json_to_recordset(items_of.lines) AS l(kind text, item text, quantity integer) WHERE l.kind IS NULL GROUP BY l.item;
END;
-- +goose StatementEnd

-- Whether the sequence of order_no may give the next number. Orders are admitted without waiting for the disk, so a
-- crash can lose the last orders with their numbers, while replicas still have them in memory. PostgreSQL empties an
-- unlogged table after a crash, and it is empty on a promoted standby. An order is admitted only while there is a
-- current numbering. Without one, OrderNumberingRenew moves the sequence beyond all numbers that can have been lost,
-- and writes the row: so no two orders have the same number. The start time and the file identify a row that was
-- restored from a dump, or kept over a restart.
CREATE UNLOGGED TABLE pawl.order_numbering (
  singleton         boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  server_started_at timestamptz NOT NULL,
  filenode          oid NOT NULL,
  relaxed           boolean NOT NULL -- steps of orders may commit without waiting for the disk, because the table is unlogged
);
CREATE VIEW pawl.current_numbering AS
SELECT n.relaxed FROM pawl.order_numbering AS n
WHERE n.server_started_at = pg_postmaster_start_time() AND n.filenode = pg_relation_filenode('pawl.order_numbering');
INSERT INTO pawl.order_numbering (server_started_at, filenode, relaxed)
VALUES (pg_postmaster_start_time(), pg_relation_filenode('pawl.order_numbering'), true);

-- The table begins with 128 empty pages. A plan reads all of a table that is so small that this seems cheaper than an
-- index look-up, and connections keep such a plan while the table grows: ten times slower, for minutes. This does not
-- depend on settings or statistics.
ALTER TABLE pawl.orders SET (fillfactor = 10);
INSERT INTO pawl.orders (due_at, status, order_id, currency, item, amount, failure_detail)
SELECT now(), 'pending', page::text, 'XXX', 'x', 0, repeat('x', 900) FROM generate_series(1, 128) AS page;
DELETE FROM pawl.orders;
ALTER TABLE pawl.orders SET (fillfactor = 50);
ALTER TABLE pawl.orders ALTER COLUMN order_no RESTART;

-- No index has a column that a move changes, except for the first and the final move: status, seq and fence are in
-- none of them, nor in their predicates.
-- hold is for lists: they skip orders that wait for a retry without reading their rows.
CREATE INDEX orders_due ON pawl.orders (due_at, hold) WHERE due_at IS NOT NULL;
CREATE INDEX orders_held ON pawl.orders (hold, order_no) WHERE hold IS NOT NULL;
CREATE INDEX orders_held_item ON pawl.orders (item, order_no) WHERE hold IS NOT NULL;
CREATE INDEX orders_ended ON pawl.orders (ended_as, order_no) WHERE ended_as IN ('failed', 'canceled');
-- The outcome comes first: otherwise a list of an item's failed orders would read all its canceled ones.
CREATE INDEX orders_ended_item ON pawl.orders (ended_as, item, order_no) WHERE ended_as IN ('failed', 'canceled');
-- One index for both kinds of deadline: every index of a table costs every statement that writes the table.
CREATE INDEX orders_expiry ON pawl.orders (least(complete_by, reserved_until))
  WHERE (complete_by IS NOT NULL OR reserved_until IS NOT NULL) AND ended_as IS NULL;
CREATE INDEX orders_concurrency ON pawl.orders (concurrency_key, order_no) WHERE concurrency_key IS NOT NULL AND ended_as IS NULL;
CREATE INDEX orders_customer ON pawl.orders (customer_id, order_no) WHERE customer_id IS NOT NULL;

-- +goose Down
DROP VIEW pawl.current_numbering;
DROP TABLE pawl.order_numbering;
DROP FUNCTION pawl.items_of(text, integer, json);
DROP TABLE pawl.orders;
DROP FUNCTION pawl.system_identifier();
DROP TABLE pawl.installation;
DROP DOMAIN pawl.order_status, pawl.order_hold, pawl.order_stop, pawl.order_outcome, pawl.order_step, pawl.given_name, pawl.currency_code,
  pawl.money_amount, pawl.item_quantity, pawl.take_over_count, pawl.moment;
DROP SCHEMA pawl;
