-- +goose Up

-- The feed: every row of the history and of the stock movements is an event, and has a number. Nothing is copied. The number
-- is not in the row: a relay, one of all replicas, numbers what has become final in batches, and a batch is one row here. Which events
-- a batch has, and in which order, follows from the rows themselves, whenever they are read (pawl.events).
--
-- A row's position is its transaction. Below the horizon, which is the oldest transaction that has not ended, nothing is added
-- any more. But an order may have a row with a lower position than the row before it: a statement takes its transaction number at
-- its first row, and may come to the order later than a younger statement. So with each row go all rows of its order before it, even
-- those from above the horizon: they were committed before it. Such a row is early.
--
-- LIMIT 1 has the planner take one row after the other by its key: it does not know how few rows there will be.
CREATE TABLE pawl.event_batches (
  first_event_no bigint PRIMARY KEY,
  last_event_no  bigint NOT NULL,
  position_from  bigint NOT NULL,
  position_to    bigint NOT NULL,    -- this one is not in it
  at             timestamptz NOT NULL DEFAULT now(),
  epoch          integer NOT NULL,
  whole          boolean NOT NULL,   -- it is one transaction, with any number of events, that of position_to less 1; any other has fewer than a thousand of each kind
  CONSTRAINT event_batches_events CHECK (last_event_no >= first_event_no),
  CONSTRAINT event_batches_positions CHECK (position_to > position_from)
);
CREATE UNIQUE INDEX event_batches_position ON pawl.event_batches (position_to);

-- Rows that went with a batch before that of their position. There are next to none.
CREATE TABLE pawl.early_events (
  first_event_no bigint NOT NULL, -- of the batch they went with
  position       bigint NOT NULL,
  order_no       bigint NOT NULL, -- 0: a stock movement
  seq            bigint NOT NULL, -- its version, of a stock movement
  item           text COLLATE "C" NOT NULL, -- '': a transition
  CONSTRAINT early_events_pkey PRIMARY KEY (position, order_no, item, seq)
);
CREATE INDEX early_events_batch ON pawl.early_events (first_event_no);

-- The relay's lease.
CREATE TABLE pawl.event_relay (
  singleton         boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  due_at            timestamptz,       -- until then only the owner numbers events
  wanted_until      timestamptz,       -- until then somebody listens, so events are numbered soon
  fence             bigint NOT NULL DEFAULT 0,
  position_offset   bigint NOT NULL DEFAULT 0, -- what the default of a position adds to the number of the transaction
  epoch             integer NOT NULL DEFAULT 0,
  owner             uuid,
  history           text COLLATE "C"   -- timeline and database of the epoch
);
INSERT INTO pawl.event_relay DEFAULT VALUES;

-- When a standby takes over, or an older state is restored, events may be gone that somebody has seen, and others get their
-- numbers. So another epoch begins with it. It is named by the minute in which it began, because the history that is gone may have had
-- an epoch with the next number, too.
CREATE TABLE pawl.event_epochs (
  epoch          integer PRIMARY KEY,
  first_event_no bigint NOT NULL
);

CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.event_relay FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.event_epochs FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- The events, in batches. Ask for one batch at a time (first_event_no): its rows are found by their position. The effective position
-- of a row is the lowest of those of its order from this row on. An archive may have taken rows away. Then those that are left
-- are numbered from the end: who goes on after a number gets some again, and misses none.
CREATE VIEW pawl.events AS
SELECT b.first_event_no, b.epoch, e.event_no, e.order_no, e.item, e.seq, e.at, e.from_status, e.to_status, e.verb,
  e.actor, e.on_behalf_of, e.reason, e.request_id, e.change, e.on_hand
FROM pawl.event_batches AS b CROSS JOIN LATERAL (
  SELECT (b.last_event_no + 1 - row_number() OVER (ORDER BY p.effective DESC, p.order_no DESC, p.item DESC, p.seq DESC))::bigint AS event_no, p.*
  FROM (
    SELECT r.*, min(r.position) OVER (PARTITION BY r.order_no, r.item ORDER BY r.seq DESC) AS effective
    FROM (
      SELECT t.order_no, ''::text COLLATE "C" AS item, t.seq::bigint AS seq, t.position, t.at, t.from_status, t.to_status, t.verb,
        t.actor, t.on_behalf_of, t.reason, t.request_id, NULL::bigint AS change, NULL::bigint AS on_hand
      FROM (
        (SELECT w.* FROM pawl.transitions AS w
         WHERE NOT b.whole AND w.position >= b.position_from AND w.position < b.position_to AND NOT EXISTS (
           SELECT FROM pawl.early_events AS y
           WHERE y.position >= b.position_from AND y.position < b.position_to AND y.position = w.position AND y.order_no = w.order_no AND y.item = '' AND y.seq = w.seq)
         ORDER BY w.position LIMIT 1000)
        UNION ALL
        SELECT w.* FROM pawl.transitions AS w
        WHERE b.whole AND w.position = b.position_to - 1 AND NOT EXISTS (
           SELECT FROM pawl.early_events AS y
           WHERE y.position >= b.position_from AND y.position < b.position_to AND y.position = w.position AND y.order_no = w.order_no AND y.item = '' AND y.seq = w.seq)
      ) AS t
      UNION ALL
      SELECT t.order_no, '', t.seq, t.position, t.at, t.from_status, t.to_status, t.verb, t.actor, t.on_behalf_of, t.reason, t.request_id, NULL, NULL
      FROM pawl.early_events AS y
      CROSS JOIN LATERAL (SELECT w.* FROM pawl.transitions AS w WHERE w.order_no = y.order_no AND w.seq = y.seq LIMIT 1) AS t
      WHERE y.first_event_no = b.first_event_no
      UNION ALL
      SELECT 0, s.item, s.version, s.position, s.at, NULL, s.kind, NULL, s.actor, s.on_behalf_of, s.reason, s.request_id, s.change, s.on_hand
      FROM (
        (SELECT w.* FROM pawl.stock_movements AS w
         WHERE NOT b.whole AND w.position >= b.position_from AND w.position < b.position_to AND NOT EXISTS (
           SELECT FROM pawl.early_events AS y
           WHERE y.position >= b.position_from AND y.position < b.position_to AND y.position = w.position AND y.order_no = 0 AND y.item = w.item AND y.seq = w.version)
         ORDER BY w.position LIMIT 1000)
        UNION ALL
        SELECT w.* FROM pawl.stock_movements AS w
        WHERE b.whole AND w.position = b.position_to - 1 AND NOT EXISTS (
           SELECT FROM pawl.early_events AS y
           WHERE y.position >= b.position_from AND y.position < b.position_to AND y.position = w.position AND y.order_no = 0 AND y.item = w.item AND y.seq = w.version)
      ) AS s
      UNION ALL
      SELECT 0, s.item, s.version, s.position, s.at, NULL, s.kind, NULL, s.actor, s.on_behalf_of, s.reason, s.request_id, s.change, s.on_hand
      FROM pawl.early_events AS y
      CROSS JOIN LATERAL (SELECT w.* FROM pawl.stock_movements AS w WHERE w.item = y.item AND w.version = y.seq LIMIT 1) AS s
      WHERE y.first_event_no = b.first_event_no
    ) AS r
  ) AS p
) AS e;

-- The same for people. All of a long feed is read at once only without first_event_no.
CREATE VIEW books.event_batches AS
SELECT b.first_event_no, b.last_event_no, b.epoch, b.at FROM pawl.event_batches b;

CREATE VIEW books.events AS
SELECT e.event_no, e.epoch || '.' || e.event_no AS cursor, (SELECT o.order_id FROM pawl.orders o WHERE o.order_no = e.order_no)::text AS order_id, nullif(e.item, '') AS stock_item, e.seq, e.at,
  e.from_status, CASE WHEN e.item = '' THEN e.to_status END AS to_status, CASE WHEN e.item = '' THEN e.verb ELSE e.to_status END AS verb,
  coalesce(e.actor, 'system') AS actor, e.on_behalf_of, e.reason, e.request_id, e.change, e.on_hand, e.first_event_no
FROM pawl.events e;

CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.event_batches
FOR EACH ROW EXECUTE FUNCTION books.refuse_write();

-- +goose Down
DROP VIEW books.events, books.event_batches, pawl.events;
DROP TABLE pawl.event_epochs, pawl.event_relay, pawl.early_events, pawl.event_batches;
