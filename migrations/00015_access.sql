-- +goose Up

-- Who may use the service. Of a token only its hash is kept: whoever reads this table can use none of them. A row is
-- never removed, because a service in which a token was ever made is closed for good.
CREATE TABLE pawl.tokens (
  id              text COLLATE "C" PRIMARY KEY,     -- the part of the token that it is found by
  name            text COLLATE "C" NOT NULL,        -- of whoever has it: token:name is who did what it was used for
  sha256          bytea NOT NULL,                   -- of the whole token
  roles           text[] NOT NULL,                  -- what it may do
  rate_limit      integer NOT NULL DEFAULT 0,       -- requests in a second; 0: as many as come
  in_flight_limit integer NOT NULL DEFAULT 0,       -- requests at one time
  byte_limit      bigint NOT NULL DEFAULT 0,        -- bytes of bodies in a second, in and out
  created_by      text NOT NULL,
  created_at      timestamptz NOT NULL DEFAULT now(),
  expires_at      timestamptz NOT NULL,
  used_at         timestamptz,                      -- within an hour of the last time
  replaced_at     timestamptz,                      -- another one has its name now; this one is good until it expires
  revoked_at      timestamptz,
  CONSTRAINT tokens_id CHECK (id ~ '^[0-9A-Za-z]{10}$'),
  CONSTRAINT tokens_name CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
  CONSTRAINT tokens_sha256 CHECK (length(sha256) = 32),
  CONSTRAINT tokens_roles CHECK (roles <@ ARRAY['submit', 'read', 'operate', 'approve', 'settle', 'stock', 'delegate', 'metrics', 'admin']),
  CONSTRAINT tokens_expires CHECK (expires_at <= created_at + interval '10 years'),
  CONSTRAINT tokens_limits CHECK (rate_limit >= 0 AND in_flight_limit >= 0 AND byte_limit >= 0)
);
CREATE UNIQUE INDEX tokens_current ON pawl.tokens (name) WHERE replaced_at IS NULL AND revoked_at IS NULL;
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.tokens FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- Notes that a token was used, at most once in an hour, however many replicas see it used. It runs with the rights of the owner:
-- the role of the service may change no token.
CREATE FUNCTION pawl.note_token_use(token_id text) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE pawl.tokens AS t SET used_at = now()
  WHERE t.id = note_token_use.token_id AND (t.used_at IS NULL OR t.used_at < now() - interval '1 hour')
$$;

-- What was done with tokens, and what was denied. The verbs of orders, the changes of stock and the activations of policies
-- have a history of their own.
CREATE TABLE pawl.access_log (
  entry_no  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at        timestamptz NOT NULL DEFAULT now(),
  event     text COLLATE "C" NOT NULL,
  actor     text NOT NULL,                -- who did it, or was denied it
  address   inet,                         -- of the caller; null: through the database
  operation text,                         -- of the API
  subject   text,                         -- what it was done to, or asked for: a token, an order
  detail    text,
  times     integer NOT NULL DEFAULT 1,   -- how often it happened within the minute before
  CONSTRAINT access_log_event CHECK (event <> ''),
  CONSTRAINT access_log_times CHECK (times > 0)
);
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON pawl.access_log FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- Who did what, wherever it is kept.
CREATE VIEW books.access_log AS
SELECT l.at, l.event, l.actor, NULL::text AS on_behalf_of, l.address, l.operation, l.subject, l.detail, l.times FROM pawl.access_log l
UNION ALL
SELECT p.created_at, 'policy_stored', p.created_by, NULL, NULL, NULL, p.version::text, NULL, 1 FROM pawl.policies p
UNION ALL
SELECT a.at, 'policy_activated', a.actor, a.on_behalf_of, NULL, NULL, a.version::text, a.reason, 1 FROM pawl.policy_activations a
UNION ALL
SELECT t.at, t.verb, t.actor, t.on_behalf_of, NULL, NULL, o.order_id::text, t.reason, 1
FROM pawl.orders o JOIN pawl.transitions t ON t.order_no = o.order_no
WHERE t.verb IN ('cancel', 'retry', 'pause', 'resume', 'approve', 'reject', 'step-result', 'refund') AND t.actor <> 'system'
UNION ALL
SELECT m.at, 'stock_' || m.kind, m.actor, m.on_behalf_of, NULL, NULL, m.item, m.reason, 1 FROM pawl.stock_movements m WHERE m.kind <> 'restock';

-- +goose Down
DROP VIEW books.access_log;
DROP TABLE pawl.access_log;
DROP FUNCTION pawl.note_token_use(text);
DROP TABLE pawl.tokens;
