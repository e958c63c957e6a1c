-- +goose Up

-- How orders are done, as text: every version that was ever in use. An order keeps
-- the version it started with, so a version is never changed and never removed.
CREATE TABLE pawl.policies (
  version    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  created_at timestamptz NOT NULL DEFAULT now(),
  hash       bytea NOT NULL,
  source     text NOT NULL,
  copied_from uuid, -- the installation whose policy it was, before this database was made its own: nothing is called by it
  created_by text COLLATE "C" NOT NULL CHECK (created_by <> ''), -- the principal that stored it
  CONSTRAINT policies_source CHECK (source <> '' AND hash = sha256(convert_to(source, 'UTF8')))
);

CREATE UNIQUE INDEX policies_hash ON pawl.policies (hash) WHERE copied_from IS NULL;

-- Which version new orders start with: that of the newest row. Its number is one more than that of the row that whoever
-- activates it has seen, so of two who do so at one moment one finds that it is taken.
CREATE TABLE pawl.policy_activations (
  activation_no bigint PRIMARY KEY,
  version       integer NOT NULL REFERENCES pawl.policies,
  at            timestamptz NOT NULL DEFAULT now(),
  actor         text NOT NULL CHECK (actor <> ''), -- the principal that asked for it
  on_behalf_of  text,                              -- for whom it says that it asked
  reason        text
);
CREATE INDEX policy_activations_version ON pawl.policy_activations (version, activation_no);

-- +goose StatementBegin
CREATE FUNCTION pawl.refuse_policy_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION '% is only added to: orders keep the policy they started with', TG_TABLE_NAME
    USING ERRCODE = 'object_not_in_prerequisite_state';
END $$;
-- +goose StatementEnd

CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON pawl.policies
FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_policy_change();
CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON pawl.policy_activations
FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_policy_change();

-- +goose Down
DROP TABLE pawl.policy_activations;
DROP TABLE pawl.policies;
DROP FUNCTION pawl.refuse_policy_change();
