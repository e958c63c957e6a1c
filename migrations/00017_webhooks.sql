-- +goose Up

-- Where events are sent to. Each endpoint is sent to by one replica, its owner, which holds a lease as orders are held:
-- until due_at. Every statement of an owner names its fence. A statement that goes by what was read before compares seq, too,
-- because deliveries of the same subject depend on each other.
CREATE TABLE pawl.webhook_endpoints (
  endpoint_no     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- its id is whe_ and this number
  version         integer NOT NULL DEFAULT 1,   -- raised whenever it is changed, enabled or disabled
  failures        integer NOT NULL DEFAULT 0,   -- attempts that failed since the last one that did not
  seq             bigint NOT NULL DEFAULT 0,    -- raised by every write of it or of its deliveries, but for its lease
  event_no        bigint NOT NULL,              -- up to this event of the feed its deliveries are stored
  delivery_no     bigint NOT NULL DEFAULT 0,    -- its last delivery
  fence           bigint NOT NULL DEFAULT 0,    -- raised by every claim
  due_at          timestamptz NOT NULL DEFAULT now(), -- until then only its owner sends
  paused_until    timestamptz,                  -- nothing is sent before
  failing_since   timestamptz,                  -- of the first of the failures
  disabled_at     timestamptz,
  created_at      timestamptz NOT NULL DEFAULT now(),
  previous_secret_until timestamptz,
  owner           uuid,                         -- the process that sends; null: none
  state           text COLLATE "C" NOT NULL DEFAULT 'enabled', -- of one that is deleted: until its deliveries are removed
  disabled_reason text,
  created_by      text NOT NULL,                -- the principal
  secret          text NOT NULL,                -- whsec_ and a key in base64: what is sent is signed with it
  previous_secret text,                         -- what is sent is signed with this one, too, until then
  url             text NOT NULL,
  description     text,
  types           text[] NOT NULL DEFAULT '{}', -- of the events that it wants, such as order.completed or order.*; none: all
  CONSTRAINT webhook_endpoints_state CHECK (state IN ('enabled', 'disabled', 'deleted')),
  CONSTRAINT webhook_endpoints_disabled CHECK ((state = 'disabled') = (disabled_at IS NOT NULL) AND (disabled_at IS NULL) = (disabled_reason IS NULL)),
  CONSTRAINT webhook_endpoints_secret CHECK (secret ~ '^whsec_' AND (previous_secret IS NULL) = (previous_secret_until IS NULL)),
  CONSTRAINT webhook_endpoints_url CHECK (url ~ '^https?://' AND length(url) <= 2000)
);

-- An event for an endpoint. Of the deliveries of one subject at one endpoint only the first that is not finished is due; those
-- behind it have no due_at. The body is not kept: it is read from the feed again.
CREATE TABLE pawl.webhook_deliveries (
  delivery_no  bigint NOT NULL,
  event_no     bigint,                          -- of the feed; null: it is a message that is in none, with a body of its own
  seq          bigint,                          -- of the event: that of its order, or the version of its item
  created_at   timestamptz NOT NULL DEFAULT now(),
  due_at       timestamptz,                     -- of the next attempt; null: there is none, or not yet
  attempted_at timestamptz,                     -- of the last attempt
  finished_at  timestamptz,                     -- when it was delivered or skipped
  endpoint_no  integer NOT NULL,
  attempts     smallint NOT NULL DEFAULT 0,     -- since it was stored, or a person had it sent again
  state        text COLLATE "C" NOT NULL DEFAULT 'pending',
  type         text COLLATE "C" NOT NULL,       -- of the event
  event_id     text COLLATE "C" NOT NULL,       -- the receiver knows it by this one when it comes again
  subject      text COLLATE "C" NOT NULL,       -- what it is kept in order for: order 1042, item widget
  body         text,
  log          jsonb NOT NULL DEFAULT '[]',     -- the last attempts, oldest first
  CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (endpoint_no, delivery_no),
  CONSTRAINT webhook_deliveries_state CHECK (state IN ('pending', 'delivered', 'exhausted', 'skipped')),
  CONSTRAINT webhook_deliveries_due CHECK (due_at IS NULL OR state = 'pending'),
  CONSTRAINT webhook_deliveries_finished CHECK ((finished_at IS NOT NULL) = (state IN ('delivered', 'skipped'))),
  CONSTRAINT webhook_deliveries_body CHECK ((body IS NULL) = (event_no IS NOT NULL AND seq IS NOT NULL)),
  CONSTRAINT webhook_deliveries_log CHECK (jsonb_typeof(log) = 'array')
) WITH (vacuum_truncate = false);
ALTER TABLE pawl.webhook_deliveries SET (fillfactor = 10); -- as that of orders, it begins with empty pages
INSERT INTO pawl.webhook_deliveries (endpoint_no, delivery_no, type, event_id, subject, body)
SELECT 0, page, 'x', 'x', 'x', repeat('x', 900) FROM generate_series(1, 128) AS page;
DELETE FROM pawl.webhook_deliveries;
ALTER TABLE pawl.webhook_deliveries RESET (fillfactor);

CREATE INDEX webhook_deliveries_due ON pawl.webhook_deliveries (endpoint_no, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX webhook_deliveries_unfinished ON pawl.webhook_deliveries (endpoint_no, subject, delivery_no) WHERE finished_at IS NULL;
CREATE INDEX webhook_deliveries_exhausted ON pawl.webhook_deliveries (endpoint_no, delivery_no) WHERE state = 'exhausted';

CREATE VIEW books.webhook_endpoints AS
SELECT e.endpoint_no, e.url, e.description, e.types, e.state, e.disabled_reason, e.disabled_at,
       e.failures, e.failing_since, e.paused_until, e.event_no, e.created_at, e.created_by
FROM pawl.webhook_endpoints e WHERE e.state <> 'deleted';
CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.webhook_endpoints
FOR EACH ROW EXECUTE FUNCTION books.refuse_write();

CREATE VIEW books.webhook_deliveries AS
SELECT d.endpoint_no, d.delivery_no, d.event_no, d.event_id, d.type, d.subject, d.state, d.attempts,
       d.created_at, d.due_at, d.attempted_at, d.finished_at, d.log
FROM pawl.webhook_deliveries d;
CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.webhook_deliveries
FOR EACH ROW EXECUTE FUNCTION books.refuse_write();

-- +goose Down
DROP VIEW books.webhook_endpoints, books.webhook_deliveries;
DROP TABLE pawl.webhook_deliveries;
DROP TABLE pawl.webhook_endpoints;
