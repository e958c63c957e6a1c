-- +goose Up

-- Sessions of browsers, each as the holder of a token. A row begins as a link that can be opened once; to open it gives it
-- another secret, that of the cookie. Of neither more than the hash is kept.
CREATE TABLE pawl.sessions (
  sha256     bytea PRIMARY KEY,                -- of the SHA-256 of the link; once it was opened, of the cookie itself
  token_id   text COLLATE "C" NOT NULL REFERENCES pawl.tokens (id),
  created_at timestamptz NOT NULL DEFAULT now(),
  opened_at  timestamptz,                      -- null: it is a link still
  expires_at timestamptz NOT NULL,             -- it ends with its token, too
  CONSTRAINT sessions_sha256 CHECK (length(sha256) = 32),
  CONSTRAINT sessions_expires CHECK (expires_at <= created_at + interval '1 day')
);
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.sessions FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- The role of the service may not change sessions: whoever sets a hash chooses the secret of somebody else's session. It has these
-- functions instead, which run with the rights of the owner. To open a link takes its SHA-256, which is not stored: what is
-- is the hash of that. The link itself is not sent, because it would be in the server's log.
CREATE FUNCTION pawl.open_session(link_sha256 bytea, cookie_sha256 bytea, previous_cookie_sha256 bytea, address inet)
RETURNS TABLE (name text, expires_at timestamptz) LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH opened AS (
    UPDATE pawl.sessions AS s SET sha256 = open_session.cookie_sha256, opened_at = now(), expires_at = least(t.expires_at, now() + interval '12 hours')
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

-- +goose Down
DROP FUNCTION pawl.end_session(bytea, inet);
DROP FUNCTION pawl.open_session(bytea, bytea, bytea, inet);
DROP TABLE pawl.sessions;
