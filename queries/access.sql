-- name: TokensExist :one
-- Reports whether a token was ever made. From then on the service is closed, even if the token is revoked.
SELECT EXISTS (SELECT FROM pawl.tokens)::boolean AS closed;

-- name: TokenGet :one
-- Returns a token by its id, with its remaining lifetime by the clock of the database.
SELECT t.id, t.name, t.sha256, t.roles, t.rate_limit, t.in_flight_limit, t.byte_limit,
  (t.revoked_at IS NOT NULL)::boolean AS revoked,
  t.expires_at, extract(epoch FROM t.expires_at - now())::double precision AS seconds_left,
  coalesce(t.used_at < now() - interval '1 hour', true)::boolean AS use_is_news
FROM pawl.tokens AS t WHERE t.id = @id;

-- name: TokenUsed :exec
-- Records that a token was used, at most once an hour, however many replicas see it used.
SELECT pawl.note_token_use(@id::text);

-- name: TokenCreate :one
-- Makes a token. No row: there is one with this name.
WITH made AS (
  INSERT INTO pawl.tokens (id, name, sha256, roles, rate_limit, in_flight_limit, byte_limit, created_by, expires_at)
  VALUES (@id, @name, @sha256, @roles, @rate_limit, @in_flight_limit, @byte_limit, @actor,
    now() + make_interval(secs => @lifetime_seconds::double precision))
  ON CONFLICT (name) WHERE replaced_at IS NULL AND revoked_at IS NULL DO NOTHING
  RETURNING tokens.id, tokens.name, tokens.roles, tokens.created_by, tokens.expires_at
), logged AS (
  INSERT INTO pawl.access_log (event, actor, subject, detail)
  SELECT 'token_created', m.created_by, m.name, concat(m.id, ' for ', array_to_string(m.roles, ', ')) FROM made AS m
)
SELECT m.expires_at::timestamptz AS expires_at FROM made AS m;

-- name: TokenRotate :one
-- Makes a token that replaces the one with its name, which expires after a grace period. No row: there is none with
-- that name.
WITH replaced AS (
  UPDATE pawl.tokens AS t SET replaced_at = now(), expires_at = least(t.expires_at, now() + make_interval(secs => @grace_seconds::double precision))
  WHERE t.name = @name AND t.replaced_at IS NULL AND t.revoked_at IS NULL
  RETURNING t.id, t.name, t.roles, t.rate_limit, t.in_flight_limit, t.byte_limit
), made AS (
  INSERT INTO pawl.tokens (id, name, sha256, roles, rate_limit, in_flight_limit, byte_limit, created_by, expires_at)
  SELECT @id, r.name, @sha256, r.roles, r.rate_limit, r.in_flight_limit, r.byte_limit, @actor,
    now() + make_interval(secs => @lifetime_seconds::double precision)
  FROM replaced AS r
  RETURNING tokens.id, tokens.name, tokens.created_by, tokens.expires_at
), logged AS (
  INSERT INTO pawl.access_log (event, actor, subject, detail)
  SELECT 'token_rotated', m.created_by, m.name, concat(m.id, ' in place of ', r.id) FROM made AS m CROSS JOIN replaced AS r
)
SELECT m.expires_at::timestamptz AS expires_at FROM made AS m;

-- name: TokensRevoke :many
-- Revokes the tokens with a name, or the one with an id, and returns their ids.
WITH revoked AS (
  UPDATE pawl.tokens AS t SET revoked_at = now()
  WHERE (t.name = @name_or_id OR t.id = @name_or_id) AND t.revoked_at IS NULL
  RETURNING t.id, t.name
), logged AS (
  INSERT INTO pawl.access_log (event, actor, subject, detail)
  SELECT 'token_revoked', @actor, r.name, r.id FROM revoked AS r
)
SELECT r.id FROM revoked AS r ORDER BY r.id;

-- name: TokensList :many
-- Returns all tokens, by name and age.
SELECT t.id, t.name, t.roles, t.created_by, t.created_at, t.expires_at, t.used_at,
  (CASE WHEN t.revoked_at IS NOT NULL THEN 'revoked'
        WHEN t.expires_at <= now() THEN 'expired'
        WHEN t.replaced_at IS NOT NULL THEN 'replaced' ELSE 'good' END)::text AS state
FROM pawl.tokens AS t ORDER BY t.name, t.created_at, t.id;

-- name: AccessLogAdd :exec
-- Records denied requests.
INSERT INTO pawl.access_log (event, actor, address, operation, subject, detail, times)
SELECT unnest(@events::text[]), unnest(@actors::text[]), nullif(unnest(@addresses::text[]), '')::inet,
  nullif(unnest(@operations::text[]), ''), nullif(unnest(@subjects::text[]), ''), nullif(unnest(@details::text[]), ''),
  unnest(@times::integer[]);
