-- +goose Up

-- The tokens of the service. Only the hash of a token is stored, so a reader of this table can't use any. Rows are
-- never removed, because a service for which a token was ever made stays closed.
CREATE TABLE pawl.tokens (
  id              text COLLATE "C" PRIMARY KEY,     -- the part of the token by which it is found
  name            text COLLATE "C" NOT NULL,        -- of its holder; token:name is the actor of its requests
  sha256          bytea NOT NULL,                   -- of the whole token
  roles           text[] NOT NULL,                  -- permissions
  rate_limit      integer NOT NULL DEFAULT 0,       -- requests per second; 0: no limit
  in_flight_limit integer NOT NULL DEFAULT 0,       -- concurrent requests; 0: no limit
  byte_limit      bigint NOT NULL DEFAULT 0,        -- bytes of bodies per second, in and out; 0: no limit
  created_by      text NOT NULL,
  created_at      timestamptz NOT NULL DEFAULT now(),
  expires_at      timestamptz NOT NULL,
  used_at         timestamptz,                      -- last use, to within an hour
  replaced_at     timestamptz,                      -- another token has its name since; this one is valid until it expires
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

-- Records that a token was used, at most once an hour, however many replicas see it used. It runs with the rights of
-- the owner: the role of the service may not change tokens.
CREATE FUNCTION pawl.note_token_use(token_id text) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  UPDATE pawl.tokens AS t SET used_at = now()
  WHERE t.id = note_token_use.token_id AND (t.used_at IS NULL OR t.used_at < now() - interval '1 hour')
$$;

-- Changes of tokens, and denied requests. Verbs of orders, changes of stock and activations of policies have
-- histories of their own.
CREATE TABLE pawl.access_log (
  entry_no  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at        timestamptz NOT NULL DEFAULT now(),
  event     text COLLATE "C" NOT NULL,
  actor     text NOT NULL,                -- who did it, or was denied
  address   inet,                         -- of the caller; null: done through the database
  operation text,                         -- of the API
  subject   text,                         -- what it is about: a token, an order
  detail    text,
  times     integer NOT NULL DEFAULT 1,   -- how often it happened in the minute before
  CONSTRAINT access_log_event CHECK (event <> ''),
  CONSTRAINT access_log_times CHECK (times > 0)
);
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON pawl.access_log FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- Sessions of browsers, each for the holder of a token. A row begins as a link that can be opened once. Opening it
-- replaces its secret by the secret of the cookie. Only hashes of both are stored.
CREATE TABLE pawl.sessions (
  sha256     bytea PRIMARY KEY,                -- of the SHA-256 of the link; once opened, of the cookie itself
  token_id   text COLLATE "C" NOT NULL REFERENCES pawl.tokens (id),
  created_at timestamptz NOT NULL DEFAULT now(),
  opened_at  timestamptz,                      -- null: still a link
  expires_at timestamptz NOT NULL,             -- it also ends with its token
  CONSTRAINT sessions_sha256 CHECK (length(sha256) = 32),
  CONSTRAINT sessions_expires CHECK (expires_at <= created_at + interval '1 day')
);
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.sessions FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- The role of the service may not change sessions: by setting a hash it could choose the secret of another person's
-- session. It has these functions instead, which run with the rights of the owner. Opening a link takes its SHA-256,
-- which is not stored: the table has the hash of that. The link itself is not sent, because it would be in the
-- server's log.
CREATE FUNCTION pawl.open_session(link_sha256 bytea, cookie_sha256 bytea, previous_cookie_sha256 bytea, address inet)
RETURNS TABLE (name text, expires_at timestamptz) LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH opened AS (
    UPDATE pawl.sessions AS s SET sha256 = open_session.cookie_sha256, opened_at = now(),
      expires_at = least(t.expires_at, now() + interval '12 hours')
    FROM pawl.tokens AS t
    WHERE s.sha256 = sha256(open_session.link_sha256) AND s.opened_at IS NULL AND s.expires_at > now()
      AND t.id = s.token_id AND t.revoked_at IS NULL AND t.expires_at > now()
    RETURNING t.name, s.token_id, s.expires_at
  ), ended AS (
    UPDATE pawl.sessions AS s SET expires_at = now()
    WHERE s.sha256 = open_session.previous_cookie_sha256 AND s.opened_at IS NOT NULL AND s.expires_at > now() AND EXISTS (SELECT FROM opened)
  ), logged AS (
    INSERT INTO pawl.access_log (event, actor, address, subject, detail)
    SELECT 'session_opened', 'token:' || o.name, open_session.address, o.name, o.token_id FROM opened AS o
  )
  SELECT o.name, o.expires_at FROM opened AS o
$$;

CREATE FUNCTION pawl.end_session(cookie_sha256 bytea, address inet) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH ended AS (
    UPDATE pawl.sessions AS s SET expires_at = now()
    FROM pawl.tokens AS t
    WHERE s.sha256 = end_session.cookie_sha256 AND s.opened_at IS NOT NULL AND s.expires_at > now() AND t.id = s.token_id
    RETURNING t.name, t.id
  )
  INSERT INTO pawl.access_log (event, actor, address, subject, detail)
  SELECT 'session_ended', 'token:' || e.name, end_session.address, e.name, e.id FROM ended AS e
$$;

-- Idempotency keys of requests that made an order, committed with it, or that repeated one. A key belongs to one
-- request of one principal. Keys of other requests are in the history and in the stock movements.
CREATE TABLE pawl.idempotency_keys (
  created_at  timestamptz NOT NULL DEFAULT now(),
  key         text COLLATE "C" NOT NULL,
  principal   text COLLATE "C" NOT NULL,
  fingerprint bytea NOT NULL, -- a hash of the request
  CONSTRAINT idempotency_keys_pkey PRIMARY KEY (key, principal)
) WITH (vacuum_truncate = false);
ALTER TABLE pawl.idempotency_keys SET (fillfactor = 10);
INSERT INTO pawl.idempotency_keys (key, principal, fingerprint) SELECT repeat('x', 900), page, '' FROM generate_series(1, 128) AS page;
DELETE FROM pawl.idempotency_keys;
ALTER TABLE pawl.idempotency_keys RESET (fillfactor);
CREATE INDEX idempotency_keys_created ON pawl.idempotency_keys (created_at); -- for IdempotencyKeysPurge

-- What bulk requests were refused, by their id, for a month: no order has it in its history.
CREATE TABLE pawl.bulk_refusals (
  at         timestamptz NOT NULL DEFAULT now(),
  request_id text COLLATE "C" NOT NULL,
  verb       text NOT NULL,
  actor      text NOT NULL,
  reason     text,
  refused    jsonb NOT NULL, -- by order id: {"code": …, "detail": …}
  CONSTRAINT bulk_refusals_pkey PRIMARY KEY (request_id)
);

-- +goose Down
DROP TABLE pawl.bulk_refusals;
DROP TABLE pawl.idempotency_keys;
DROP FUNCTION pawl.end_session(bytea, inet);
DROP FUNCTION pawl.open_session(bytea, bytea, bytea, inet);
DROP TABLE pawl.sessions;
DROP TABLE pawl.access_log;
DROP FUNCTION pawl.note_token_use(text);
DROP TABLE pawl.tokens;
