-- +goose Up

-- One row for ever: part of every key sent downstream, so that a database that
-- was dropped and made again never re-uses a key a provider still remembers.
CREATE TABLE installation (
  singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  id         uuid NOT NULL DEFAULT gen_random_uuid(),
  created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO installation DEFAULT VALUES;

-- What a value may be, said once, as types. PostgreSQL keeps the check of a domain ready
-- for the next statement; the text of a CHECK of a table it reads anew for every statement
-- that writes the table, whatever columns that sets, and so it does with the condition of
-- a trigger. At one order at a time that was a fifth of its work.
CREATE DOMAIN order_status AS text COLLATE "C" CONSTRAINT order_status CHECK (VALUE IN
  ('pending', 'charging', 'reserving', 'confirming', 'completed',
   'releasing', 'refunding', 'failed', 'canceled'));
CREATE DOMAIN order_hold AS text COLLATE "C" CONSTRAINT order_hold CHECK (VALUE IN
  ('retry', 'callback', 'scheduled', 'queued', 'approval', 'paused', 'attention'));
CREATE DOMAIN order_stop AS text COLLATE "C" CONSTRAINT order_stop CHECK (VALUE IN ('cancel', 'pause', 'deadline'));
CREATE DOMAIN order_outcome AS text COLLATE "C" CONSTRAINT order_outcome CHECK (VALUE IN ('failed', 'canceled'));
CREATE DOMAIN order_step AS text COLLATE "C" CONSTRAINT order_step CHECK (VALUE IN ('charge', 'reserve', 'confirm'));
CREATE DOMAIN given_name AS text COLLATE "C" CONSTRAINT given_name CHECK (VALUE <> '');
CREATE DOMAIN currency_code AS text COLLATE "C" CONSTRAINT currency_code CHECK (VALUE ~ '^[A-Z]{3}$');
CREATE DOMAIN money_amount AS numeric CONSTRAINT money_amount CHECK (VALUE >= 0 AND VALUE < 1e15 AND scale(VALUE) <= 4);
CREATE DOMAIN item_quantity AS integer CONSTRAINT item_quantity CHECK (VALUE >= 1);
CREATE DOMAIN take_over_count AS smallint CONSTRAINT take_over_count CHECK (VALUE >= 0);
CREATE DOMAIN moment AS timestamptz CONSTRAINT moment CHECK (isfinite(VALUE));

-- An order is its row. Columns that every move writes stand together, so that
-- the WAL record of a move holds little more than them.
CREATE TABLE orders (
  order_no       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  created_at     moment NOT NULL DEFAULT now(),
  due_at         moment,                          -- when anybody may pick the order up
  finished_at    moment,
  owner          uuid,                            -- the process that drives it
  fence          bigint NOT NULL DEFAULT 0,       -- raised by every claim
  generation     integer NOT NULL DEFAULT 0,      -- raised by every redrive
  quantity       item_quantity NOT NULL DEFAULT 1,
  seq            integer NOT NULL DEFAULT 1,      -- raised by every write, number of its history row
  take_overs     take_over_count NOT NULL DEFAULT 0, -- claims since the last move
  status         order_status NOT NULL,
  hold           order_hold,                      -- what a waiting order waits for
  hold_reason    text,
  stop_requested order_stop,
  outcome        order_outcome,                   -- fixed by the first undo move
  ended_as       order_status,                    -- written by the final move only
  failure_step   order_step,
  failure_code   text,
  failure_detail text,
  order_id       given_name NOT NULL UNIQUE,
  currency       currency_code NOT NULL,
  item           given_name NOT NULL,
  amount         money_amount NOT NULL,
  metadata       jsonb
) WITH (
  -- Three versions of a row fit beside the first, so moves stay on the page (HOT).
  fillfactor = 50,
  -- Every finished order leaves a dead entry where the claim scan starts.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_cost_delay = 0,
  vacuum_truncate = false
);

-- The table begins with 128 empty pages. While it is smaller than an index look-up is
-- dear, a plan reads all of it, and connections keep such a plan while it grows: ten
-- times slower, for minutes. Nothing of this depends on settings or on statistics.
ALTER TABLE orders SET (fillfactor = 10);
INSERT INTO orders (due_at, status, order_id, currency, item, amount, failure_detail)
SELECT now(), 'pending', page::text, 'XXX', 'x', 0, repeat('x', 900) FROM generate_series(1, 128) AS page;
DELETE FROM orders;
ALTER TABLE orders SET (fillfactor = 50);
ALTER TABLE orders ALTER COLUMN order_no RESTART;

-- No index holds a column that a move changes, but for the first and the final
-- move: status, seq and fence stay out of all of them, and of their predicates.
CREATE INDEX orders_due ON orders (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX orders_held ON orders (hold, order_no) WHERE hold IS NOT NULL;
CREATE INDEX orders_ended ON orders (ended_as, order_no) WHERE ended_as IN ('failed', 'canceled');
CREATE INDEX orders_ended_item ON orders (item, order_no) WHERE ended_as IN ('failed', 'canceled');

-- +goose Down
DROP TABLE orders;
DROP TABLE installation;
DROP DOMAIN order_status, order_hold, order_stop, order_outcome, order_step, given_name, currency_code,
  money_amount, item_quantity, take_over_count, moment;
