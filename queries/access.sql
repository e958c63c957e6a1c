-- name: TokensExist :one
-- Whether a token was ever made: from then on the service is closed, whatever became of the token.
SELECT EXISTS (SELECT FROM pawl.tokens)::boolean AS closed;

-- name: TokenGet :one
-- A token by its id, with how long it is still good by the clock of the database.
SELECT t.id, t.name, t.sha256, t.roles, t.rate_limit, t.in_flight_limit, t.byte_limit,
  (t.revoked_at IS NOT NULL)::boolean AS revoked,
  extract(epoch FROM t.expires_at - now())::double precision AS seconds_left,
  coalesce(t.used_at < now() - interval '1 hour', true)::boolean AS use_is_news
FROM pawl.tokens AS t WHERE t.id = @id;

-- name: TokenUsed :exec
-- Notes that a token was used, at most once in an hour, however many replicas see it used.
UPDATE pawl.tokens AS t SET used_at = now()
WHERE t.id = @id AND (t.used_at IS NULL OR t.used_at < now() - interval '1 hour');
