-- +goose Up

-- Orders that ended long ago can be forgotten: their rows are removed, with history and effects. What stays of an order
-- is in the row of its batch, so that a late repetition of its request is answered and never processed again. Sums by
-- day, and by item, keep the proof of the books whole.
--
-- An order is forgotten in two transactions. The first one marks a batch (pawl.mark_forgotten): it writes that row.
-- The second one removes the orders (pawl.remove_forgotten), but only after every statement has ended that may have
-- begun before the mark was visible. Otherwise such a statement could admit the id again: it would see neither the mark
-- nor, in the unique index, the order.

-- What forgotten orders come to. Removed orders of the other half of a divided cell are not among them.
CREATE TABLE pawl.forgotten_sums (
  sum_no   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  placed_on date NOT NULL,                 -- UTC, when the order was made
  orders   bigint NOT NULL DEFAULT 0,
  charges  bigint NOT NULL DEFAULT 0,
  currency pawl.currency_code NOT NULL,
  status   pawl.order_status NOT NULL,
  charged  numeric NOT NULL DEFAULT 0,
  refunded numeric NOT NULL DEFAULT 0,    -- by undos, and on request
  voided   numeric NOT NULL DEFAULT 0,    -- of authorizations
  kept     numeric NOT NULL DEFAULT 0,    -- captured, and neither refunded nor lost
  lost     numeric NOT NULL DEFAULT 0,    -- in disputes
  CONSTRAINT forgotten_sums_money CHECK (charged = refunded + voided + lost + kept)
);
CREATE UNIQUE INDEX forgotten_sums_day ON pawl.forgotten_sums (placed_on, currency, status);

-- The money of the same orders, by the day (UTC) on which it moved.
CREATE TABLE pawl.forgotten_movements (
  day      date NOT NULL,
  currency text COLLATE "C" NOT NULL,
  captured numeric NOT NULL,
  refunded numeric NOT NULL,              -- on request
  undone   numeric NOT NULL,
  lost     numeric NOT NULL,              -- in disputes
  CONSTRAINT forgotten_movements_pkey PRIMARY KEY (day, currency)
);

-- The units that removed orders had sold from this stock, and those that their refunds had put back.
CREATE TABLE pawl.forgotten_stock (
  item      text COLLATE "C" PRIMARY KEY,
  sold      bigint NOT NULL,
  restocked bigint NOT NULL
);

-- One row per batch, with arrays of what is left of its orders, all in the same sequence: a row for each order, with an
-- index of its hash, would take more than twice the space. The ids of orders are not stored, nor anything else that a
-- person wrote. At most one batch is open.
--
-- Replicas keep the first bits of all hashes in memory, with their batch: see OrdersAdmit. They have learned from all
-- batches if they know the id of the newest.
CREATE TABLE pawl.forgotten_batches (
  batch_no   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  marked_at  timestamptz NOT NULL DEFAULT now(),
  removed_at timestamptz,         -- null: the orders are marked, and still there
  orders     integer NOT NULL DEFAULT 0, -- how many were forgotten
  others     integer NOT NULL DEFAULT 0, -- how many of the other half of a divided cell were removed
  archive    boolean NOT NULL,    -- an archive stores the orders before it removes them
  order_nos  int8multirange NOT NULL,
  id         uuid NOT NULL DEFAULT gen_random_uuid(),
  id_hashes   uuid[] NOT NULL,    -- pawl.order_id_hash; zero: the order was not removed in the end
  created_at  timestamptz[] NOT NULL,
  sum_nos     integer[] NOT NULL, -- of its day, currency and status
  seqs        integer[] NOT NULL,
  generations integer[] NOT NULL,
  inputs      bytea NOT NULL,     -- pawl.input_hash of each order, all made as long as the longest by zeros
  refunded    numeric[],          -- by requested refunds. In this array and the next two, null is nothing
  voided      numeric[],          -- of authorizations
  erased      boolean[]           -- the customer in the input is a pseudonym
) WITH (vacuum_truncate = false);
-- Hashes can't be compressed.
ALTER TABLE pawl.forgotten_batches ALTER COLUMN id_hashes SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX forgotten_batches_open ON pawl.forgotten_batches ((true)) WHERE removed_at IS NULL;
CREATE INDEX forgotten_batches_numbers ON pawl.forgotten_batches USING gist (order_nos);

-- Empty pages, as in pawl.orders: admissions look for batches here.
ALTER TABLE pawl.forgotten_batches SET (fillfactor = 10);
INSERT INTO pawl.forgotten_batches (batch_no, removed_at, archive, order_nos, id_hashes, created_at, sum_nos, seqs, generations, inputs)
OVERRIDING SYSTEM VALUE
SELECT -page, now(), false, '{}', array_fill(gen_random_uuid(), ARRAY[50]), '{}', '{}', '{}', '{}', '' FROM generate_series(1, 128) AS page;
DELETE FROM pawl.forgotten_batches;
ALTER TABLE pawl.forgotten_batches RESET (fillfactor);
ALTER TABLE pawl.forgotten_batches SET (toast_tuple_target = 128); -- so that an update does not write the arrays again

-- The orders of the batches. A reader that does not say the batch reads all of them.
CREATE VIEW pawl.forgotten_orders AS
SELECT b.batch_no, f.id_hash, f.created_at, f.sum_no, f.seq, f.generation,
  substr(b.inputs, ((f.place - 1) * w.width + 1)::integer, w.width) AS input, f.refunded, f.voided, coalesce(f.erased, false) AS erased
FROM pawl.forgotten_batches AS b CROSS JOIN LATERAL ROWS FROM (unnest(b.id_hashes), unnest(b.created_at), unnest(b.sum_nos), unnest(b.seqs),
  unnest(b.generations), unnest(b.refunded), unnest(b.voided), unnest(b.erased))
  WITH ORDINALITY AS f(id_hash, created_at, sum_no, seq, generation, refunded, voided, erased, place)
CROSS JOIN LATERAL (SELECT length(b.inputs) / cardinality(b.id_hashes) AS width) AS w
WHERE f.id_hash <> '00000000-0000-0000-0000-000000000000';

CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.forgotten_sums FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.forgotten_movements FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.forgotten_stock FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.forgotten_batches FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER never_changed BEFORE UPDATE ON pawl.forgotten_batches FOR EACH ROW
  WHEN (OLD.removed_at <> now()) -- by another transaction
  EXECUTE FUNCTION pawl.refuse_removal();

-- +goose StatementBegin
-- The first half of the SHA-256 of the id. The service calculates the same.
CREATE FUNCTION pawl.order_id_hash(order_id text) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
  SELECT encode(substr(sha256(convert_to(order_id_hash.order_id, 'UTF8')), 1, 16), 'hex')::uuid;
END;

-- The input of a request, or of an order, as hashes: eight bytes for what was bought, and for each optional term that
-- is there its number and four bytes. The order id is in each of them, so that equal terms of two orders look
-- different. An order may have had two payment methods.
CREATE FUNCTION pawl.input_hash(order_id text, amount numeric, item text, quantity integer, lines json, customer_id text,
  payment_methods text[], start_at timestamptz, complete_by timestamptz, reservation_ttl double precision, concurrency_key text, submitted_by text)
RETURNS bytea LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT substr(sha256(convert_to(jsonb_build_array(input_hash.order_id, trim_scale(input_hash.amount)::text, (
      SELECT jsonb_agg(jsonb_build_array(l.kind, l.item, coalesce(l.quantity, 1), trim_scale(l.amount)::text) ORDER BY l.line)
      FROM ROWS FROM (json_to_recordset(coalesce(input_hash.lines, json_build_array(json_build_object('item', input_hash.item, 'quantity', input_hash.quantity))))
        AS (kind text, item text, quantity integer, amount numeric)) WITH ORDINALITY AS l(kind, item, quantity, amount, line)))::text, 'UTF8')), 1, 8)
    || coalesce((
      SELECT string_agg(set_byte('\x00', 0, t.term) || substr(sha256(convert_to(jsonb_build_array(input_hash.order_id, t.value)::text, 'UTF8')), 1, 4), '' ORDER BY t.term)
      FROM (VALUES (1, input_hash.customer_id), (3, extract(epoch FROM input_hash.start_at)::text), (4, extract(epoch FROM input_hash.complete_by)::text),
        (5, input_hash.reservation_ttl::text), (6, input_hash.concurrency_key), (7, input_hash.submitted_by)
        UNION ALL SELECT 2, m FROM unnest(input_hash.payment_methods) AS m) AS t(term, value)
      WHERE t.value <> ''), '')
$$;

CREATE FUNCTION pawl.numbers_in(numbers int8multirange) RETURNS bigint[] LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(array_agg(n ORDER BY n), '{}') FROM unnest(numbers_in.numbers) AS r, generate_series(lower(r), upper(r) - 1) AS n
$$;

-- Those of some orders that can be forgotten: they ended before a time, nothing has happened to them since, and nothing
-- is open or still to be told about them. An order stays while the feed has one of its events, a webhook delivery of it
-- is kept, a refund, capture or late undo is open, money is authorized and neither captured nor voided, or a dispute
-- has no outcome.
CREATE FUNCTION pawl.forgettable_orders(numbers bigint[], before timestamptz) RETURNS SETOF bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY(forgettable_orders.numbers) AND o.ended_as IS NOT NULL
    AND NOT EXISTS (SELECT FROM pawl.transitions AS t WHERE t.order_no = o.order_no
      AND (t.at >= forgettable_orders.before OR t.position >= coalesce((SELECT min(b.position_from) FROM pawl.event_batches AS b), 0)))
    AND NOT EXISTS (SELECT FROM pawl.charge_operations AS f WHERE f.order_no = o.order_no
      AND (f.due_at IS NOT NULL OR f.state NOT IN ('done', 'failed')))
    AND NOT EXISTS (SELECT FROM pawl.charges AS c WHERE c.order_no = o.order_no AND c.refunded_at IS NULL AND (c.capture_due_at IS NOT NULL
      OR c.capture = 'later' AND c.amount > (SELECT coalesce(sum(f.amount + coalesce(f.voided, 0)), 0) FROM pawl.charge_operations AS f
        WHERE f.order_no = c.order_no AND f.generation = c.generation AND f.kind <> 'refund' AND f.state = 'done')))
    AND NOT EXISTS (SELECT FROM pawl.late_undos AS u WHERE u.order_no = o.order_no AND u.finished_at IS NULL)
    AND NOT EXISTS (SELECT FROM pawl.disputes AS d WHERE d.order_no = o.order_no AND d.state = 'opened' AND NOT EXISTS (
      SELECT FROM pawl.disputes AS e WHERE e.order_no = d.order_no AND e.reference = d.reference AND e.state <> 'opened'))
    AND NOT EXISTS (SELECT FROM pawl.webhook_endpoints AS e CROSS JOIN LATERAL (
      SELECT FROM pawl.webhook_deliveries AS d WHERE d.endpoint_no = e.endpoint_no AND d.subject = 'order ' || o.order_no LIMIT 1) AS d)
$$;

-- Marks those of the next orders after a number that can be forgotten, unless a batch is open. last is the number of
-- the last order that was looked at; null: no order after it is old enough. open_for is the age of the open batch, in
-- seconds, after the call; null: there is none. Callers decide how old orders are forgotten, but no less than 31 days,
-- because callbacks of a call are valid for 31 days, and idempotency keys are kept for 30.
CREATE FUNCTION pawl.mark_forgotten(after bigint, looks integer, older_than interval, archive boolean)
RETURNS TABLE (last bigint, marked integer, open_for double precision, open_archive boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  cell text := (SELECT i.cell FROM pawl.installation AS i);
  cells integer := split_part(cell, '/', 2)::integer;
  looked bigint[];
  eligible bigint[];
  own bigint[];
BEGIN
  IF older_than < interval '31 days' OR cell LIKE '%+%' THEN
    RAISE EXCEPTION 'orders are forgotten after 31 days at the earliest, and not while the database is divided' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  -- One mark at a time, until it is committed: replicas learn batches by number, and must not see a later one first.
  -- Nobody who only reads the table waits.
  LOCK TABLE pawl.forgotten_batches IN SHARE ROW EXCLUSIVE MODE;
  SELECT extract(epoch FROM clock_timestamp() - b.marked_at)::double precision, b.archive INTO open_for, open_archive
  FROM pawl.forgotten_batches AS b WHERE b.removed_at IS NULL;
  marked := 0;
  IF open_for IS NOT NULL THEN
    RETURN NEXT;
    RETURN;
  END IF;
  SELECT coalesce(array_agg(w.order_no) FILTER (WHERE w.created_at < now() - older_than), '{}'),
    CASE WHEN count(*) = looks AND bool_and(w.created_at < now() - older_than) THEN max(w.order_no) END INTO looked, last
  FROM (SELECT o.order_no, o.created_at FROM pawl.orders AS o WHERE o.order_no > after ORDER BY o.order_no LIMIT looks) AS w;
  eligible := ARRAY(SELECT f FROM pawl.forgettable_orders(looked, now() - older_than) AS f);
  IF eligible <> '{}' THEN
    own := ARRAY(SELECT o.order_no FROM pawl.orders AS o WHERE o.order_no = ANY(eligible)
      AND get_byte(sha256(convert_to(o.order_id, 'UTF8')), 0) * cells / 256 = split_part(cell, '/', 1)::integer);
    marked := cardinality(eligible);
    open_for := 0;
    open_archive := archive;
    INSERT INTO pawl.forgotten_sums (placed_on, currency, status)
    SELECT DISTINCT (o.created_at AT TIME ZONE 'UTC')::date, o.currency, o.status FROM pawl.orders AS o WHERE o.order_no = ANY(own)
    ON CONFLICT DO NOTHING;
    INSERT INTO pawl.forgotten_batches (archive, order_nos, id_hashes, created_at, sum_nos, seqs, generations, inputs, refunded, voided, erased)
    SELECT mark_forgotten.archive, (SELECT range_agg(int8range(n, n, '[]')) FROM unnest(eligible) AS n),
      coalesce(array_agg(pawl.order_id_hash(l.order_id) ORDER BY l.order_no), '{}'), coalesce(array_agg(l.created_at ORDER BY l.order_no), '{}'),
      coalesce(array_agg(l.sum_no ORDER BY l.order_no), '{}'), coalesce(array_agg(l.seq ORDER BY l.order_no), '{}'),
      coalesce(array_agg(l.generation ORDER BY l.order_no), '{}'),
      coalesce(string_agg(l.input || decode(repeat('00', l.width - length(l.input)), 'hex'), '' ORDER BY l.order_no), ''),
      CASE WHEN count(l.refunded) > 0 THEN array_agg(l.refunded ORDER BY l.order_no) END,
      CASE WHEN count(l.voided) > 0 THEN array_agg(l.voided ORDER BY l.order_no) END,
      CASE WHEN bool_or(l.erased) THEN array_agg(l.erased ORDER BY l.order_no) END
    FROM (SELECT h.*, max(length(h.input)) OVER () AS width FROM (
      SELECT o.order_no, o.order_id, o.created_at, s.sum_no, o.seq, o.generation, nullif(f.refunded, 0) AS refunded, nullif(f.voided, 0) AS voided,
        pawl.input_hash(o.order_id, o.amount, o.item, o.quantity, o.lines, o.customer_id,
          ARRAY[o.payment_method, (SELECT t.payment_method FROM pawl.transitions AS t WHERE t.order_no = o.order_no AND t.payment_method <> '' ORDER BY t.seq LIMIT 1)],
          o.start_at, o.complete_by, o.reservation_ttl, substring(o.concurrency_key FROM '^key:(.*)$'), o.submitted_by) AS input,
        EXISTS (SELECT FROM pawl.erasures AS e WHERE e.pseudonym = o.customer_id) AS erased
      FROM pawl.orders AS o
      JOIN pawl.forgotten_sums AS s ON s.placed_on = (o.created_at AT TIME ZONE 'UTC')::date AND s.currency = o.currency AND s.status = o.status
      CROSS JOIN LATERAL (
        SELECT sum(f.amount) FILTER (WHERE f.kind = 'refund') AS refunded,
          sum(CASE WHEN f.kind = 'void' THEN f.amount ELSE coalesce(f.voided, 0) END) AS voided
        FROM pawl.charge_operations AS f WHERE f.order_no = o.order_no AND f.number > 0 AND f.state = 'done') AS f
      WHERE o.order_no = ANY(own)) AS h) AS l;
  END IF;
  RETURN NEXT;
END $$;

-- Removes the orders of the open batch, which another transaction has marked: the batch of an archive with this id, or if
-- it is null, one of the service. waiting: statements that may not know of the mark are still running, so nothing was
-- done. An order to which something has happened since the mark stays, because its row, and the file of an archive, may
-- not show it.
CREATE FUNCTION pawl.remove_forgotten(archived uuid) RETURNS TABLE (removed integer, waiting boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
DECLARE
  batch bigint;
  numbers bigint[];
  writers text[];
  gone bigint[];
  stay uuid[];
  items text[];
  restocks text[];
  marked timestamptz;
BEGIN
  removed := 0;
  waiting := false;
  SELECT b.batch_no, pawl.numbers_in(b.order_nos), b.marked_at INTO batch, numbers, marked FROM pawl.forgotten_batches AS b
  WHERE b.removed_at IS NULL AND CASE WHEN archived IS NULL THEN NOT b.archive ELSE b.archive AND b.id = archived END
    AND b.xmin IS DISTINCT FROM pg_current_xact_id_if_assigned()::xid;
  IF batch IS NULL THEN
    RETURN NEXT;
    RETURN;
  END IF;
  -- A statement locks its tables before it takes the snapshot that it runs with. So one that does not hold the lock
  -- now will see the mark.
  FOR try IN 0..100 LOOP
    writers := ARRAY(SELECT l.virtualtransaction FROM pg_locks AS l
      WHERE l.locktype = 'relation' AND l.relation = 'pawl.orders'::regclass AND l.mode = 'RowExclusiveLock' AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
        AND (try = 0 OR l.virtualtransaction = ANY(writers)));
    EXIT WHEN writers = '{}';
    PERFORM pg_sleep(.005);
  END LOOP;
  waiting := writers <> '{}';
  IF NOT waiting THEN
    PERFORM FROM pawl.forgotten_batches AS b WHERE b.batch_no = batch AND b.removed_at IS NULL FOR UPDATE SKIP LOCKED;
  END IF;
  IF waiting OR NOT FOUND THEN
    RETURN NEXT;
    RETURN;
  END IF;
  gone := ARRAY(SELECT o.order_no FROM pawl.orders AS o WHERE o.order_no = ANY(numbers) ORDER BY o.order_no FOR UPDATE SKIP LOCKED);
  gone := ARRAY(SELECT f FROM pawl.forgettable_orders(gone, least(marked, now()) - interval '31 days') AS f); -- as when they were marked
  removed := cardinality(gone);

  UPDATE pawl.forgotten_batches AS b SET removed_at = now(), order_nos = coalesce((SELECT range_agg(int8range(n, n, '[]')) FROM unnest(gone) AS n), '{}')
  WHERE b.batch_no = batch; -- from here on, this transaction may remove rows
  WITH removed_now AS MATERIALIZED ( -- each hash is made once, each array read once
    SELECT o.order_no, pawl.order_id_hash(o.order_id) AS id_hash FROM pawl.orders AS o WHERE o.order_no = ANY(gone)
  ), stored AS MATERIALIZED (
    SELECT f.id_hash, f.sum_no FROM pawl.forgotten_orders AS f WHERE f.batch_no = batch
  ), forgotten AS (
    SELECT s.sum_no, r.order_no FROM removed_now AS r JOIN stored AS s ON s.id_hash = r.id_hash
  ), entries AS (
    SELECT f.sum_no, 1 AS orders, 0 AS charges, 0 AS charged, 0 AS refunded, 0 AS voided, 0 AS lost FROM forgotten AS f
    UNION ALL
    SELECT f.sum_no, 0, m.charges, m.charged, m.undone + m.refunded, m.voided, m.lost
    FROM forgotten AS f JOIN pawl.order_money AS m ON m.order_no = f.order_no AND m.order_no = ANY(gone)
  ), summed AS (
    UPDATE pawl.forgotten_sums AS s SET orders = s.orders + e.orders, charges = s.charges + e.charges, charged = s.charged + e.charged,
      refunded = s.refunded + e.refunded, voided = s.voided + e.voided, lost = s.lost + e.lost,
      kept = s.kept + e.charged - e.refunded - e.voided - e.lost
    FROM (SELECT a.sum_no, sum(a.orders) AS orders, sum(a.charges) AS charges, sum(a.charged) AS charged, sum(a.refunded) AS refunded,
        sum(a.voided) AS voided, sum(a.lost) AS lost
      FROM entries AS a GROUP BY a.sum_no) AS e
    WHERE s.sum_no = e.sum_no
  ), moved AS (
    INSERT INTO pawl.forgotten_movements AS k (day, currency, captured, refunded, undone, lost)
    SELECT (m.at AT TIME ZONE 'UTC')::date, m.currency, sum(greatest(m.amount, 0 * m.amount)), - sum(CASE WHEN m.kind = 'refund' THEN m.amount ELSE 0 * m.amount END),
      - sum(CASE WHEN m.kind = 'undo' THEN m.amount ELSE 0 * m.amount END), - sum(CASE WHEN m.kind = 'dispute_lost' THEN m.amount ELSE 0 * m.amount END)
    FROM pawl.movements AS m WHERE m.order_no = ANY(ARRAY(SELECT g.order_no FROM forgotten AS g)) GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (day, currency) DO UPDATE SET captured = k.captured + excluded.captured, refunded = k.refunded + excluded.refunded,
      undone = k.undone + excluded.undone, lost = k.lost + excluded.lost
  )
  UPDATE pawl.forgotten_batches AS b SET orders = (SELECT count(*) FROM forgotten), others = cardinality(gone) - (SELECT count(*) FROM forgotten)
  WHERE b.batch_no = batch;
  -- By arrays, so that the movements of an item are read once, with statistics or without.
  SELECT array_agg(DISTINCT i.name), array_agg(DISTINCT 'refund ' || f.number || ' of ' || o.order_id) INTO items, restocks
  FROM pawl.charge_operations AS f JOIN pawl.orders AS o ON o.order_no = f.order_no CROSS JOIN LATERAL pawl.items_of(o.item, o.quantity, o.lines) AS i
  WHERE f.order_no = ANY(gone) AND f.restock IS NOT NULL;
  INSERT INTO pawl.forgotten_stock AS k (item, sold, restocked)
  SELECT u.item, sum(u.sold), sum(u.restocked) FROM (
    SELECT r.item, r.quantity AS sold, 0 AS restocked FROM pawl.reservations AS r
    WHERE r.order_no = ANY(gone) AND r.released_at IS NULL AND r.executor IS NULL
    UNION ALL
    SELECT m.item, 0, m.change FROM pawl.stock_movements AS m
    WHERE m.item = ANY(items) AND m.request_id = ANY(restocks) AND m.kind = 'restock') AS u
  GROUP BY u.item ORDER BY u.item
  ON CONFLICT (item) DO UPDATE SET sold = k.sold + excluded.sold, restocked = k.restocked + excluded.restocked;

  DELETE FROM pawl.transitions AS t WHERE t.order_no = ANY(gone);
  DELETE FROM pawl.charges AS c WHERE c.order_no = ANY(gone);
  DELETE FROM pawl.reservations AS r WHERE r.order_no = ANY(gone);
  DELETE FROM pawl.confirmations AS k WHERE k.order_no = ANY(gone);
  DELETE FROM pawl.charge_operations AS f WHERE f.order_no = ANY(gone);
  DELETE FROM pawl.disputes AS d WHERE d.order_no = ANY(gone);
  DELETE FROM pawl.step_calls AS a WHERE a.order_no = ANY(gone);
  DELETE FROM pawl.step_answers AS w WHERE w.order_no = ANY(gone);
  DELETE FROM pawl.late_undos AS u WHERE u.order_no = ANY(gone);
  DELETE FROM pawl.orders AS o WHERE o.order_no = ANY(gone);
  stay := ARRAY(SELECT pawl.order_id_hash(o.order_id) FROM pawl.orders AS o WHERE o.order_no = ANY(numbers));
  IF stay <> '{}' THEN
    UPDATE pawl.forgotten_batches AS b SET id_hashes = ARRAY(
      SELECT CASE WHEN h.id_hash = ANY(stay) THEN '00000000-0000-0000-0000-000000000000' ELSE h.id_hash END
      FROM unnest(b.id_hashes) WITH ORDINALITY AS h(id_hash, place) ORDER BY h.place)
    WHERE b.batch_no = batch;
  END IF;
  RETURN NEXT;
END $$;
-- +goose StatementEnd

CREATE VIEW books.forgotten AS
SELECT s.placed_on, s.currency::text, s.status::text, s.orders, s.charges, s.charged, s.refunded, s.voided, s.kept, s.lost FROM pawl.forgotten_sums s;
CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.forgotten FOR EACH ROW EXECUTE FUNCTION books.refuse_write();

-- +goose Down
DROP VIEW books.forgotten;
DROP FUNCTION pawl.remove_forgotten(uuid);
DROP FUNCTION pawl.mark_forgotten(bigint, integer, interval, boolean);
DROP FUNCTION pawl.forgettable_orders(bigint[], timestamptz);
DROP FUNCTION pawl.numbers_in(int8multirange);
DROP FUNCTION pawl.input_hash(text, numeric, text, integer, json, text, text[], timestamptz, timestamptz, double precision, text, text);
DROP FUNCTION pawl.order_id_hash(text);
DROP VIEW pawl.forgotten_orders;
DROP TABLE pawl.forgotten_batches, pawl.forgotten_stock, pawl.forgotten_movements, pawl.forgotten_sums;
