-- +goose Up

-- The history, whose rows are also the events: each write of an order writes one row. A row with the same from and to
-- kept the status (a take-over, a hold, a request to stop). An order that starts at once begins with pending to
-- charging; one that is admitted to wait begins with null to pending.
CREATE TABLE pawl.transitions (
  order_no    bigint NOT NULL,
  at          timestamptz NOT NULL DEFAULT now(),
  fence       bigint NOT NULL,
  position    bigint NOT NULL DEFAULT txid_current(), -- rough position in the feed: the transaction (see pawl.event_batches)
  previous_no bigint,    -- of the first row: the order that its replica admitted before, so that a lost order is noticed
  seq         integer NOT NULL,
  id_hash     integer,   -- of the first row: hashtext(order_id), so that a renamed order is noticed
  from_status text COLLATE "C",
  to_status   text COLLATE "C" NOT NULL,
  verb        text,      -- what was done, if the status does not say it
  actor       text,      -- the principal that requested it; null: the service itself
  reason      text,
  request_id  text,      -- the caller's, or its Idempotency-Key; identifies a repetition

  -- The payment method that a retry has replaced, or '' if there was none: requests with a key of an earlier
  -- generation are repeated unchanged. It is never shown.
  payment_method text,

  on_behalf_of text,     -- on whose behalf the actor says it acts
  fingerprint  bytea,    -- of the request with that id: a different request with the same id is rejected
  CONSTRAINT transitions_pkey PRIMARY KEY (order_no, seq)
);
CREATE INDEX transitions_position ON pawl.transitions (position);
CREATE INDEX transitions_request ON pawl.transitions (request_id, actor) WHERE request_id IS NOT NULL; -- for repeated bulk requests
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON pawl.transitions FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- The effects of the steps. Rows are only written by the statement that moves their order, so there is no foreign key
-- (it would cost a third of the speed); `pawl verify` looks for orphans. Keys are (order, generation): a step of one
-- generation can't happen twice, and the partial indexes allow only one live effect per order. executor is null for
-- the ledger. in_doubt: the row was written by the move that undoes the step, without knowing whether the step was
-- done. It becomes false if the undo of a charge names what it gave back: then the charge was made.

CREATE TABLE pawl.charges (
  order_no    bigint NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now(),
  refunded_at timestamptz,
  generation  integer NOT NULL,
  currency    text COLLATE "C" NOT NULL,
  amount      pawl.money_amount NOT NULL,
  executor    text COLLATE "C",
  reference   text COLLATE "C",
  data        jsonb,
  in_doubt    boolean,
  capture     text COLLATE "C",     -- on_confirm or later: the charge authorizes; null: it takes the money
  captured_at timestamptz,          -- of on_confirm
  capture_by  timestamptz,          -- of later: when the policy says that the authorization ends; null: never, or nothing is left
  capture_due_at timestamptz,       -- when to warn of that, and then when to ask the provider; null: never
  CONSTRAINT charges_pkey PRIMARY KEY (order_no, generation)
) WITH (vacuum_truncate = false);
CREATE UNIQUE INDEX charges_live ON pawl.charges (order_no) WHERE refunded_at IS NULL;
CREATE INDEX charges_capture_due ON pawl.charges (capture_due_at) WHERE capture_due_at IS NOT NULL;
CREATE INDEX charges_capture_by ON pawl.charges (capture_by) WHERE capture_by IS NOT NULL AND (capture_due_at IS NULL OR capture_due_at >= capture_by);
CREATE INDEX charges_reference ON pawl.charges (reference, order_no) WHERE reference IS NOT NULL; -- for searches, like the two below

-- One row for each item of the order, numbered by line. The first has the reference and the data.
CREATE TABLE pawl.reservations (
  order_no    bigint NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now(),
  released_at timestamptz,
  generation  integer NOT NULL,
  quantity    pawl.item_quantity NOT NULL,
  line        smallint NOT NULL DEFAULT 1,
  item        text COLLATE "C" NOT NULL,
  executor    text COLLATE "C",
  reference   text COLLATE "C",
  data        jsonb,
  in_doubt    boolean,
  CONSTRAINT reservations_pkey PRIMARY KEY (order_no, generation, line)
) WITH (vacuum_truncate = false);
CREATE UNIQUE INDEX reservations_live ON pawl.reservations (order_no) WHERE released_at IS NULL AND line = 1;
CREATE INDEX reservations_item ON pawl.reservations (item, order_no);
CREATE INDEX reservations_reference ON pawl.reservations (reference, order_no) WHERE reference IS NOT NULL;

-- A remote confirmation. That of the ledger is the final move itself.
CREATE TABLE pawl.confirmations (
  order_no   bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  generation integer NOT NULL,
  executor   text COLLATE "C" NOT NULL,
  reference  text,
  data       jsonb,
  CONSTRAINT confirmations_pkey PRIMARY KEY (order_no)
);

-- What is done to a charge after it was made. The refund that undoes a charge has number 0, and is done when it is
-- written. Operations that were requested for a completed order are numbered from 1.
CREATE DOMAIN pawl.charge_operation_kind AS text COLLATE "C" CONSTRAINT charge_operation_kind CHECK (VALUE IN
  ('refund', 'capture', 'void'));
CREATE DOMAIN pawl.charge_operation_state AS text COLLATE "C" CONSTRAINT charge_operation_state CHECK (VALUE IN
  ('pending', 'in_doubt', 'accepted', 'done', 'failed'));
CREATE TABLE pawl.charge_operations (
  order_no    bigint NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now(),
  generation  integer NOT NULL,
  currency    text COLLATE "C" NOT NULL,
  amount      pawl.money_amount NOT NULL,
  reference   text COLLATE "C",
  number      integer NOT NULL DEFAULT 0 CONSTRAINT charge_operations_number CHECK (number >= 0),
  claims      integer NOT NULL DEFAULT 0,
  kind        pawl.charge_operation_kind NOT NULL DEFAULT 'refund',
  state       pawl.charge_operation_state NOT NULL DEFAULT 'done',
  due_at      timestamptz,          -- when to send it, or look it up; null: never
  sent_at     timestamptz,          -- when its key was sent, which may have taken effect
  finished_at timestamptz,          -- when it was done or failed
  restock     pawl.item_quantity,   -- units that were returned to stock
  calling     boolean,              -- until due_at, a call is under way
  voided      pawl.money_amount,    -- of a final capture: what it voids of the authorization; null: more captures may follow
  executor    text COLLATE "C",     -- null: the ledger
  reason      text,
  request_id  text,                 -- null: a void that only asks the provider whether the authorization has ended
  code        text,                 -- why it is not done, or step_result if a person said so
  detail      text,
  lines       json,                 -- the lines of the order that it is about, with their units and amounts; null: it does not say
  CONSTRAINT charge_operations_pkey PRIMARY KEY (order_no, generation, number)
) WITH (vacuum_truncate = false);
CREATE UNIQUE INDEX charge_operations_request ON pawl.charge_operations (order_no, request_id) WHERE request_id IS NOT NULL; -- part of its key
CREATE INDEX charge_operations_due ON pawl.charge_operations (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX charge_operations_failed ON pawl.charge_operations (order_no) WHERE state = 'failed'; -- for lists
CREATE INDEX charge_operations_reference ON pawl.charge_operations (reference, order_no) WHERE reference IS NOT NULL;

-- +goose StatementBegin
CREATE FUNCTION pawl.guard_charge_operation() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  charged numeric;
  authorized numeric;
  refunded numeric;
  captured numeric;
  taken numeric;
  sold bigint;
  restocked bigint;
BEGIN
  -- The charge is written and not just locked: then a transaction with an older snapshot fails
  -- here, and does not add up what it can't see all of.
  UPDATE pawl.charges AS c SET refunded_at = c.refunded_at
  WHERE c.order_no = NEW.order_no AND c.generation = NEW.generation AND c.currency = NEW.currency AND c.refunded_at IS NULL
    AND c.executor IS NOT DISTINCT FROM NEW.executor
    AND EXISTS (SELECT FROM pawl.orders AS o WHERE o.order_no = NEW.order_no AND o.generation = NEW.generation AND o.status = 'completed')
  RETURNING c.amount, CASE WHEN c.capture = 'later' THEN c.amount ELSE 0 END INTO charged, authorized;
  SELECT coalesce(sum(f.amount) FILTER (WHERE f.kind = 'refund' AND f.state <> 'failed'), 0),
    coalesce(sum(f.amount) FILTER (WHERE f.kind = 'capture' AND f.state = 'done'), 0),
    coalesce(sum(f.amount + coalesce(f.voided, 0)) FILTER (WHERE f.kind <> 'refund' AND f.state <> 'failed'), 0),
    coalesce(sum(f.restock), 0) INTO refunded, captured, taken, restocked
  FROM pawl.charge_operations AS f WHERE f.order_no = NEW.order_no AND f.generation = NEW.generation AND f.number > 0;
  captured := CASE WHEN authorized > 0 THEN captured ELSE charged END;
  IF charged IS NULL OR NEW.amount = 0 OR NEW.request_id = '' OR NEW.request_id IS NULL AND NEW.kind <> 'void'
    OR refunded > captured OR taken > authorized
    OR NEW.voided IS NOT NULL AND NEW.kind <> 'capture' OR NEW.restock IS NOT NULL AND NEW.kind <> 'refund' THEN
    RAISE EXCEPTION 'order_no %: captures and voids of %, refunds of % in all, of a charge of %, captured %',
      NEW.order_no, taken, refunded, coalesce(charged, 0), coalesce(captured, 0)
      USING ERRCODE = 'check_violation', CONSTRAINT = 'charge_operations_guard';
  END IF;
  IF NEW.restock IS NOT NULL THEN
    SELECT coalesce(sum(r.quantity), 0) INTO sold FROM pawl.reservations AS r
    WHERE r.order_no = NEW.order_no AND r.generation = NEW.generation AND r.released_at IS NULL AND r.executor IS NULL;
    IF restocked > sold THEN
      RAISE EXCEPTION 'order_no %: % units put back, % sold from this stock', NEW.order_no, restocked, sold
        USING ERRCODE = 'check_violation', CONSTRAINT = 'charge_operations_guard';
    END IF;
  END IF;
  RETURN NULL;
END $$;

-- What is wrong with the lines of the operations of an order, by kind: units that the order does not have, or amounts
-- that are not those of the line. Lines that are no items may have parts of their amount, with no units. Units that were
-- put back stay so if their refund fails. Null: nothing.
CREATE FUNCTION pawl.operation_lines_fault(order_no bigint, generation integer) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT string_agg(format('%s of line %s: %s units at %s, %s put back, ordered %s at %s', s.kind, s.line, s.units, s.amount, s.restocked,
    coalesce(s.quantity, 0), s.ordered), ', ' ORDER BY s.kind, s.line)
  FROM (
    SELECT f.kind, l.line, b.quantity, b.amount AS ordered,
      coalesce(sum(l.quantity) FILTER (WHERE f.state <> 'failed'), 0) AS units,
      coalesce(sum(l.quantity) FILTER (WHERE l.restock), 0) AS restocked,
      CASE WHEN b.amount IS NOT NULL THEN coalesce(sum(l.amount) FILTER (WHERE f.state <> 'failed'), 0) END AS amount,
      bool_or(l.quantity = 0) AS parts,
      bool_and((l.quantity > 0 OR l.quantity = 0 AND l.kind IS NOT NULL AND l.amount * b.amount > 0) AND l.item = b.item AND l.kind IS NOT DISTINCT FROM b.kind AND (l.amount IS NULL) = (b.amount IS NULL)
        AND (l.restock IS NOT TRUE OR l.kind IS NULL AND f.kind = 'refund')) AS matches
    FROM pawl.charge_operations AS f
    CROSS JOIN LATERAL json_to_recordset(f.lines) AS l(line bigint, item text, kind text, quantity bigint, amount numeric, restock boolean)
    LEFT JOIN (pawl.orders AS o CROSS JOIN LATERAL ROWS FROM (
        json_to_recordset(o.lines) AS (item text, kind text, quantity bigint, amount numeric)) WITH ORDINALITY AS b(item, kind, quantity, amount, line))
      ON o.order_no = f.order_no AND b.line = l.line
    WHERE f.order_no = $1 AND f.generation = $2 AND f.number > 0
    GROUP BY f.kind, l.line, b.quantity, b.amount) AS s
  WHERE (s.matches AND s.units <= s.quantity AND s.restocked <= s.quantity
    AND (s.ordered IS NULL OR CASE WHEN s.units = s.quantity AND NOT s.parts THEN s.amount = s.ordered ELSE abs(s.amount) <= abs(s.ordered) END)) IS NOT TRUE
$$;

CREATE FUNCTION pawl.guard_operation_lines() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fault text := pawl.operation_lines_fault(NEW.order_no, NEW.generation); -- charge_operations_guard has locked the charge
  lined boolean := (SELECT o.lines IS NOT NULL FROM pawl.orders AS o WHERE o.order_no = NEW.order_no);
  restocked bigint := (SELECT sum(l.quantity) FROM json_to_recordset(NEW.lines) AS l(quantity bigint, restock boolean) WHERE l.restock);
BEGIN
  IF fault IS NOT NULL OR lined AND NEW.restock IS DISTINCT FROM restocked THEN
    RAISE EXCEPTION 'order_no %: %', NEW.order_no, coalesce(fault, 'the lines of operation ' || NEW.number || ' put back ' || coalesce(restocked, 0) || ' units')
      USING ERRCODE = 'check_violation', CONSTRAINT = 'charge_operations_guard';
  END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION pawl.refuse_charge_operation_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'order_no %: what charge operation % is about does not change, nor one that has failed, nor a done capture or void',
    OLD.order_no, OLD.number
    USING ERRCODE = 'check_violation', CONSTRAINT = 'charge_operations_guard';
END $$;
-- +goose StatementEnd

-- What was captured and voided, and has not failed, must not exceed the authorization. Refunds that have not failed
-- must not exceed what was captured, nor their units the order. What a charge took at once can't be captured again.
CREATE TRIGGER charge_operations_guard AFTER INSERT ON pawl.charge_operations FOR EACH ROW WHEN (NEW.number <> 0) EXECUTE FUNCTION pawl.guard_charge_operation();
CREATE TRIGGER charge_operations_guard_lines AFTER INSERT ON pawl.charge_operations FOR EACH ROW
  WHEN (NEW.number <> 0 AND num_nonnulls(NEW.lines, NEW.restock) > 0) EXECUTE FUNCTION pawl.guard_operation_lines();
CREATE TRIGGER charge_operations_guard_change AFTER UPDATE ON pawl.charge_operations FOR EACH ROW WHEN (OLD.number <> 0 AND (
  (NEW.order_no, NEW.generation, NEW.number, NEW.kind, NEW.amount, NEW.currency, coalesce(NEW.restock, 0), coalesce(NEW.voided, -1),
    coalesce(NEW.lines::text, ''), coalesce(NEW.executor, ''), coalesce(NEW.request_id, ''))
  <> (OLD.order_no, OLD.generation, OLD.number, OLD.kind, OLD.amount, OLD.currency, coalesce(OLD.restock, 0), coalesce(OLD.voided, -1),
    coalesce(OLD.lines::text, ''),
    coalesce(OLD.executor, ''), coalesce(OLD.request_id, ''))
  OR NEW.state <> OLD.state AND (OLD.state = 'failed' OR OLD.state = 'done' AND OLD.kind <> 'refund'))
) EXECUTE FUNCTION pawl.refuse_charge_operation_change();

-- What was reported about disputes of charges: each state of each dispute once. They are facts: they move nothing, and
-- never change. won and lost are from the point of view of the seller.
CREATE DOMAIN pawl.dispute_state AS text COLLATE "C" CONSTRAINT dispute_state CHECK (VALUE IN ('opened', 'won', 'lost'));
CREATE TABLE pawl.disputes (
  order_no    bigint NOT NULL,
  recorded_at timestamptz NOT NULL DEFAULT now(),
  at          timestamptz NOT NULL,           -- when it happened, as reported
  amount      pawl.money_amount NOT NULL CONSTRAINT disputes_amount CHECK (amount > 0),
  state       pawl.dispute_state NOT NULL,
  currency    text COLLATE "C" NOT NULL,
  reference   text COLLATE "C" NOT NULL CONSTRAINT disputes_reference CHECK (reference <> ''), -- the provider's, of the dispute
  reason      text,
  charge      text COLLATE "C",               -- the provider's name for the charge, where the charge of the order has another
  CONSTRAINT disputes_pkey PRIMARY KEY (order_no, reference, state)
) WITH (vacuum_truncate = false);
CREATE INDEX disputes_reference ON pawl.disputes (reference, order_no);
CREATE INDEX disputes_charge ON pawl.disputes (charge, order_no) WHERE charge IS NOT NULL;

-- +goose StatementBegin
CREATE FUNCTION pawl.guard_dispute() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM pawl.charges AS c WHERE c.order_no = NEW.order_no AND c.currency = NEW.currency) THEN
    RAISE EXCEPTION 'order_no %: dispute % is about no charge in %', NEW.order_no, NEW.reference, NEW.currency
      USING ERRCODE = 'check_violation', CONSTRAINT = 'disputes_guard';
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER disputes_guard AFTER INSERT ON pawl.disputes FOR EACH ROW EXECUTE FUNCTION pawl.guard_dispute();
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON pawl.disputes FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- One row per item that was ever reserved or given stock. Until it is given stock, an item is untracked and never
-- runs out. Reserving raises reserved. Confirming is the sale, which lowers on_hand and reserved. on_hand - reserved
-- is available. Sold units are counted even if the item is untracked.
CREATE DOMAIN pawl.stock_count AS bigint CONSTRAINT stock_count CHECK (VALUE >= 0);
CREATE TABLE pawl.inventory (
  on_hand    pawl.stock_count NOT NULL DEFAULT 0,
  reserved   pawl.stock_count NOT NULL DEFAULT 0,
  sold       pawl.stock_count NOT NULL DEFAULT 0,
  version    bigint NOT NULL DEFAULT 1,   -- raised by every sale and every stock movement
  tracked    boolean NOT NULL DEFAULT false,
  item       text COLLATE "C" PRIMARY KEY,
  CONSTRAINT inventory_not_oversold CHECK (NOT tracked OR reserved <= on_hand)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);

-- Every change of on_hand, except for sales, which are in their orders: on_hand is the sum of the changes, less what
-- was sold since the first of them. The statement that changes the stock writes the row, which has the new version of
-- the item.
CREATE TABLE pawl.stock_movements (
  version    bigint NOT NULL,
  at         timestamptz NOT NULL DEFAULT now(),
  change     bigint NOT NULL,        -- units: on_hand afterwards less on_hand before
  on_hand    pawl.stock_count NOT NULL,   -- afterwards
  sold       pawl.stock_count NOT NULL,   -- units of the item that were sold before
  position   bigint NOT NULL DEFAULT txid_current(), -- as in transitions
  item       text COLLATE "C" NOT NULL,
  kind       text COLLATE "C" NOT NULL,
  actor      text COLLATE "C" NOT NULL, -- the principal that requested it
  on_behalf_of text,                 -- on whose behalf it says it acts
  reason     text,
  request_id text NOT NULL,          -- the caller's, or one of ours; identifies a repetition. Of a restock: the refund
  CONSTRAINT stock_movements_pkey PRIMARY KEY (item, version),
  CONSTRAINT stock_movements_kind CHECK (kind IN ('set', 'adjustment', 'restock'))
);
-- A restock needs no index, because its refund happens only once. Its request_id must not collide with one of a
-- caller.
CREATE UNIQUE INDEX stock_movements_request ON pawl.stock_movements (item, request_id, actor) WHERE kind <> 'restock';

CREATE INDEX stock_movements_position ON pawl.stock_movements (position);

-- Empty pages, for the same reason as in pawl.orders.
ALTER TABLE pawl.charges SET (fillfactor = 10);
ALTER TABLE pawl.reservations SET (fillfactor = 10);
ALTER TABLE pawl.charge_operations SET (fillfactor = 10);
ALTER TABLE pawl.inventory SET (fillfactor = 10);
INSERT INTO pawl.charges (order_no, generation, currency, amount)
SELECT page, 0, repeat('x', 900), 0 FROM generate_series(1, 128) AS page;
INSERT INTO pawl.reservations (order_no, generation, quantity, item)
SELECT page, 0, 1, repeat('x', 900) FROM generate_series(1, 128) AS page;
INSERT INTO pawl.charge_operations (order_no, generation, currency, amount)
SELECT page, 0, repeat('x', 900), 0 FROM generate_series(1, 128) AS page;
INSERT INTO pawl.inventory (item) SELECT rpad(page::text, 900, 'x') FROM generate_series(1, 128) AS page;
DELETE FROM pawl.charges;
DELETE FROM pawl.reservations;
DELETE FROM pawl.charge_operations;
DELETE FROM pawl.inventory;
ALTER TABLE pawl.charges RESET (fillfactor);
ALTER TABLE pawl.reservations RESET (fillfactor);
ALTER TABLE pawl.charge_operations RESET (fillfactor);
ALTER TABLE pawl.inventory SET (fillfactor = 50);

CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.charges FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.reservations FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.confirmations FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.charge_operations FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.inventory FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON pawl.stock_movements FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- The charges that count as money, and what was done to them. A charge that is in doubt may never have happened: neither it
-- nor its undo counts.
CREATE VIEW pawl.known_charges AS SELECT * FROM pawl.charges AS c WHERE c.in_doubt IS NOT TRUE;
CREATE VIEW pawl.known_operations AS SELECT * FROM pawl.charge_operations AS f WHERE f.state = 'done'
  AND (f.number > 0 OR (SELECT c.in_doubt FROM pawl.charges AS c WHERE c.order_no = f.order_no AND c.generation = f.generation) IS NOT TRUE);

-- When money moved, and how much: what went back is negative. An authorization moves none, nor does its end. A lost
-- dispute counts from when it was lost, and its money was moved by the provider.
CREATE VIEW pawl.movements AS
SELECT c.order_no, c.currency, CASE WHEN c.capture IS NULL THEN c.created_at ELSE c.captured_at END AS at, 'charge'::text AS kind,
  c.amount::numeric AS amount, c.reference
FROM pawl.known_charges AS c WHERE c.capture IS NULL OR c.captured_at IS NOT NULL
UNION ALL
SELECT c.order_no, c.currency, c.refunded_at, 'undo', - c.amount::numeric,
  (SELECT f.reference FROM pawl.charge_operations AS f WHERE f.order_no = c.order_no AND f.generation = c.generation AND f.number = 0)
FROM pawl.known_charges AS c WHERE c.refunded_at IS NOT NULL AND (c.capture IS NULL OR c.captured_at IS NOT NULL)
UNION ALL
SELECT f.order_no, f.currency, coalesce(f.finished_at, f.created_at), f.kind::text, CASE WHEN f.kind = 'refund' THEN - f.amount::numeric ELSE f.amount::numeric END, f.reference
FROM pawl.charge_operations AS f WHERE f.number > 0 AND f.state = 'done' AND f.kind <> 'void'
UNION ALL
SELECT d.order_no, d.currency, d.at, 'dispute_lost', - d.amount::numeric, d.reference FROM pawl.disputes AS d WHERE d.state = 'lost';

-- The money of orders, a row for each charge, each operation that is done, and each dispute. In every currency,
-- charged - undone - refunded - voided - authorized - lost is what is kept. An authorization is charged, but is not
-- money. A charge stands unless it was undone, whatever was refunded of it on request.
CREATE VIEW pawl.order_money AS
SELECT c.order_no, c.currency, 1 AS charges, c.amount::numeric AS charged, 0::numeric AS undone, 0::numeric AS refunded, 0::numeric AS voided,
  CASE WHEN c.refunded_at IS NULL AND c.capture IS NOT NULL AND c.captured_at IS NULL THEN c.amount ELSE 0 END::numeric AS authorized,
  CASE WHEN c.refunded_at IS NULL THEN c.amount ELSE 0 END::numeric AS standing, 0::numeric AS disputed, 0::numeric AS lost
FROM pawl.known_charges AS c
UNION ALL
SELECT f.order_no, f.currency, 0, 0, CASE WHEN f.number = 0 THEN f.amount ELSE 0 END::numeric,
  CASE WHEN f.number > 0 AND f.kind = 'refund' THEN f.amount ELSE 0 END::numeric,
  CASE WHEN f.kind = 'void' THEN f.amount ELSE coalesce(f.voided, 0) END::numeric,
  CASE WHEN f.kind <> 'refund' THEN - f.amount - coalesce(f.voided, 0) ELSE 0 END::numeric, 0, 0, 0
FROM pawl.known_operations AS f
UNION ALL
SELECT d.order_no, d.currency, 0, 0, 0, 0, 0, 0, 0, CASE WHEN bool_and(d.state = 'opened') THEN max(d.amount) ELSE 0 END::numeric,
  coalesce(sum(d.amount) FILTER (WHERE d.state = 'lost'), 0)::numeric
FROM pawl.disputes AS d GROUP BY d.order_no, d.currency, d.reference;

-- An order as the service reads it: its row, the effects and undos of its generation, and the operations of its
-- charge that were requested.
CREATE VIEW pawl.full_orders AS
SELECT o.*, c.created_at AS charged_at, c.refunded_at, r.created_at AS reserved_at, r.released_at,
  c.reference AS charge_reference, r.reference AS reserve_reference, c.in_doubt AS charge_in_doubt, r.in_doubt AS reserve_in_doubt,
  c.capture AS charge_capture, c.capture_by,
  coalesce(CASE WHEN c.refunded_at IS NOT NULL THEN (SELECT f.reference FROM pawl.charge_operations AS f
    WHERE f.order_no = o.order_no AND f.generation = o.generation AND f.number = 0) END, '')::text AS undo_reference,
  (CASE WHEN o.charge_operations IS NOT NULL THEN (
    SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('number', f.number, 'kind', f.kind, 'state', f.state, 'amount', f.amount::text,
      'restock', f.restock, 'voided', f.voided::text, 'lines', f.lines,
      'calling', CASE WHEN f.calling AND f.due_at > now() THEN true END,
      'reason', f.reason, 'requestId', f.request_id, 'createdAt', f.created_at, 'finishedAt', f.finished_at,
      'reference', f.reference, 'code', f.code, 'detail', f.detail,
      'nextAt', CASE WHEN f.code IS DISTINCT FROM 'outcome_unknown' THEN f.due_at END)) ORDER BY f.number)
    FROM pawl.charge_operations AS f WHERE f.order_no = o.order_no AND f.generation = o.generation AND f.number > 0) END)::jsonb AS charge_operation_list,
  (CASE WHEN o.disputes IS NOT NULL THEN (
    SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('reference', d.reference, 'state', d.state, 'amount', d.amount::text,
      'reason', d.reason, 'charge', d.charge, 'at', d.at)) ORDER BY d.at, d.reference, array_position(ARRAY['opened', 'won', 'lost'], d.state::text))
    FROM pawl.disputes AS d WHERE d.order_no = o.order_no) END)::jsonb AS dispute_list
FROM pawl.orders AS o
LEFT JOIN pawl.charges AS c ON c.order_no = o.order_no AND c.generation = o.generation
LEFT JOIN pawl.reservations AS r ON r.order_no = o.order_no AND r.generation = o.generation AND r.line = 1;

-- The same columns without values: statements that write orders add them to the rows that they return.
CREATE VIEW pawl.no_effects AS
SELECT NULL::timestamptz AS charged_at, NULL::timestamptz AS refunded_at, NULL::timestamptz AS reserved_at, NULL::timestamptz AS released_at,
  NULL::text AS charge_reference, NULL::text AS reserve_reference, NULL::boolean AS charge_in_doubt, NULL::boolean AS reserve_in_doubt,
  NULL::text AS charge_capture, NULL::timestamptz AS capture_by, ''::text AS undo_reference,
  NULL::jsonb AS charge_operation_list, NULL::jsonb AS dispute_list;

-- The orders of a page, in its order, up to a number of bytes; the last order may exceed it. Only compressed values
-- are decompressed to be measured.
CREATE FUNCTION pawl.orders_within(page bigint[], bytes bigint) RETURNS SETOF bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT s.order_no FROM (
    SELECT m.order_no, m.size, sum(m.size) OVER (ORDER BY array_position(page, m.order_no)) AS total
    FROM (
      SELECT o.order_no, 1000 * (coalesce(o.charge_operations, 0) + coalesce(o.disputes, 0)) + coalesce(octet_length(o.action::text), 0)
        + (1 + coalesce(o.charge_operations, 0)) * coalesce(octet_length(o.lines::text), 0)
        + coalesce(CASE WHEN pg_column_compression(o.metadata) IS NULL THEN pg_column_size(o.metadata)
          ELSE octet_length(o.metadata::text) END, 0) AS size
      FROM pawl.orders AS o WHERE o.order_no = ANY(page)) AS m) AS s
  WHERE s.total - s.size < bytes
$$;

-- The newest orders before a number with a value under one of the metadata keys that can be searched. There is an index for each key,
-- which the owner makes (pawl migrate search-keys), and its comment is the key. The conditions are those of the index.
-- Its values are cut, because a row of an index has a limit, so they are compared again.
-- +goose StatementBegin
CREATE FUNCTION pawl.orders_by_metadata(term text, before bigint, most integer) RETURNS TABLE (order_no bigint, key text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  FOR key IN
    SELECT obj_description(i.indexrelid, 'pg_class') FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
    WHERE i.indrelid = 'pawl.orders'::regclass AND i.indisvalid AND starts_with(c.relname, 'orders_metadata_') ORDER BY 1
  LOOP
    CONTINUE WHEN key IS NULL;
    RETURN QUERY EXECUTE format($f$
      SELECT f.order_no, %1$L::text FROM (
        SELECT o.order_no, o.metadata ->> %1$L AS value FROM pawl.orders AS o
        WHERE o.metadata ? %1$L AND (left(o.metadata ->> %1$L, 255) COLLATE "C", o.order_no) > (left($1, 255), 0)
          AND (left(o.metadata ->> %1$L, 255) COLLATE "C", o.order_no) < (left($1, 255), $2)
        ORDER BY left(o.metadata ->> %1$L, 255) COLLATE "C" DESC, o.order_no DESC LIMIT $3) AS f
      WHERE f.value = $1$f$, key) USING term, before, most;
  END LOOP;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION pawl.orders_by_metadata(text, bigint, integer);
DROP FUNCTION pawl.orders_within(bigint[], bigint);
DROP VIEW pawl.no_effects, pawl.full_orders, pawl.order_money, pawl.movements, pawl.known_operations, pawl.known_charges;
DROP TABLE pawl.stock_movements;
DROP TABLE pawl.inventory;
DROP DOMAIN pawl.stock_count;
DROP TABLE pawl.disputes;
DROP FUNCTION pawl.guard_dispute();
DROP DOMAIN pawl.dispute_state;
DROP TABLE pawl.charge_operations;
DROP FUNCTION pawl.refuse_charge_operation_change();
DROP FUNCTION pawl.guard_operation_lines();
DROP FUNCTION pawl.operation_lines_fault(bigint, integer);
DROP FUNCTION pawl.guard_charge_operation();
DROP DOMAIN pawl.charge_operation_state;
DROP DOMAIN pawl.charge_operation_kind;
DROP TABLE pawl.confirmations;
DROP TABLE pawl.reservations;
DROP TABLE pawl.charges;
DROP TABLE pawl.transitions;
