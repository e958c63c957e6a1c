-- +goose Up

-- Sessions of browsers, each as the holder of a token. A row begins as a link that can be opened once; to open it gives it
-- another secret, that of the cookie. Of neither more than the hash is kept.
CREATE TABLE pawl.sessions (
  sha256     bytea PRIMARY KEY,                -- of the link; once it was opened, of the cookie
  token_id   text COLLATE "C" NOT NULL REFERENCES pawl.tokens (id),
  created_at timestamptz NOT NULL DEFAULT now(),
  opened_at  timestamptz,                      -- null: it is a link still
  expires_at timestamptz NOT NULL,             -- it ends with its token, too
  CONSTRAINT sessions_sha256 CHECK (length(sha256) = 32),
  CONSTRAINT sessions_expires CHECK (expires_at <= created_at + interval '1 day')
);
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.sessions FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- +goose Down
DROP TABLE pawl.sessions;
