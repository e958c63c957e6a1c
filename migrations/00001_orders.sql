-- +goose Up

-- One row for ever: part of every key sent downstream, so that a database that
-- was dropped and made again never re-uses a key a provider still remembers.
CREATE TABLE installation (
  singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  id         uuid NOT NULL DEFAULT gen_random_uuid(),
  created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO installation DEFAULT VALUES;

-- An order is its row. Columns that every move writes stand together, so that
-- the WAL record of a move holds little more than them.
CREATE TABLE orders (
  order_no       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  created_at     timestamptz NOT NULL DEFAULT now(),
  due_at         timestamptz,                     -- when anybody may pick the order up
  finished_at    timestamptz,
  owner          uuid,                            -- the process that drives it
  fence          bigint NOT NULL DEFAULT 0,       -- raised by every claim
  generation     integer NOT NULL DEFAULT 0,      -- raised by every redrive
  quantity       integer NOT NULL DEFAULT 1,
  seq            integer NOT NULL DEFAULT 1,      -- raised by every write, number of its history row
  take_overs     smallint NOT NULL DEFAULT 0,     -- claims since the last move
  status         text COLLATE "C" NOT NULL,
  hold           text COLLATE "C",                -- what a waiting order waits for
  hold_reason    text,
  stop_requested text COLLATE "C",
  outcome        text COLLATE "C",                -- fixed by the first undo move
  ended_as       text COLLATE "C",                -- written by the final move only
  failure_step   text COLLATE "C",
  failure_code   text,
  failure_detail text,
  order_id       text COLLATE "C" NOT NULL UNIQUE,
  currency       text COLLATE "C" NOT NULL,
  item           text COLLATE "C" NOT NULL,
  amount         numeric NOT NULL,
  metadata       jsonb,

  CONSTRAINT orders_status CHECK (status IN
    ('pending', 'charging', 'reserving', 'confirming', 'completed',
     'releasing', 'refunding', 'failed', 'canceled')),
  CONSTRAINT orders_input CHECK (amount >= 0 AND amount < 1e15 AND quantity >= 1
    AND scale(amount) <= 4 AND order_id <> '' AND item <> '' AND currency ~ '^[A-Z]{3}$'),
  CONSTRAINT orders_times CHECK (isfinite(created_at) AND isfinite(due_at) AND isfinite(finished_at)),
  CONSTRAINT orders_counters CHECK (fence >= 0 AND generation >= 0 AND seq >= 1 AND take_overs >= 0),
  CONSTRAINT orders_words CHECK (
    hold IN ('retry', 'callback', 'scheduled', 'queued', 'approval', 'paused', 'attention')
    AND stop_requested IN ('cancel', 'pause', 'deadline')
    AND outcome IN ('failed', 'canceled')
    AND failure_step IN ('charge', 'reserve', 'confirm')),
  -- Finished: nobody drives it, nothing waits. Not finished: it is due some time,
  -- or held for a reason. Held: nobody drives it.
  CONSTRAINT orders_driven CHECK (CASE
    WHEN status IN ('completed', 'failed', 'canceled')
      THEN ended_as = status AND ended_as IS NOT NULL AND hold IS NULL AND due_at IS NULL AND owner IS NULL
    WHEN hold IS NULL THEN ended_as IS NULL AND due_at IS NOT NULL
    ELSE ended_as IS NULL AND owner IS NULL END)
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
