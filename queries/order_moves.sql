-- The moves of an order, each one statement for a whole batch: lock in order, compare and set, effect, history row. A
-- batch shares its expected status, fence and seq. The returned orders have moved once the statement has ended
-- without an error. An order that is not returned was locked by another session (SKIP LOCKED: one locked row must not
-- stall the others) or is not as expected.
--
-- Charge and reservation do not wait for the disk: nobody is told about them before a later commit that does, and the
-- log is in order (docs/design.md, "One wait for the disk"). Moves that end an order wait.
--
-- A condition on set_config is always true. It is there to set a parameter for this statement only: lock_timeout, or
-- synchronous_commit = off while the numbering is relaxed (current_numbering).
--
-- Rows are found by order_no = ANY(array), never by joining unnest to orders: a plan cached while the table was empty
-- would read all of it for every batch. The array is in a sub-select, where the planner does not see its length.
-- Otherwise plans for short arrays would look cheaper than the generic plan, and PostgreSQL would plan every batch
-- again.
--
-- Three moves have a second form for a single order (…One), without arrays, sorts and sums, which cost more than the
-- move itself. It moves only an order that goes straight on. An order that is to stop, or whose item is short, is
-- left to the other form. OrdersReserveAll is such a short form for larger batches.

-- name: OrdersStart :many
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET
    status = CASE WHEN o.stop_requested IS NULL THEN 'charging' ELSE 'canceled' END,
    seq = o.seq + 1, take_overs = 0,
    outcome = CASE WHEN o.stop_requested IS NOT NULL THEN 'canceled' END,
    ended_as = CASE WHEN o.stop_requested IS NOT NULL THEN 'canceled' END,
    finished_at = CASE WHEN o.stop_requested IS NOT NULL THEN now() END,
    due_at = CASE WHEN o.stop_requested IS NULL THEN o.due_at END,
    owner = CASE WHEN o.stop_requested IS NULL THEN o.owner END
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l))
    AND o.status = @expected AND o.fence = @fence AND o.seq = @seq
  RETURNING o.order_no, o.fence, o.seq, o.status
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence)
SELECT m.order_no, m.seq, 'pending', m.status, m.fence FROM moved AS m
RETURNING order_no, seq, to_status, at;

-- name: OrdersCharge :many
-- An order that is stopped before its charge was certainly not charged: it is canceled, and the commit waits for the
-- disk.
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET
    status = CASE WHEN o.stop_requested IS NULL THEN 'reserving' ELSE 'canceled' END,
    seq = o.seq + 1, take_overs = 0,
    outcome = CASE WHEN o.stop_requested IS NOT NULL THEN 'canceled' END,
    ended_as = CASE WHEN o.stop_requested IS NOT NULL THEN 'canceled' END,
    finished_at = CASE WHEN o.stop_requested IS NOT NULL THEN now() END,
    due_at = CASE WHEN o.stop_requested IS NULL THEN o.due_at END,
    owner = CASE WHEN o.stop_requested IS NULL THEN o.owner END
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l))
    AND o.status = @expected AND o.fence = @fence AND o.seq = @seq
  RETURNING o.order_no, o.fence, o.seq, o.status, o.generation, o.currency, o.amount
), charged AS (
  INSERT INTO pawl.charges (order_no, generation, currency, amount)
  SELECT m.order_no, m.generation, m.currency, m.amount FROM moved AS m WHERE m.status = 'reserving'
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence)
SELECT m.order_no, m.seq, 'charging', m.status, m.fence FROM moved AS m
WHERE (SELECT set_config('synchronous_commit', 'off', true) FROM pawl.current_numbering AS r WHERE r.relaxed
  AND NOT EXISTS (SELECT FROM moved AS n WHERE n.status = 'canceled')) IS DISTINCT FROM ''
RETURNING order_no, seq, to_status, at;

-- name: OrdersChargeOne :many
WITH moved AS (
  UPDATE pawl.orders AS o SET status = 'reserving', seq = o.seq + 1, take_overs = 0
  WHERE o.order_no = (SELECT l.order_no FROM pawl.orders AS l WHERE l.order_no = @order_no FOR NO KEY UPDATE SKIP LOCKED)
    AND o.status = @expected AND o.fence = @fence AND o.seq = @seq AND o.stop_requested IS NULL
    AND (SELECT set_config('synchronous_commit', 'off', true) FROM pawl.current_numbering AS r WHERE r.relaxed) IS DISTINCT FROM ''
  RETURNING o.order_no, o.fence, o.seq, o.status, o.generation, o.currency, o.amount
), charged AS (
  INSERT INTO pawl.charges (order_no, generation, currency, amount)
  SELECT m.order_no, m.generation, m.currency, m.amount FROM moved AS m WHERE m.status = 'reserving'
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence)
SELECT m.order_no, m.seq, 'charging', m.status, m.fence FROM moved AS m
RETURNING order_no, seq, to_status, at;

-- name: OrdersReserve :many
-- Reserves stock in the order of arrival. It refuses the first order that does not fit into what the orders before it
-- leave, and every order for more than there is at all. Those after the first one may still fit: they are left
-- undecided, and come again with the next batch. It waits for a locked stock row for at most 500 ms.
--
-- Orders that go on and orders that go back have an update each: an update joined to the decisions would be planned
-- for a few rows, and compare each with all.
WITH asked AS (
  SELECT @order_nos::bigint[] AS order_nos
), locked AS MATERIALIZED (
  -- A column instead of a filter: with a filter, the planner would expect one row.
  SELECT o.order_no, o.item, o.quantity, o.stop_requested,
    (o.status = @expected AND o.fence = @fence AND o.seq = @seq) AS expected
  FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT a.order_nos FROM asked AS a)::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), stock AS MATERIALIZED (
  SELECT i.item, i.tracked, i.on_hand - i.reserved AS available FROM pawl.inventory AS i
  WHERE i.item = ANY(ARRAY(SELECT DISTINCT l.item FROM locked AS l WHERE l.expected AND l.stop_requested IS NULL))
    AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  ORDER BY i.item FOR NO KEY UPDATE
), queued AS (
  SELECT l.order_no, l.item, l.quantity, coalesce(s.tracked, false) AS tracked, coalesce(s.available, 0) AS available,
    sum(l.quantity) OVER (PARTITION BY l.item ORDER BY l.order_no) AS asked
  FROM locked AS l LEFT JOIN stock AS s ON s.item = l.item
  WHERE l.expected AND l.stop_requested IS NULL
), decided AS MATERIALIZED (
  SELECT q.order_no, q.item, q.quantity,
    NOT q.tracked OR q.asked <= q.available AS fits,
    q.asked - q.quantity <= q.available OR q.quantity > q.available AS refused
  FROM queued AS q
), taken AS (
  -- A new item gets its row here. The condition has the last word on stock: it sees the current row.
  INSERT INTO pawl.inventory AS i (item, reserved)
  SELECT d.item, sum(d.quantity) FROM decided AS d WHERE d.fits GROUP BY d.item ORDER BY d.item
  ON CONFLICT (item) DO UPDATE SET reserved = i.reserved + excluded.reserved
    WHERE NOT i.tracked OR i.reserved + excluded.reserved <= i.on_hand
  RETURNING i.item
), moved AS (
  UPDATE pawl.orders AS o SET status = 'confirming', seq = o.seq + 1, take_overs = 0,
    reserved_until = now() + make_interval(secs => o.reservation_ttl)
  WHERE o.order_no = ANY(ARRAY(
      SELECT d.order_no FROM decided AS d WHERE d.fits AND (d.item IN (SELECT t.item FROM taken AS t)) = true))
    AND o.status = @expected AND o.fence = @fence AND o.seq = @seq
  RETURNING o.order_no, o.fence, o.seq, o.status, o.generation, o.item, o.quantity
), stopped AS (
  UPDATE pawl.orders AS o SET
    status = 'refunding', seq = o.seq + 1, take_overs = 0,
    outcome = CASE WHEN o.stop_requested IS NULL THEN 'failed' ELSE 'canceled' END,
    failure_step = CASE WHEN o.stop_requested IS NULL THEN 'reserve' END,
    failure_code = CASE WHEN o.stop_requested IS NULL THEN 'out_of_stock' ELSE o.failure_code END
  WHERE o.order_no = ANY(ARRAY(
      SELECT d.order_no FROM decided AS d WHERE NOT d.fits AND d.refused
      UNION ALL SELECT l.order_no FROM locked AS l WHERE l.expected AND l.stop_requested IS NOT NULL))
    AND o.status = @expected AND o.fence = @fence AND o.seq = @seq
  RETURNING o.order_no, o.fence, o.seq, o.status, o.failure_code
), reserved AS (
  INSERT INTO pawl.reservations (order_no, generation, item, quantity)
  SELECT m.order_no, m.generation, m.item, m.quantity FROM moved AS m
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, reason)
SELECT m.order_no, m.seq, 'reserving', m.status, m.fence, NULL FROM moved AS m
UNION ALL
SELECT s.order_no, s.seq, 'reserving', s.status, s.fence, s.failure_code FROM stopped AS s
RETURNING order_no, seq, to_status, at;

-- name: OrdersReserveAll :many
-- Reserves for all orders of an item, or for none: it needs no running sums. The current row of the item decides.
WITH asked AS (
  SELECT @order_nos::bigint[] AS order_nos
), locked AS MATERIALIZED (
  -- A column instead of a filter: with a filter, the planner would expect one row.
  SELECT o.order_no, o.item, o.quantity,
    (o.status = @expected AND o.fence = @fence AND o.seq = @seq AND o.stop_requested IS NULL) AS asks
  FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT a.order_nos FROM asked AS a)::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), taken AS (
  INSERT INTO pawl.inventory AS i (item, reserved)
  SELECT l.item, sum(l.quantity) FROM locked AS l
  WHERE l.asks AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
    AND (SELECT set_config('synchronous_commit', 'off', true) FROM pawl.current_numbering AS r WHERE r.relaxed) IS DISTINCT FROM ''
  GROUP BY l.item ORDER BY l.item
  ON CONFLICT (item) DO UPDATE SET reserved = i.reserved + excluded.reserved
    WHERE NOT i.tracked OR i.reserved + excluded.reserved <= i.on_hand
  RETURNING i.item
), moved AS (
  UPDATE pawl.orders AS o SET status = 'confirming', seq = o.seq + 1, take_overs = 0,
    reserved_until = now() + make_interval(secs => o.reservation_ttl)
  WHERE o.order_no = ANY(ARRAY(
      SELECT l.order_no FROM locked AS l WHERE l.asks AND (l.item IN (SELECT t.item FROM taken AS t)) = true))
    AND o.status = @expected AND o.fence = @fence AND o.seq = @seq
  RETURNING o.order_no, o.fence, o.seq, o.status, o.generation, o.item, o.quantity
), reserved AS (
  INSERT INTO pawl.reservations (order_no, generation, item, quantity)
  SELECT m.order_no, m.generation, m.item, m.quantity FROM moved AS m
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence)
SELECT m.order_no, m.seq, 'reserving', m.status, m.fence FROM moved AS m
RETURNING order_no, seq, to_status, at;

-- name: OrdersReserveOne :many
-- Moves the order if its item has enough. The current row of the item decides.
WITH asking AS MATERIALIZED (
  SELECT o.order_no, o.item, o.quantity FROM pawl.orders AS o
  WHERE o.order_no = @order_no AND o.status = @expected AND o.fence = @fence AND o.seq = @seq
    AND o.stop_requested IS NULL
  FOR NO KEY UPDATE SKIP LOCKED
), taken AS (
  INSERT INTO pawl.inventory AS i (item, reserved)
  SELECT a.item, a.quantity FROM asking AS a
  WHERE (SELECT set_config('lock_timeout', '500ms', true)) <> ''
    AND (SELECT set_config('synchronous_commit', 'off', true) FROM pawl.current_numbering AS r WHERE r.relaxed) IS DISTINCT FROM ''
  ON CONFLICT (item) DO UPDATE SET reserved = i.reserved + excluded.reserved
    WHERE NOT i.tracked OR i.reserved + excluded.reserved <= i.on_hand
  RETURNING i.item
), moved AS (
  UPDATE pawl.orders AS o SET status = 'confirming', seq = o.seq + 1, take_overs = 0,
    reserved_until = now() + make_interval(secs => o.reservation_ttl)
  WHERE o.order_no = (SELECT a.order_no FROM asking AS a, taken AS t)
    AND o.status = @expected AND o.fence = @fence AND o.seq = @seq
  RETURNING o.order_no, o.fence, o.seq, o.status, o.generation, o.item, o.quantity
), reserved AS (
  INSERT INTO pawl.reservations (order_no, generation, item, quantity)
  SELECT m.order_no, m.generation, m.item, m.quantity FROM moved AS m
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence)
SELECT m.order_no, m.seq, 'reserving', m.status, m.fence FROM moved AS m
RETURNING order_no, seq, to_status, at;

-- name: OrdersReserveLines :many
-- Reserves all items of an order with lines, or none, in the order of arrival. An order fits if there is enough of each
-- of its items for it and all orders before it. It is refused if there is not enough beside those before it that fit:
-- this decides the first one that does not fit, at least. The others are left undecided, and come again with the next
-- batch, as in OrdersReserve.
--
-- Stock rows are inserted or locked in the order of the items, in one pass. Otherwise two statements that insert one row
-- and lock another could deadlock. A row that is not in the snapshot can't be read here, so its orders come again, too.
-- Window functions take the place of joins, which would be planned for a few rows, and compare each with all.
WITH asked AS (
  SELECT @order_nos::bigint[] AS order_nos
), locked AS MATERIALIZED (
  SELECT o.order_no, o.generation, o.item, o.quantity, o.lines, o.stop_requested,
    (o.status = @expected AND o.fence = @fence AND o.seq = @seq) AS expected
  FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT a.order_nos FROM asked AS a)::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), wanted AS MATERIALIZED (
  SELECT l.order_no, l.generation, w.line, w.item, w.quantity FROM locked AS l CROSS JOIN LATERAL pawl.items_of(l.item, l.quantity, l.lines) AS w(line, item, quantity)
  WHERE l.expected AND l.stop_requested IS NULL
), held AS (
  INSERT INTO pawl.inventory AS i (item)
  SELECT w.item FROM wanted AS w WHERE (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  GROUP BY w.item ORDER BY w.item COLLATE "C"
  ON CONFLICT (item) DO UPDATE SET reserved = i.reserved WHERE false -- locks the row
  RETURNING i.item
), stock AS MATERIALIZED (
  SELECT i.item, CASE WHEN i.tracked THEN i.on_hand - i.reserved ELSE 9223372036854775807 END AS available
  FROM pawl.inventory AS i
  WHERE i.item = ANY(ARRAY(SELECT DISTINCT w.item FROM wanted AS w)) AND (SELECT count(*) FROM held AS h) >= 0
  ORDER BY i.item FOR NO KEY UPDATE
), queued AS (
  SELECT u.order_no, u.item, u.quantity, max(u.available) OVER (PARTITION BY u.item) AS available,
    sum(u.quantity) OVER (PARTITION BY u.item ORDER BY u.order_no) AS asked
  FROM (
    SELECT w.order_no, w.item, w.quantity, NULL::bigint AS available FROM wanted AS w
    UNION ALL SELECT 0, s.item, 0, s.available FROM stock AS s) AS u
), judged AS (
  SELECT q.order_no, q.item, q.quantity, q.available,
    bool_and(coalesce(q.asked <= q.available, false)) OVER (PARTITION BY q.order_no) AS fits
  FROM queued AS q WHERE q.order_no > 0
), decided AS MATERIALIZED (
  SELECT d.order_no, d.fits, bool_or(d.taken + d.quantity > d.available) AS short
  FROM (
    SELECT j.*, coalesce(sum(j.quantity) FILTER (WHERE j.fits) OVER (PARTITION BY j.item ORDER BY j.order_no), 0) AS taken
    FROM judged AS j) AS d
  GROUP BY d.order_no, d.fits
), moved AS (
  UPDATE pawl.orders AS o SET status = 'confirming', seq = o.seq + 1, take_overs = 0,
    reserved_until = now() + make_interval(secs => o.reservation_ttl)
  WHERE o.order_no = ANY(ARRAY(SELECT d.order_no FROM decided AS d WHERE d.fits))
    AND o.status = @expected AND o.fence = @fence AND o.seq = @seq
  RETURNING o.order_no, o.fence, o.seq, o.status
), stopped AS (
  UPDATE pawl.orders AS o SET
    status = 'refunding', seq = o.seq + 1, take_overs = 0,
    outcome = CASE WHEN o.stop_requested IS NULL THEN 'failed' ELSE 'canceled' END,
    failure_step = CASE WHEN o.stop_requested IS NULL THEN 'reserve' END,
    failure_code = CASE WHEN o.stop_requested IS NULL THEN 'out_of_stock' ELSE o.failure_code END
  WHERE o.order_no = ANY(ARRAY(
      SELECT d.order_no FROM decided AS d WHERE NOT d.fits AND d.short
      UNION ALL SELECT l.order_no FROM locked AS l WHERE l.expected AND l.stop_requested IS NOT NULL))
    AND o.status = @expected AND o.fence = @fence AND o.seq = @seq
  RETURNING o.order_no, o.fence, o.seq, o.status, o.failure_code
), reserved AS (
  INSERT INTO pawl.reservations (order_no, generation, line, item, quantity)
  SELECT w.order_no, w.generation, w.line, w.item, w.quantity FROM wanted AS w WHERE (w.order_no IN (SELECT m.order_no FROM moved AS m)) = true
  RETURNING item, quantity
), taken AS (
  INSERT INTO pawl.inventory AS i (item, reserved)
  SELECT r.item, sum(r.quantity) FROM reserved AS r GROUP BY r.item ORDER BY r.item
  ON CONFLICT (item) DO UPDATE SET reserved = i.reserved + excluded.reserved
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, reason)
SELECT m.order_no, m.seq, 'reserving', m.status, m.fence, NULL FROM moved AS m
WHERE (SELECT set_config('synchronous_commit', 'off', true) FROM pawl.current_numbering AS r WHERE r.relaxed
  AND NOT EXISTS (SELECT FROM stopped AS n)) IS DISTINCT FROM ''
UNION ALL
SELECT s.order_no, s.seq, 'reserving', s.status, s.fence, s.failure_code FROM stopped AS s
RETURNING order_no, seq, to_status, at;

-- name: OrdersConfirm :many
-- Sells the reserved units. The row of each item exists since the reservation, so the upsert only updates. Unlike an
-- update joined to the sums, it needs no plan, and it locks the rows in the order of the items.
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET
    status = CASE WHEN o.stop_requested IS NULL THEN 'completed' ELSE 'releasing' END,
    seq = o.seq + 1, take_overs = 0,
    outcome = CASE WHEN o.stop_requested IS NOT NULL THEN 'canceled' END,
    ended_as = CASE WHEN o.stop_requested IS NULL THEN 'completed' END,
    finished_at = CASE WHEN o.stop_requested IS NULL THEN now() END,
    due_at = CASE WHEN o.stop_requested IS NOT NULL THEN o.due_at END,
    owner = CASE WHEN o.stop_requested IS NOT NULL THEN o.owner END
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l))
    AND o.status = @expected AND o.fence = @fence AND o.seq = @seq
  RETURNING o.order_no, o.fence, o.seq, o.status, o.item, o.quantity, o.lines
), sold AS (
  INSERT INTO pawl.inventory AS i (item, reserved)
  SELECT u.item, sum(u.quantity) FROM (
    SELECT m.item, m.quantity, m.status FROM moved AS m WHERE m.lines IS NULL
    UNION ALL
    SELECT l.item, l.quantity, m.status FROM moved AS m CROSS JOIN LATERAL pawl.items_of(m.item, m.quantity, m.lines) AS l(line, item, quantity)
    WHERE m.lines IS NOT NULL) AS u
  WHERE u.status = 'completed' AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  GROUP BY u.item ORDER BY u.item COLLATE "C"
  ON CONFLICT (item) DO UPDATE SET
    reserved = i.reserved - excluded.reserved,
    on_hand = CASE WHEN i.tracked THEN i.on_hand - excluded.reserved ELSE i.on_hand END,
    sold = i.sold + excluded.reserved, version = i.version + 1
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence)
SELECT m.order_no, m.seq, 'confirming', m.status, m.fence FROM moved AS m
RETURNING order_no, seq, to_status, at;

-- name: OrdersConfirmOne :many
WITH moved AS (
  UPDATE pawl.orders AS o SET status = 'completed', seq = o.seq + 1, take_overs = 0,
    ended_as = 'completed', finished_at = now(), due_at = NULL, owner = NULL
  WHERE o.order_no = (SELECT l.order_no FROM pawl.orders AS l WHERE l.order_no = @order_no FOR NO KEY UPDATE SKIP LOCKED)
    AND o.status = @expected AND o.fence = @fence AND o.seq = @seq AND o.stop_requested IS NULL
  RETURNING o.order_no, o.fence, o.seq, o.status, o.item, o.quantity
), sold AS (
  INSERT INTO pawl.inventory AS i (item, reserved)
  SELECT m.item, m.quantity FROM moved AS m
  WHERE m.status = 'completed' AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  ON CONFLICT (item) DO UPDATE SET
    reserved = i.reserved - excluded.reserved,
    on_hand = CASE WHEN i.tracked THEN i.on_hand - excluded.reserved ELSE i.on_hand END,
    sold = i.sold + excluded.reserved, version = i.version + 1
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence)
SELECT m.order_no, m.seq, 'confirming', m.status, m.fence FROM moved AS m
RETURNING order_no, seq, to_status, at;

-- name: OrdersRelease :many
-- Undoes the reservation: the stock if the ledger reserved it; otherwise it closes the call that undid it. An order
-- has at most one reservation in effect, with a row for each of its items.
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET
    status = 'refunding', outcome = coalesce(o.outcome, 'failed'),
    seq = o.seq + 1, take_overs = 0, retries = NULL, retry_window_started_at = NULL, in_doubt_since = NULL, action = NULL
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l))
    AND o.status = @expected AND o.fence = @fence AND o.seq = @seq
  RETURNING o.order_no, o.fence, o.seq, o.status, o.calls
), released AS (
  UPDATE pawl.reservations AS r SET released_at = now()
  WHERE r.order_no = ANY(ARRAY(SELECT m.order_no FROM moved AS m)) AND r.released_at IS NULL
  RETURNING r.item, r.quantity, r.executor
), returned AS (
  INSERT INTO pawl.inventory AS i (item, reserved)
  SELECT r.item, sum(r.quantity) FROM released AS r
  WHERE r.executor IS NULL AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  GROUP BY r.item ORDER BY r.item
  ON CONFLICT (item) DO UPDATE SET reserved = i.reserved - excluded.reserved
), finished AS (
  UPDATE pawl.step_calls AS t SET finished_at = now(), outcome = 'done' FROM moved AS m
  WHERE t.order_no = ANY(ARRAY(SELECT n.order_no FROM moved AS n)) AND t.order_no = m.order_no AND t.call = m.calls
    AND t.finished_at IS NULL
), consumed AS (
  UPDATE pawl.step_answers AS w SET consumed_at = now()
  WHERE w.order_no = ANY(ARRAY(SELECT n.order_no FROM moved AS n)) AND w.consumed_at IS NULL AND @consumes::boolean
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence)
SELECT m.order_no, m.seq, 'releasing', m.status, m.fence FROM moved AS m
RETURNING order_no, seq, to_status, at;

-- name: OrdersRefund :many
-- Undoes the charge, of the ledger or, with the provider's reference of the refund, of a provider. The order ends as
-- its first undoing move has recorded (outcome). It has at most one charge in effect. A refund that has a reference shows
-- that a charge in doubt was made.
WITH answers AS MATERIALIZED (
  SELECT x.order_no, x.reference
  FROM ROWS FROM (unnest(@order_nos::bigint[]), unnest(@refs::text[])) AS x(order_no, reference)
), locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET
    status = coalesce(o.outcome, 'failed'), outcome = coalesce(o.outcome, 'failed'), ended_as = coalesce(o.outcome, 'failed'),
    finished_at = now(), due_at = NULL, owner = NULL,
    seq = o.seq + 1, take_overs = 0, retries = NULL, retry_window_started_at = NULL, in_doubt_since = NULL, action = NULL
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l))
    AND o.status = @expected AND o.fence = @fence AND o.seq = @seq
  RETURNING o.order_no, o.fence, o.seq, o.status, o.calls
), returned AS (
  UPDATE pawl.charges AS c SET refunded_at = now(), capture_by = NULL, capture_due_at = NULL,
    in_doubt = CASE WHEN c.in_doubt THEN (SELECT coalesce(a.reference, '') = '' FROM answers AS a WHERE a.order_no = c.order_no) END
  WHERE c.order_no = ANY(ARRAY(SELECT m.order_no FROM moved AS m)) AND c.refunded_at IS NULL
  RETURNING c.order_no, c.generation, c.currency, c.amount
), refunded AS (
  INSERT INTO pawl.charge_operations (order_no, generation, currency, amount, reference)
  SELECT r.order_no, r.generation, r.currency, r.amount, nullif(a.reference, '')
  FROM returned AS r JOIN answers AS a ON a.order_no = r.order_no ORDER BY r.order_no
), finished AS (
  UPDATE pawl.step_calls AS t SET finished_at = now(), outcome = 'done', reference = nullif(a.reference, '')
  FROM moved AS m JOIN answers AS a ON a.order_no = m.order_no
  WHERE t.order_no = ANY(ARRAY(SELECT n.order_no FROM moved AS n)) AND t.order_no = m.order_no AND t.call = m.calls
    AND t.finished_at IS NULL
), consumed AS (
  UPDATE pawl.step_answers AS w SET consumed_at = now()
  WHERE w.order_no = ANY(ARRAY(SELECT n.order_no FROM moved AS n)) AND w.consumed_at IS NULL AND @consumes::boolean
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence)
SELECT m.order_no, m.seq, 'refunding', m.status, m.fence FROM moved AS m
RETURNING order_no, seq, to_status, at;

-- name: OrdersHold :many
-- Puts orders of this process on hold until a time, a person, a concurrency permit, or the end of a pause. A pause
-- also completes the request for it. A hold for attention waits for a person.
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET
    hold = @hold::text, hold_reason = nullif(@hold_reason::text, ''), seq = o.seq + 1, owner = NULL, take_overs = 0,
    due_at = CASE WHEN @hold::text = 'approval' AND o.approval_until IS NULL AND @seconds::float8 > 0
        THEN now() + make_interval(secs => @seconds::float8)
      WHEN @hold::text = 'approval' AND o.approval_until < '9999-01-01 00:00:00+00' THEN o.approval_until
      WHEN @hold::text = 'scheduled' THEN o.start_at END,
    approval_until = CASE WHEN @hold::text <> 'approval' THEN o.approval_until
      WHEN o.approval_until IS NOT NULL THEN o.approval_until
      WHEN @seconds::float8 > 0 THEN now() + make_interval(secs => @seconds::float8) ELSE '9999-01-01 00:00:00+00' END,
    stop_requested = CASE WHEN @hold::text = 'paused' AND o.stop_requested = 'pause' THEN NULL ELSE o.stop_requested END
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l))
    AND o.status = @expected AND o.fence = @fence AND o.seq = @seq
  RETURNING o.order_no, o.fence, o.seq, o.status
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, reason)
SELECT m.order_no, m.seq, m.status, m.status, m.fence, CASE @hold::text WHEN 'attention' THEN 'hold' ELSE @hold::text END,
  nullif(@hold_reason::text, '') FROM moved AS m
ON CONFLICT (order_no, seq) DO NOTHING -- a row that should not exist is why it is held
RETURNING order_no, seq, to_status, at;
