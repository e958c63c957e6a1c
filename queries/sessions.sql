-- name: SessionLink :one
-- Makes a link that opens a session as the holder of a name's token. No row: there is no good token of that name.
WITH holder AS (
  SELECT t.id, t.name FROM pawl.tokens AS t
  WHERE t.name = @name AND t.replaced_at IS NULL AND t.revoked_at IS NULL AND t.expires_at > now()
), made AS (
  INSERT INTO pawl.sessions (sha256, token_id, expires_at)
  SELECT @sha256, h.id, now() + make_interval(secs => @lifetime_seconds::double precision) FROM holder AS h
  RETURNING sessions.expires_at
), logged AS (
  INSERT INTO pawl.access_log (event, actor, subject, detail)
  SELECT 'link_made', @actor, h.name, h.id FROM holder AS h
)
SELECT m.expires_at::timestamptz AS expires_at FROM made AS m;

-- name: SessionOpen :one
-- Opens a link, once, and ends the session that the browser had. No row: the link was opened, has expired, or never was, or
-- its token is no longer good.
WITH opened AS (
  UPDATE pawl.sessions AS s SET sha256 = @cookie_sha256, opened_at = now(),
    expires_at = least(t.expires_at, now() + make_interval(secs => @lifetime_seconds::double precision))
  FROM pawl.tokens AS t
  WHERE s.sha256 = @link_sha256 AND s.opened_at IS NULL AND s.expires_at > now()
    AND t.id = s.token_id AND t.revoked_at IS NULL AND t.expires_at > now()
  RETURNING t.name, s.token_id, s.expires_at
), ended AS (
  UPDATE pawl.sessions AS s SET expires_at = now()
  WHERE s.sha256 = @before_sha256 AND s.opened_at IS NOT NULL AND s.expires_at > now() AND EXISTS (SELECT FROM opened)
), logged AS (
  INSERT INTO pawl.access_log (event, actor, address, subject, detail)
  SELECT 'session_opened', 'token:' || o.name, nullif(@address::text, '')::inet, o.name, o.token_id FROM opened AS o
)
SELECT o.name, o.expires_at::timestamptz AS expires_at FROM opened AS o;

-- name: SessionGet :one
-- A session by the hash of its cookie, with its token, and how long both are still good by the clock of the database.
SELECT t.name, t.roles, t.rate_limit, t.in_flight_limit, t.byte_limit,
  (t.revoked_at IS NOT NULL)::boolean AS revoked,
  extract(epoch FROM least(s.expires_at, t.expires_at) - now())::double precision AS seconds_left
FROM pawl.sessions AS s JOIN pawl.tokens AS t ON t.id = s.token_id
WHERE s.sha256 = @sha256 AND s.opened_at IS NOT NULL;

-- name: SessionEnd :exec
-- Ends a session.
WITH ended AS (
  UPDATE pawl.sessions AS s SET expires_at = now()
  FROM pawl.tokens AS t
  WHERE s.sha256 = @sha256 AND s.opened_at IS NOT NULL AND s.expires_at > now() AND t.id = s.token_id
  RETURNING t.name, t.id
)
INSERT INTO pawl.access_log (event, actor, address, subject, detail)
SELECT 'session_ended', 'token:' || e.name, nullif(@address::text, '')::inet, e.name, e.id FROM ended AS e;
