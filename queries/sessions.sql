-- name: SessionLink :one
-- Makes a link that opens a session for the holder of a token, by name. No row: there is no valid token with that
-- name.
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
-- Opens a session with a link, once, and ends the previous session of the browser. No row: the link was used, has
-- expired or never existed, or its token is not valid any more.
SELECT o.name::text AS name, o.expires_at::timestamptz AS expires_at
FROM pawl.open_session(@link_sha256::bytea, @cookie_sha256::bytea, @previous_cookie_sha256::bytea,
  nullif(@address::text, '')::inet) AS o (name, expires_at);

-- name: SessionLinkWorks :one
-- Reports whether a link can open a session, as open_session decides.
SELECT EXISTS (SELECT FROM pawl.sessions AS s JOIN pawl.tokens AS t ON t.id = s.token_id
  WHERE s.sha256 = sha256(@link_sha256::bytea) AND s.opened_at IS NULL AND s.expires_at > now()
    AND t.revoked_at IS NULL AND t.expires_at > now())::boolean AS works;

-- name: SessionGet :one
-- Returns a session by the hash of its cookie, with its token, and the remaining lifetime of both by the clock of the
-- database.
SELECT t.name, t.roles, t.rate_limit, t.in_flight_limit, t.byte_limit,
  (t.revoked_at IS NOT NULL)::boolean AS revoked,
  extract(epoch FROM least(s.expires_at, t.expires_at) - now())::double precision AS seconds_left
FROM pawl.sessions AS s JOIN pawl.tokens AS t ON t.id = s.token_id
WHERE s.sha256 = @sha256 AND s.opened_at IS NOT NULL;

-- name: SessionEnd :exec
-- Ends a session.
SELECT pawl.end_session(@cookie_sha256::bytea, nullif(@address::text, '')::inet);
