-- +goose Up

-- The policies, as text: every version that was ever stored. An order keeps the version it started with, so a version
-- is never changed or removed.
CREATE TABLE pawl.policies (
  version    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  created_at timestamptz NOT NULL DEFAULT now(),
  hash       bytea NOT NULL,
  source     text NOT NULL,
  copied_from uuid, -- the installation that it belongs to, if this database is a copy: no calls are made under it
  created_by text COLLATE "C" NOT NULL CHECK (created_by <> ''), -- the principal that stored it
  CONSTRAINT policies_source CHECK (source <> '' AND hash = sha256(convert_to(source, 'UTF8')))
);

CREATE UNIQUE INDEX policies_hash ON pawl.policies (hash) WHERE copied_from IS NULL;

-- New orders start with the version of the newest row. An activation has the next number after the one
-- its process has read, so of two concurrent activations one fails on the primary key.
CREATE TABLE pawl.policy_activations (
  activation_no bigint PRIMARY KEY,
  version       integer NOT NULL REFERENCES pawl.policies,
  at            timestamptz NOT NULL DEFAULT now(),
  actor         text NOT NULL CHECK (actor <> ''), -- the principal that requested it
  on_behalf_of  text,                              -- on whose behalf it says it acts
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

-- The log of calls: a row is committed before its call and closed with the result. A row that was never closed
-- belongs to a call whose process died or was stopped, or to one that was not made because the reply to its commit
-- was lost. The calls of an order are numbered without gaps, over all its steps. Calls that move no order, such as
-- those of charge operations, have numbers below zero.
CREATE DOMAIN pawl.call_operation AS text COLLATE "C" CONSTRAINT call_operation CHECK (VALUE IN ('do', 'undo', 'lookup', 'refund', 'capture', 'void'));
CREATE DOMAIN pawl.call_outcome AS text COLLATE "C" CONSTRAINT call_outcome CHECK (VALUE IN ('done', 'refused', 'retry', 'waiting', 'unknown'));
CREATE TABLE pawl.step_calls (
  order_no    bigint NOT NULL,
  started_at  timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz,
  fence       bigint NOT NULL,
  call        integer NOT NULL,
  generation  integer NOT NULL,
  policy      integer,
  fenced      boolean,           -- the answer arrived after another replica had claimed the order
  step        pawl.order_step NOT NULL,
  operation   pawl.call_operation NOT NULL,
  outcome     pawl.call_outcome,
  code        text,
  detail      text,
  reference   text,

  -- The reference of the provider in an undo request. The first request fixes it for all, because their bodies must
  -- be the same.
  undo_reference text,
  charge_operation integer,      -- its number, if the call is for one
  route       text COLLATE "C",  -- of a charge: the name of the provider that was called; null: there is only one
  CONSTRAINT step_calls_pkey PRIMARY KEY (order_no, call),
  CONSTRAINT step_calls_finished CHECK ((outcome IS NULL) = (finished_at IS NULL))
) WITH (fillfactor = 70, vacuum_truncate = false); -- closing a call stays on its page
-- Empty pages, as in pawl.orders.
ALTER TABLE pawl.step_calls SET (fillfactor = 10);
INSERT INTO pawl.step_calls (order_no, fence, call, generation, step, operation, code)
SELECT page, 0, 0, 0, 'charge', 'do', repeat('x', 900) FROM generate_series(1, 128) AS page;
DELETE FROM pawl.step_calls;
ALTER TABLE pawl.step_calls SET (fillfactor = 70);
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.step_calls FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- Answers that arrived without a call: from a callback, a webhook or a person. The next owner of the order uses them
-- instead of calling.
CREATE TABLE pawl.step_answers (
  order_no    bigint NOT NULL,
  answered_at timestamptz NOT NULL DEFAULT now(),
  consumed_at timestamptz,
  generation  integer NOT NULL,
  step        text COLLATE "C" NOT NULL,
  operation   text COLLATE "C" NOT NULL DEFAULT 'do', -- a person may also settle an undo
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

-- Late undos: a late answer has reported an effect that the books say is absent or undone. It is undone at its
-- provider, again if necessary, without moving the order.
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
  reference   text, -- the provider's, from the report; stored nowhere else if another answer came first
  CONSTRAINT late_undos_pkey PRIMARY KEY (order_no, generation, step),
  CONSTRAINT late_undos_words CHECK (step IN ('charge', 'reserve'))
);
CREATE INDEX late_undos_due ON pawl.late_undos (due_at) WHERE finished_at IS NULL;
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.late_undos FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- One row per concurrency key. Grants compare and set version.
CREATE TABLE pawl.concurrency_keys (
  key     text COLLATE "C" PRIMARY KEY,
  version bigint NOT NULL DEFAULT 0
);

-- What a replica knows of itself, for the overview of all replicas. It is written every few seconds. An old row
-- is of a replica that was killed, one without a name of one that has ended.
CREATE TABLE pawl.replica_reports (
  owner             uuid PRIMARY KEY,     -- the process
  name              text NOT NULL,        -- of the process: its host, and its process id there; empty: it has ended
  at                timestamptz NOT NULL,
  since             timestamptz NOT NULL DEFAULT now(), -- of its first report
  orders_per_second float8 NOT NULL,      -- that it finished since its report before
  steps             jsonb NOT NULL,       -- of providers that it calls: their circuit breakers, and what waits
  outages           jsonb NOT NULL DEFAULT '[]' -- of these providers that are over, with the numbers of the orders that waited, and the orders that were taken over from other replicas; kept for an hour after the process
);

-- +goose Down
DROP TABLE pawl.replica_reports;
DROP TABLE pawl.concurrency_keys;
DROP TABLE pawl.late_undos;
DROP TABLE pawl.step_answers;
DROP TABLE pawl.step_calls;
DROP DOMAIN pawl.call_operation;
DROP DOMAIN pawl.call_outcome;
DROP TABLE pawl.policy_activations;
DROP TABLE pawl.policies;
DROP FUNCTION pawl.refuse_policy_change();
