-- +goose Up

-- Tokens of callbacks are derived from it; whoever has it can answer for a provider.
ALTER TABLE pawl.installation ADD COLUMN callback_secret bytea NOT NULL
  DEFAULT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex');

-- What remote steps, people and clocks need to know of an order. All of it
-- may be null, so that an order that stays in the database pays nothing for it. There are
-- no checks on these columns: PostgreSQL reads the text of every check of a table anew for
-- every statement that writes it. What they would say, `pawl verify` looks for.
ALTER TABLE pawl.orders
  ADD COLUMN policy          integer,          -- version it started with; null: the ledger for every step
  ADD COLUMN calls           integer,          -- calls ever made for it; the number of the last one
  ADD COLUMN retries         integer,          -- retries asked for in the present retry window by answers that count
  ADD COLUMN retry_window_started_at timestamptz, -- when that window began
  ADD COLUMN in_doubt_since  timestamptz,      -- first call that may have had an effect nobody has confirmed
  ADD COLUMN start_at        timestamptz,      -- not before
  ADD COLUMN complete_by     timestamptz,      -- the deadline: unwinds
  ADD COLUMN reservation_ttl double precision, -- seconds a reservation waits for its confirmation
  ADD COLUMN reserved_until  timestamptz,      -- end of that time
  ADD COLUMN approval_until  timestamptz,      -- set when somebody was asked; the year 9999: no time-out
  ADD COLUMN approved_at     timestamptz,
  ADD COLUMN permit_at       timestamptz,      -- when it got its concurrency permit
  ADD COLUMN customer_id     text COLLATE "C",
  ADD COLUMN payment_method  text,             -- opaque; shown to nobody
  ADD COLUMN concurrency_key text COLLATE "C",
  ADD COLUMN action          jsonb;            -- what the customer has to do

-- One index for both kinds of deadline: every index of a table costs every statement that writes it.
CREATE INDEX orders_expiry ON pawl.orders (least(complete_by, reserved_until))
  WHERE (complete_by IS NOT NULL OR reserved_until IS NOT NULL) AND ended_as IS NULL;
CREATE INDEX orders_concurrency ON pawl.orders (concurrency_key, order_no) WHERE concurrency_key IS NOT NULL AND ended_as IS NULL;
CREATE INDEX orders_customer ON pawl.orders (customer_id, order_no) WHERE customer_id IS NOT NULL;

-- Costs nothing on the way of an order: it fires only where a statement names a column. A failed order may start anew
-- with another payment method.
CREATE TRIGGER orders_guard_terms AFTER UPDATE OF customer_id, payment_method, concurrency_key ON pawl.orders
FOR EACH ROW WHEN (
  NEW.customer_id IS DISTINCT FROM OLD.customer_id
  OR NEW.payment_method IS DISTINCT FROM OLD.payment_method AND NEW.generation = OLD.generation
  OR NEW.concurrency_key IS DISTINCT FROM OLD.concurrency_key
) EXECUTE FUNCTION pawl.refuse_order_change();

-- The audit of calls: a row is committed before its call and closed with the answer. One
-- that was never closed belongs to a call whose process died or was stopped in it, or to
-- one that was not made, because nobody heard that its row was committed. An order's calls
-- are numbered through, over all its steps.
CREATE TABLE pawl.step_calls (
  order_no    bigint NOT NULL,
  started_at  timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz,
  fence       bigint NOT NULL,
  call        integer NOT NULL,
  generation  integer NOT NULL,
  policy      integer,
  fenced      boolean,           -- the answer came after somebody else had taken the order over
  step        text COLLATE "C" NOT NULL,
  operation   text COLLATE "C" NOT NULL,
  outcome     text COLLATE "C",
  code        text,
  detail      text,
  reference   text,
  CONSTRAINT step_calls_pkey PRIMARY KEY (order_no, call),
  CONSTRAINT step_calls_words CHECK (step IN ('charge', 'reserve', 'confirm')
    AND operation IN ('do', 'undo', 'lookup')
    AND outcome IN ('done', 'refused', 'retry', 'waiting', 'unknown')
    AND (outcome IS NULL) = (finished_at IS NULL))
) WITH (fillfactor = 70); -- closing a call stays on its page

-- Answers that did not come with a call: of a callback, a webhook, a person. Whoever
-- next picks the order up uses them instead of calling.
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

-- Somebody reported an effect that the books say is absent or undone: it is undone at
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
  CONSTRAINT late_undos_pkey PRIMARY KEY (order_no, generation, step),
  CONSTRAINT late_undos_words CHECK (step IN ('charge', 'reserve'))
);
CREATE INDEX late_undos_due ON pawl.late_undos (due_at) WHERE finished_at IS NULL;

-- One row per key of a concurrency limit; version is what grants compare and set.
CREATE TABLE pawl.concurrency_keys (
  key     text COLLATE "C" PRIMARY KEY,
  version bigint NOT NULL DEFAULT 0
);

-- executor is null for what the ledger did. in_doubt: written by the move that undid it,
-- without knowing whether it had happened.
ALTER TABLE pawl.charges
  ADD COLUMN executor text COLLATE "C", ADD COLUMN reference text, ADD COLUMN data jsonb,
  ADD COLUMN in_doubt boolean, ADD COLUMN capture text COLLATE "C", ADD COLUMN captured_at timestamptz;
ALTER TABLE pawl.refunds ADD COLUMN reference text;
ALTER TABLE pawl.reservations
  ADD COLUMN executor text COLLATE "C", ADD COLUMN reference text, ADD COLUMN data jsonb, ADD COLUMN in_doubt boolean;

-- A remote confirmation; that of the ledger is the final move itself.
CREATE TABLE pawl.confirmations (
  order_no   bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  generation integer NOT NULL,
  executor   text COLLATE "C" NOT NULL,
  reference  text,
  data       jsonb,
  CONSTRAINT confirmations_pkey PRIMARY KEY (order_no)
);

-- +goose Down
DROP TABLE pawl.confirmations;
ALTER TABLE pawl.reservations DROP COLUMN executor, DROP COLUMN reference, DROP COLUMN data, DROP COLUMN in_doubt;
ALTER TABLE pawl.refunds DROP COLUMN reference;
ALTER TABLE pawl.charges DROP COLUMN executor, DROP COLUMN reference, DROP COLUMN data, DROP COLUMN in_doubt,
  DROP COLUMN capture, DROP COLUMN captured_at;
DROP TABLE pawl.concurrency_keys;
DROP TABLE pawl.late_undos;
DROP TABLE pawl.step_answers;
DROP TABLE pawl.step_calls;
DROP TRIGGER orders_guard_terms ON pawl.orders;
ALTER TABLE pawl.orders
  DROP COLUMN policy, DROP COLUMN calls, DROP COLUMN retries, DROP COLUMN retry_window_started_at, DROP COLUMN in_doubt_since,
  DROP COLUMN start_at, DROP COLUMN complete_by, DROP COLUMN reservation_ttl, DROP COLUMN reserved_until,
  DROP COLUMN approval_until, DROP COLUMN approved_at, DROP COLUMN permit_at, DROP COLUMN customer_id, DROP COLUMN payment_method,
  DROP COLUMN concurrency_key, DROP COLUMN action;
ALTER TABLE pawl.installation DROP COLUMN callback_secret;
