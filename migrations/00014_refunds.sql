-- +goose Up

-- Refunds that somebody asked for, of orders that are completed. They share the table with the
-- refund that undoes a charge: that one has the number 0, and is done when it is written.
CREATE DOMAIN pawl.refund_state AS text COLLATE "C" CONSTRAINT refund_state CHECK (VALUE IN
  ('pending', 'in_doubt', 'accepted', 'done', 'failed'));

ALTER TABLE pawl.refunds
  ADD COLUMN number      integer NOT NULL DEFAULT 0 CONSTRAINT refunds_number CHECK (number >= 0),
  ADD COLUMN claims      integer NOT NULL DEFAULT 0,
  ADD COLUMN state       pawl.refund_state NOT NULL DEFAULT 'done',
  ADD COLUMN due_at      timestamptz,          -- when it is to be sent, or looked up; null: nobody acts
  ADD COLUMN sent_at     timestamptz,          -- when the key was sent that may have had its effect
  ADD COLUMN finished_at timestamptz,          -- when it was done or had failed
  ADD COLUMN restock     pawl.item_quantity,        -- units that were put back into stock
  ADD COLUMN executor    text COLLATE "C",     -- null: the ledger
  ADD COLUMN reason      text,
  ADD COLUMN request_id  text,
  ADD COLUMN code        text,                 -- why it is not done, or step_result: a person said so
  ADD COLUMN detail      text,
  DROP CONSTRAINT refunds_pkey,
  ADD CONSTRAINT refunds_pkey PRIMARY KEY (order_no, generation, number);
CREATE UNIQUE INDEX refunds_request ON pawl.refunds (order_no, request_id) WHERE request_id IS NOT NULL; -- its key is made of it
CREATE INDEX refunds_due ON pawl.refunds (due_at) WHERE due_at IS NOT NULL;

-- Empty pages, for the reason given at orders: what is due is looked for all the time.
ALTER TABLE pawl.refunds SET (vacuum_truncate = false, fillfactor = 10);
INSERT INTO pawl.refunds (order_no, generation, currency, amount)
SELECT page, 0, repeat('x', 900), 0 FROM generate_series(1, 128) AS page;
SELECT set_config('pawl.archive', 'on', true); -- rows of the books are removed by an archive alone
DELETE FROM pawl.refunds;
ALTER TABLE pawl.refunds RESET (fillfactor);

-- How many refunds were asked for, and so the number of the last one. Null: none.
ALTER TABLE pawl.orders ADD COLUMN refunds integer;

-- +goose StatementBegin
CREATE FUNCTION pawl.guard_refund() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  charged numeric;
  asked numeric;
  sold bigint;
  restocked bigint;
BEGIN
  -- The charge is written and not just locked: then a transaction with an older snapshot fails
  -- here, and does not add up what it can't see all of.
  UPDATE pawl.charges AS c SET refunded_at = c.refunded_at
  WHERE c.order_no = NEW.order_no AND c.generation = NEW.generation AND c.currency = NEW.currency AND c.refunded_at IS NULL
    AND c.executor IS NOT DISTINCT FROM NEW.executor
    AND EXISTS (SELECT FROM pawl.orders AS o WHERE o.order_no = NEW.order_no AND o.generation = NEW.generation AND o.status = 'completed')
  RETURNING c.amount INTO charged;
  SELECT sum(f.amount) FILTER (WHERE f.state <> 'failed'), coalesce(sum(f.restock), 0) INTO asked, restocked
  FROM pawl.refunds AS f WHERE f.order_no = NEW.order_no AND f.generation = NEW.generation AND f.number > 0;
  IF charged IS NULL OR asked > charged OR NEW.amount = 0 OR coalesce(NEW.request_id, '') = '' THEN
    RAISE EXCEPTION 'order_no %: refunds of % in all, of a charge of %', NEW.order_no, asked, coalesce(charged, 0)
      USING ERRCODE = 'check_violation', CONSTRAINT = 'refunds_guard';
  END IF;
  IF NEW.restock IS NOT NULL THEN
    SELECT coalesce(sum(r.quantity), 0) INTO sold FROM pawl.reservations AS r
    WHERE r.order_no = NEW.order_no AND r.generation = NEW.generation AND r.released_at IS NULL AND r.executor IS NULL;
    IF restocked > sold THEN
      RAISE EXCEPTION 'order_no %: % units put back, % sold from this stock', NEW.order_no, restocked, sold
        USING ERRCODE = 'check_violation', CONSTRAINT = 'refunds_guard';
    END IF;
  END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION pawl.refuse_refund_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'order_no %: what refund % is about does not change, nor what has failed', OLD.order_no, OLD.number
    USING ERRCODE = 'check_violation', CONSTRAINT = 'refunds_guard';
END $$;
-- +goose StatementEnd

-- The sum of all refunds that have not failed stays within the charge, and the units within the order.
CREATE TRIGGER refunds_guard AFTER INSERT ON pawl.refunds FOR EACH ROW WHEN (NEW.number <> 0) EXECUTE FUNCTION pawl.guard_refund();
CREATE TRIGGER refunds_guard_change AFTER UPDATE ON pawl.refunds FOR EACH ROW WHEN (OLD.number <> 0 AND (
  (NEW.order_no, NEW.generation, NEW.number, NEW.amount, NEW.currency, coalesce(NEW.restock, 0), coalesce(NEW.executor, ''), coalesce(NEW.request_id, ''))
  <> (OLD.order_no, OLD.generation, OLD.number, OLD.amount, OLD.currency, coalesce(OLD.restock, 0), coalesce(OLD.executor, ''), coalesce(OLD.request_id, ''))
  OR NEW.state <> OLD.state AND OLD.state = 'failed')
) EXECUTE FUNCTION pawl.refuse_refund_change();

-- A call may be about a refund. Such calls have numbers below zero, as all that move no order.
ALTER TABLE pawl.step_calls
  ADD COLUMN refund integer,
  DROP CONSTRAINT step_calls_words,
  ADD CONSTRAINT step_calls_words CHECK (step IN ('charge', 'reserve', 'confirm')
    AND operation IN ('do', 'undo', 'lookup', 'refund')
    AND outcome IN ('done', 'refused', 'retry', 'waiting', 'unknown')
    AND (outcome IS NULL) = (finished_at IS NULL));

-- An order as the service reads it, with the refunds that were asked for.
DROP VIEW pawl.no_effects, pawl.full_orders;
CREATE VIEW pawl.full_orders AS
SELECT o.*, c.created_at AS charged_at, c.refunded_at, r.created_at AS reserved_at, r.released_at,
  c.reference AS charge_reference, r.reference AS reserve_reference, c.in_doubt AS charge_in_doubt, r.in_doubt AS reserve_in_doubt,
  (CASE WHEN o.refunds IS NOT NULL THEN (
    SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('refund', f.number, 'state', f.state, 'amount', f.amount::text, 'restock', f.restock,
      'reason', f.reason, 'requestId', f.request_id, 'createdAt', f.created_at, 'finishedAt', f.finished_at,
      'reference', f.reference, 'code', f.code, 'detail', f.detail)) ORDER BY f.number)
    FROM pawl.refunds AS f WHERE f.order_no = o.order_no AND f.generation = o.generation AND f.number > 0) END)::jsonb AS refund_list
FROM pawl.orders AS o
LEFT JOIN pawl.charges AS c ON c.order_no = o.order_no AND c.generation = o.generation
LEFT JOIN pawl.reservations AS r ON r.order_no = o.order_no AND r.generation = o.generation;

-- The orders of a page, in its order, as long as they fit into so many bytes; the last of them may be too long for it.
-- Only what is stored compressed is unpacked to be measured.
CREATE FUNCTION pawl.orders_within(page bigint[], bytes bigint) RETURNS SETOF bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT s.order_no FROM (
    SELECT m.order_no, m.size, sum(m.size) OVER (ORDER BY array_position(page, m.order_no)) AS total
    FROM (
      SELECT o.order_no, 1000 * coalesce(o.refunds, 0) + coalesce(octet_length(o.action::text), 0)
        + coalesce(CASE WHEN pg_column_compression(o.metadata) IS NULL THEN pg_column_size(o.metadata) ELSE octet_length(o.metadata::text) END, 0) AS size
      FROM pawl.orders AS o WHERE o.order_no = ANY(page)) AS m) AS s
  WHERE s.total - s.size < bytes
$$;

-- The same columns where no effect is read: a statement that writes orders adds them to the rows it returns.
CREATE VIEW pawl.no_effects AS
SELECT NULL::timestamptz AS charged_at, NULL::timestamptz AS refunded_at, NULL::timestamptz AS reserved_at, NULL::timestamptz AS released_at,
  NULL::text AS charge_reference, NULL::text AS reserve_reference, NULL::boolean AS charge_in_doubt, NULL::boolean AS reserve_in_doubt,
  NULL::jsonb AS refund_list;

-- refunded: what was given back, by an undo or because somebody asked for it. kept: what was taken and not given back; an
-- authorization takes nothing. Over all orders they are the totals of `pawl verify`.
CREATE OR REPLACE VIEW books.orders AS
SELECT o.order_id::text, o.status::text, o.amount::numeric, o.currency::text, o.item::text, o.quantity::integer,
       o.generation, o.fence, o.seq, o.due_at::timestamptz, o.owner, o.hold::text, o.hold_reason, o.stop_requested::text,
       o.outcome::text, o.failure_step::text, o.failure_code, o.failure_detail, o.metadata,
       o.created_at::timestamptz, o.finished_at::timestamptz,
       o.policy, o.customer_id, coalesce(o.calls, 0) AS calls, coalesce(o.retries, 0) AS retries, o.in_doubt_since,
       o.start_at, o.complete_by, o.reserved_until, o.approval_until, o.approved_at, o.concurrency_key, o.submitted_by,
       o.amount * 0 + coalesce((SELECT sum(f.amount) FROM pawl.refunds f WHERE f.order_no = o.order_no AND f.state = 'done'), 0) AS refunded,
       o.amount * 0 + coalesce((SELECT sum(c.amount) FROM pawl.charges c
         WHERE c.order_no = o.order_no AND c.refunded_at IS NULL AND (c.capture IS NULL OR c.captured_at IS NOT NULL)), 0)
       - coalesce((SELECT sum(f.amount) FROM pawl.refunds f
         WHERE f.order_no = o.order_no AND f.number > 0 AND f.state = 'done'), 0) AS kept
FROM pawl.orders o;

CREATE OR REPLACE VIEW books.refunds AS
SELECT o.order_id::text, r.generation, r.amount::numeric, r.currency, r.created_at, r.reference,
  r.number AS refund, r.state::text, r.restock::integer, coalesce(r.executor, 'ledger') AS executor, r.reason, r.request_id,
  r.claims, r.due_at, r.sent_at, CASE WHEN r.number = 0 THEN r.created_at ELSE r.finished_at END AS finished_at, r.code, r.detail
FROM pawl.orders o JOIN pawl.refunds r ON r.order_no = o.order_no;

CREATE OR REPLACE VIEW books.step_calls AS
SELECT o.order_id::text, a.step, a.generation, a.call, a.operation, a.fence, a.policy, a.started_at, a.finished_at,
       a.outcome, a.code, a.detail, a.reference, coalesce(a.fenced, false) AS fenced, a.refund
FROM pawl.orders o JOIN pawl.step_calls a ON a.order_no = o.order_no;

-- +goose Down
DROP VIEW books.step_calls, books.refunds, books.orders;
DROP FUNCTION pawl.orders_within(bigint[], bigint);
DROP VIEW pawl.no_effects, pawl.full_orders;
SELECT set_config('pawl.archive', 'on', true); -- rows of the books are removed by an archive alone
DELETE FROM pawl.refunds WHERE number <> 0;
DELETE FROM pawl.step_calls WHERE refund IS NOT NULL;
ALTER TABLE pawl.step_calls
  DROP COLUMN refund,
  DROP CONSTRAINT step_calls_words,
  ADD CONSTRAINT step_calls_words CHECK (step IN ('charge', 'reserve', 'confirm')
    AND operation IN ('do', 'undo', 'lookup')
    AND outcome IN ('done', 'refused', 'retry', 'waiting', 'unknown')
    AND (outcome IS NULL) = (finished_at IS NULL));
ALTER TABLE pawl.orders DROP COLUMN refunds;
DROP TRIGGER refunds_guard_change ON pawl.refunds;
DROP TRIGGER refunds_guard ON pawl.refunds;
DROP FUNCTION pawl.refuse_refund_change();
DROP FUNCTION pawl.guard_refund();
ALTER TABLE pawl.refunds
  DROP CONSTRAINT refunds_pkey,
  DROP COLUMN number, DROP COLUMN claims, DROP COLUMN state, DROP COLUMN due_at, DROP COLUMN sent_at, DROP COLUMN finished_at,
  DROP COLUMN restock, DROP COLUMN executor, DROP COLUMN reason, DROP COLUMN request_id, DROP COLUMN code, DROP COLUMN detail,
  ADD CONSTRAINT refunds_pkey PRIMARY KEY (order_no, generation);
DROP DOMAIN pawl.refund_state;

CREATE VIEW books.orders AS
SELECT o.order_id::text, o.status::text, o.amount::numeric, o.currency::text, o.item::text, o.quantity::integer,
       o.generation, o.fence, o.seq, o.due_at::timestamptz, o.owner, o.hold::text, o.hold_reason, o.stop_requested::text,
       o.outcome::text, o.failure_step::text, o.failure_code, o.failure_detail, o.metadata,
       o.created_at::timestamptz, o.finished_at::timestamptz,
       o.policy, o.customer_id, coalesce(o.calls, 0) AS calls, coalesce(o.retries, 0) AS retries, o.in_doubt_since,
       o.start_at, o.complete_by, o.reserved_until, o.approval_until, o.approved_at, o.concurrency_key, o.submitted_by
FROM pawl.orders o;
CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.orders
FOR EACH ROW EXECUTE FUNCTION books.refuse_write();

CREATE VIEW books.refunds AS
SELECT o.order_id::text, r.generation, r.amount::numeric, r.currency, r.created_at, r.reference
FROM pawl.orders o JOIN pawl.refunds r ON r.order_no = o.order_no;

CREATE VIEW books.step_calls AS
SELECT o.order_id::text, a.step, a.generation, a.call, a.operation, a.fence, a.policy, a.started_at, a.finished_at,
       a.outcome, a.code, a.detail, a.reference, coalesce(a.fenced, false) AS fenced
FROM pawl.orders o JOIN pawl.step_calls a ON a.order_no = o.order_no;

CREATE VIEW pawl.full_orders AS
SELECT o.*, c.created_at AS charged_at, c.refunded_at, r.created_at AS reserved_at, r.released_at,
  c.reference AS charge_reference, r.reference AS reserve_reference, c.in_doubt AS charge_in_doubt, r.in_doubt AS reserve_in_doubt
FROM pawl.orders AS o
LEFT JOIN pawl.charges AS c ON c.order_no = o.order_no AND c.generation = o.generation
LEFT JOIN pawl.reservations AS r ON r.order_no = o.order_no AND r.generation = o.generation;

CREATE VIEW pawl.no_effects AS
SELECT NULL::timestamptz AS charged_at, NULL::timestamptz AS refunded_at, NULL::timestamptz AS reserved_at, NULL::timestamptz AS released_at,
  NULL::text AS charge_reference, NULL::text AS reserve_reference, NULL::boolean AS charge_in_doubt, NULL::boolean AS reserve_in_doubt;
