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

-- Which version new orders start with: that of the newest row. Its number is one more than that of the row that the process
-- that activates it has seen, so of two who do so at one moment one finds that it is taken.
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

-- The audit of calls: a row is committed before its call and closed with the answer. One
-- that was never closed belongs to a call whose process died or was stopped in it, or to
-- one that was not made, because the reply to its commit was lost. An order's calls
-- are numbered through, over all its steps. Calls that move no order, as those of its refunds, have numbers below zero.
CREATE TABLE pawl.step_calls (
  order_no    bigint NOT NULL,
  started_at  timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz,
  fence       bigint NOT NULL,
  call        integer NOT NULL,
  generation  integer NOT NULL,
  policy      integer,
  fenced      boolean,           -- the answer came after another replica had taken the order over
  step        text COLLATE "C" NOT NULL,
  operation   text COLLATE "C" NOT NULL,
  outcome     text COLLATE "C",
  code        text,
  detail      text,
  reference   text,

  -- What an undo says is to be taken back, by the provider's own name for it. The first one
  -- fixes it for all: their bodies must be the same.
  undo_reference text,
  refund      integer,           -- the number of the refund that the call is about
  CONSTRAINT step_calls_pkey PRIMARY KEY (order_no, call),
  CONSTRAINT step_calls_words CHECK (step IN ('charge', 'reserve', 'confirm')
    AND operation IN ('do', 'undo', 'lookup', 'refund')
    AND outcome IN ('done', 'refused', 'retry', 'waiting', 'unknown')
    AND (outcome IS NULL) = (finished_at IS NULL))
) WITH (fillfactor = 70); -- closing a call stays on its page
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.step_calls FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- Answers that did not come with a call: of a callback, a webhook, a person. The next
-- owner of the order uses them instead of calling.
CREATE TABLE pawl.step_answers (
  order_no    bigint NOT NULL,
  answered_at timestamptz NOT NULL DEFAULT now(),
  consumed_at timestamptz,
  generation  integer NOT NULL,
  step        text COLLATE "C" NOT NULL,
  operation   text COLLATE "C" NOT NULL DEFAULT 'do', -- what it is an answer to: a person may settle an undo as well
  source      text COLLATE "C" NOT NULL,
  outcome     text COLLATE "C" NOT NULL,
  code        text,
  detail      text,
  reference   text,
  data        jsonb,
  CONSTRAINT step_answers_pkey PRIMARY KEY (order_no, generation, step, operation),
  CONSTRAINT step_answers_words CHECK (step IN ('charge', 'reserve', 'confirm')
    AND operation IN ('do', 'undo') AND source IN ('callback', 'webhook', 'operator') AND outcome IN ('done', 'refused', 'not_done'))
);
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.step_answers FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- A late answer reported an effect that the books say is absent or undone: it is undone at
-- its provider, again if need be, without moving the order.
CREATE TABLE pawl.late_undos (
  order_no    bigint NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now(),
  due_at      timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz,
  generation  integer NOT NULL,
  claims      integer NOT NULL DEFAULT 0,
  step        text COLLATE "C" NOT NULL,
  reason      text NOT NULL,
  code        text,
  detail      text,
  reference   text, -- what the report calls the effect; where another answer came before it, it is kept nowhere else
  CONSTRAINT late_undos_pkey PRIMARY KEY (order_no, generation, step),
  CONSTRAINT late_undos_words CHECK (step IN ('charge', 'reserve'))
);
CREATE INDEX late_undos_due ON pawl.late_undos (due_at) WHERE finished_at IS NULL;
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.late_undos FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- One row per key of a concurrency limit; version is what grants compare and set.
CREATE TABLE pawl.concurrency_keys (
  key     text COLLATE "C" PRIMARY KEY,
  version bigint NOT NULL DEFAULT 0
);

-- +goose Down
DROP TABLE pawl.concurrency_keys;
DROP TABLE pawl.late_undos;
DROP TABLE pawl.step_answers;
DROP TABLE pawl.step_calls;
DROP TABLE pawl.policy_activations;
DROP TABLE pawl.policies;
DROP FUNCTION pawl.refuse_policy_change();
