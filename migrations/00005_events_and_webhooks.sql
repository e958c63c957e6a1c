-- +goose Up

-- The feed: every row of the history and of the stock movements is an event with a number. Nothing is copied, and the
-- number is not in the row. A relay, which is one of the replicas, numbers rows that have become final in batches;
-- each batch is one row here. The events of a batch, and their order, follow from the rows themselves, whenever they
-- are read (pawl.events).
--
-- The position of a row is its transaction. Below the horizon, which is the oldest open transaction, no row is added
-- any more. But an order may have a row with a lower position than the row before it: a statement gets its
-- transaction number with its first row, and may reach the order later than a younger statement. So each row takes
-- all earlier rows of its order with it, even those above the horizon: they were committed before it. Such a row is
-- early.
CREATE TABLE pawl.event_batches (
  first_event_no bigint PRIMARY KEY,
  last_event_no  bigint NOT NULL,
  position_from  bigint NOT NULL,
  position_to    bigint NOT NULL,    -- exclusive
  at             timestamptz NOT NULL DEFAULT now(),
  epoch          integer NOT NULL,
  -- The batch is all of transaction position_to - 1, however many events that has. Other batches have fewer than a thousand
  -- transitions, and fewer than a thousand stock movements.
  whole          boolean NOT NULL,
  CONSTRAINT event_batches_events CHECK (last_event_no >= first_event_no),
  CONSTRAINT event_batches_positions CHECK (position_to > position_from)
);
CREATE UNIQUE INDEX event_batches_position ON pawl.event_batches (position_to);

-- Early rows: they are in an earlier batch than their position says. There are very few.
CREATE TABLE pawl.early_events (
  first_event_no bigint NOT NULL, -- of the batch that they are in
  position       bigint NOT NULL,
  order_no       bigint NOT NULL, -- 0: a stock movement
  seq            bigint NOT NULL, -- or the version of a stock movement
  item           text COLLATE "C" NOT NULL, -- '': a transition
  CONSTRAINT early_events_pkey PRIMARY KEY (position, order_no, item, seq)
);
CREATE INDEX early_events_batch ON pawl.early_events (first_event_no);

-- The relay's lease.
CREATE TABLE pawl.event_relay (
  singleton         boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  due_at            timestamptz,       -- until then only the owner numbers events
  wanted_until      timestamptz,       -- until then there is a listener, so events are numbered soon
  fence             bigint NOT NULL DEFAULT 0,
  position_offset   bigint NOT NULL DEFAULT 0, -- added to the transaction number in the default of a position
  epoch             integer NOT NULL DEFAULT 0,
  owner             uuid,
  history           text COLLATE "C"   -- timeline and database of the epoch
);
INSERT INTO pawl.event_relay DEFAULT VALUES;

-- When a standby takes over, or an older state is restored, events that were read may be lost, and others get their
-- numbers. So a new epoch begins. Its name includes the minute in which it began, because the lost history may have
-- had an epoch with the same number.
CREATE TABLE pawl.event_epochs (
  epoch          integer PRIMARY KEY,
  first_event_no bigint NOT NULL
);

CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.event_relay FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.event_epochs FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- The events, in batches. Read one batch at a time (first_event_no): its rows are found by their position. The
-- effective position of a row is the lowest among the rows of its order from this row on. If an archive has taken
-- rows away, the remaining ones are numbered from the end: a reader that continues after a number gets some events
-- again, and misses none. LIMIT 1 makes the planner look up each row by key; it can't estimate how few rows there
-- are.
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
           WHERE y.position >= b.position_from AND y.position < b.position_to AND y.position = w.position
             AND y.order_no = w.order_no AND y.item = '' AND y.seq = w.seq)
         ORDER BY w.position LIMIT 1000)
        UNION ALL
        SELECT w.* FROM pawl.transitions AS w
        WHERE b.whole AND w.position = b.position_to - 1 AND NOT EXISTS (
           SELECT FROM pawl.early_events AS y
           WHERE y.position >= b.position_from AND y.position < b.position_to AND y.position = w.position
             AND y.order_no = w.order_no AND y.item = '' AND y.seq = w.seq)
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
           WHERE y.position >= b.position_from AND y.position < b.position_to AND y.position = w.position
             AND y.order_no = 0 AND y.item = w.item AND y.seq = w.version)
         ORDER BY w.position LIMIT 1000)
        UNION ALL
        SELECT w.* FROM pawl.stock_movements AS w
        WHERE b.whole AND w.position = b.position_to - 1 AND NOT EXISTS (
           SELECT FROM pawl.early_events AS y
           WHERE y.position >= b.position_from AND y.position < b.position_to AND y.position = w.position
             AND y.order_no = 0 AND y.item = w.item AND y.seq = w.version)
      ) AS s
      UNION ALL
      SELECT 0, s.item, s.version, s.position, s.at, NULL, s.kind, NULL, s.actor, s.on_behalf_of, s.reason, s.request_id, s.change, s.on_hand
      FROM pawl.early_events AS y
      CROSS JOIN LATERAL (SELECT w.* FROM pawl.stock_movements AS w WHERE w.item = y.item AND w.version = y.seq LIMIT 1) AS s
      WHERE y.first_event_no = b.first_event_no
    ) AS r
  ) AS p
) AS e;

-- Webhook endpoints. Each is served by one replica, its owner, which holds a lease as for orders: until due_at. Every
-- statement of an owner compares the fence. A statement that depends on what was read before also compares seq,
-- because deliveries of the same subject depend on each other.
CREATE TABLE pawl.webhook_endpoints (
  endpoint_no     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- its id is whe_ and this number
  version         integer NOT NULL DEFAULT 1,   -- raised by every change, enabling and disabling
  failures        integer NOT NULL DEFAULT 0,   -- failed attempts since the last successful one
  seq             bigint NOT NULL DEFAULT 0,    -- raised by every write of it or of its deliveries, except for its lease
  event_no        bigint NOT NULL,              -- its deliveries are stored up to this event
  delivery_no     bigint NOT NULL DEFAULT 0,    -- number of its last delivery
  fence           bigint NOT NULL DEFAULT 0,    -- raised by every claim
  due_at          timestamptz NOT NULL DEFAULT now(), -- until then only its owner sends
  paused_until    timestamptz,                  -- nothing is sent before this time
  failing_since   timestamptz,                  -- time of the first of these failures
  disabled_at     timestamptz,
  created_at      timestamptz NOT NULL DEFAULT now(),
  previous_secret_until timestamptz,
  owner           uuid,                         -- the process that sends; null: none
  state           text COLLATE "C" NOT NULL DEFAULT 'enabled', -- deleted: until its deliveries are removed
  disabled_reason text,
  created_by      text NOT NULL,                -- the principal
  secret          text NOT NULL,                -- whsec_ and a key in base64; signs deliveries
  previous_secret text,                         -- also signs deliveries, until then
  last_failure    jsonb,                        -- the attempt, as in the log of a delivery; null: the last one succeeded
  url             text NOT NULL,
  description     text,
  types           text[] NOT NULL DEFAULT '{}', -- of events, such as order.completed or order.*; none: all
  CONSTRAINT webhook_endpoints_state CHECK (state IN ('enabled', 'disabled', 'deleted')),
  CONSTRAINT webhook_endpoints_disabled CHECK ((state = 'disabled') = (disabled_at IS NOT NULL)
    AND (disabled_at IS NULL) = (disabled_reason IS NULL)),
  CONSTRAINT webhook_endpoints_secret CHECK (secret ~ '^whsec_' AND (previous_secret IS NULL) = (previous_secret_until IS NULL)),
  CONSTRAINT webhook_endpoints_url CHECK (url ~ '^https?://' AND length(url) <= 2000)
);

-- A delivery of an event to an endpoint. Of the deliveries of one subject to one endpoint, only the first unfinished
-- one is due; later ones have no due_at. The body is not stored: it is read from the feed again.
CREATE TABLE pawl.webhook_deliveries (
  delivery_no  bigint NOT NULL,
  event_no     bigint,                          -- of the feed; null: a message that is not in the feed, with a body of its own
  seq          bigint,                          -- of the event: seq of its order, or version of its item
  created_at   timestamptz NOT NULL DEFAULT now(),
  due_at       timestamptz,                     -- of the next attempt; null: none, or not yet
  attempted_at timestamptz,                     -- of the last attempt
  finished_at  timestamptz,                     -- when it was delivered or skipped
  endpoint_no  integer NOT NULL,
  attempts     smallint NOT NULL DEFAULT 0,     -- since it was stored, or sent again by a person
  state        text COLLATE "C" NOT NULL DEFAULT 'pending',
  type         text COLLATE "C" NOT NULL,       -- of the event
  event_id     text COLLATE "C" NOT NULL,       -- by which the receiver recognizes a repetition
  subject      text COLLATE "C" NOT NULL,       -- deliveries of one subject are in order: order 1042, item widget
  body         text,
  log          jsonb NOT NULL DEFAULT '[]',     -- the last attempts, oldest first
  CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (endpoint_no, delivery_no),
  CONSTRAINT webhook_deliveries_state CHECK (state IN ('pending', 'delivered', 'exhausted', 'skipped')),
  CONSTRAINT webhook_deliveries_due CHECK (due_at IS NULL OR state = 'pending'),
  CONSTRAINT webhook_deliveries_finished CHECK ((finished_at IS NOT NULL) = (state IN ('delivered', 'skipped'))),
  CONSTRAINT webhook_deliveries_body CHECK ((body IS NULL) = (event_no IS NOT NULL AND seq IS NOT NULL)),
  CONSTRAINT webhook_deliveries_log CHECK (jsonb_typeof(log) = 'array')
) WITH (vacuum_truncate = false);
ALTER TABLE pawl.webhook_deliveries SET (fillfactor = 10); -- empty pages, as in pawl.orders
INSERT INTO pawl.webhook_deliveries (endpoint_no, delivery_no, type, event_id, subject, body)
SELECT 0, page, 'x', 'x', 'x', repeat('x', 900) FROM generate_series(1, 128) AS page;
DELETE FROM pawl.webhook_deliveries;
ALTER TABLE pawl.webhook_deliveries RESET (fillfactor);

CREATE INDEX webhook_deliveries_due ON pawl.webhook_deliveries (endpoint_no, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX webhook_deliveries_unfinished ON pawl.webhook_deliveries (endpoint_no, subject, delivery_no) WHERE finished_at IS NULL;
CREATE INDEX webhook_deliveries_exhausted ON pawl.webhook_deliveries (endpoint_no, delivery_no) WHERE state = 'exhausted';
-- For what was sent about an order or an item, and what people have skipped.
CREATE INDEX webhook_deliveries_subject ON pawl.webhook_deliveries (endpoint_no, subject, delivery_no);
CREATE INDEX webhook_deliveries_skipped ON pawl.webhook_deliveries (endpoint_no, delivery_no) WHERE state = 'skipped';

-- Requests of people about webhook endpoints and their deliveries. A repeated request is recognized by its row, and
-- has no effect. Of two changes of one endpoint, the later one has the larger number.
CREATE TABLE pawl.webhook_changes (
  change_no    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  delivery_no  bigint,                 -- null: the whole endpoint
  at           timestamptz NOT NULL DEFAULT now(),
  endpoint_no  integer NOT NULL,
  deliveries   integer,                -- how many were recovered, or skipped when it was enabled from now on
  verb         text COLLATE "C" NOT NULL,
  actor        text COLLATE "C" NOT NULL, -- the principal that requested it
  on_behalf_of text,                   -- on whose behalf it says it acts
  reason       text,
  request_id   text COLLATE "C" NOT NULL, -- the caller's, or one of ours
  fingerprint  bytea NOT NULL,         -- a hash of the request
  CONSTRAINT webhook_changes_verb
    CHECK (verb IN ('created', 'changed', 'deleted', 'secret_rotated', 'enabled', 'disabled', 'resent', 'skipped', 'recovered')),
  CONSTRAINT webhook_changes_delivery CHECK ((delivery_no IS NOT NULL) = (verb IN ('resent', 'skipped')))
);
CREATE UNIQUE INDEX webhook_changes_request ON pawl.webhook_changes (request_id, actor);
CREATE INDEX webhook_changes_delivery ON pawl.webhook_changes (endpoint_no, delivery_no);
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON pawl.webhook_changes FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- +goose Down
DROP TABLE pawl.webhook_changes;
DROP TABLE pawl.webhook_deliveries;
DROP TABLE pawl.webhook_endpoints;
DROP VIEW pawl.events;
DROP TABLE pawl.event_epochs, pawl.event_relay, pawl.early_events, pawl.event_batches;
