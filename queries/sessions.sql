-- name: SessionLink :one
-- Makes a link that opens a session as the holder of a name's token. No row: there is no good token of that name.
WITH holder AS (
  SELECT t.id, t.name FROM pawl.tokens AS t
  WHERE t.name = @name AND t.replaced_at IS NULL AND t.revoked_at IS NULL AND t.expires_at > now()
), made AS (
  INSERT INTO pawl.sessions (sha256, token_id, expires_at)
  SELECT sha256(@link_sha256::bytea), h.id, now() + make_interval(secs => @lifetime_seconds::double precision) FROM holder AS h
  RETURNING sessions.expires_at
), logged AS (
  INSERT INTO pawl.access_log (event, actor, subject, detail)
  SELECT 'link_made', @actor, h.name, h.id FROM holder AS h
)
SELECT m.expires_at::timestamptz AS expires_at FROM made AS m;

-- name: SessionOpen :one
-- Opens a link, once, and ends the session that the browser had. No row: the link was opened, has expired, or never was, or
-- its token is no longer good.
SELECT o.name::text AS name, o.expires_at::timestamptz AS expires_at
FROM pawl.open_session(@link_sha256::bytea, @cookie_sha256::bytea, @previous_cookie_sha256::bytea, nullif(@address::text, '')::inet) AS o (name, expires_at);

-- name: SessionGet :one
-- A session by the hash of its cookie, with its token, and how long both are still good by the clock of the database.
SELECT t.name, t.roles, t.rate_limit, t.in_flight_limit, t.byte_limit,
  (t.revoked_at IS NOT NULL)::boolean AS revoked,
  extract(epoch FROM least(s.expires_at, t.expires_at) - now())::double precision AS seconds_left
FROM pawl.sessions AS s JOIN pawl.tokens AS t ON t.id = s.token_id
WHERE s.sha256 = @sha256 AND s.opened_at IS NOT NULL;

-- name: SessionEnd :exec
-- Ends a session.
SELECT pawl.end_session(@cookie_sha256::bytea, nullif(@address::text, '')::inet);
