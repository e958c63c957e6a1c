-- +goose Up

-- How orders are done, as text: every version that was ever in use. An order keeps
-- the version it started with, so a version is never changed and never removed.
CREATE TABLE pawl.policies (
  version    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  created_at timestamptz NOT NULL DEFAULT now(),
  hash       bytea NOT NULL UNIQUE,
  source     text NOT NULL,
  CONSTRAINT policies_source CHECK (source <> '' AND hash = sha256(convert_to(source, 'UTF8')))
);

-- Which version new orders start with: that of the newest row.
CREATE TABLE pawl.policy_activations (
  activation_no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  version       integer NOT NULL REFERENCES pawl.policies,
  at            timestamptz NOT NULL DEFAULT now(),
  actor         text NOT NULL CHECK (actor <> '')
);

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
