-- Operations of charges that were requested: refunds. They never move an order, but raise its seq, because the order
-- shows them.
--
-- A condition on set_config is always true. It sets lock_timeout for this statement only.

-- name: ChargeOperationAsk :many
-- Records a refund of a completed order, if its seq has not changed. A charge of the ledger is refunded by this
-- commit; any other refund is due at once. Returned units are in stock from now on, even if the refund of the money
-- fails.
WITH touched AS (
  UPDATE pawl.orders AS o SET seq = o.seq + 1, charge_operations = coalesce(o.charge_operations, 0) + 1
  WHERE o.order_no = @order_no AND o.seq = @seq AND o.ended_as = 'completed' AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  RETURNING o.*
), asked AS (
  INSERT INTO pawl.charge_operations (order_no, generation, number, currency, amount, state, executor, restock, lines, reason, request_id, due_at, finished_at)
  SELECT k.order_no, k.generation, k.charge_operations, c.currency, sqlc.arg('amount')::pawl.money_amount,
    CASE WHEN c.executor IS NULL THEN 'done' ELSE 'pending' END, c.executor, sqlc.narg('restock')::integer, sqlc.narg('lines')::json,
    sqlc.narg('reason')::text, sqlc.narg('request_id')::text,
    CASE WHEN c.executor IS NOT NULL THEN now() END, CASE WHEN c.executor IS NULL THEN now() END
  FROM touched AS k JOIN pawl.charges AS c ON c.order_no = k.order_no AND c.generation = k.generation
), returned AS (
  SELECT k.item, sqlc.narg('restock')::integer AS units FROM touched AS k WHERE k.lines IS NULL AND sqlc.narg('restock')::integer > 0
  UNION ALL
  SELECT l.item, sum(l.quantity)::integer
  FROM touched AS k CROSS JOIN LATERAL json_to_recordset(sqlc.narg('lines')::json) AS l(item text, quantity integer, restock boolean)
  WHERE l.restock GROUP BY l.item
), restocked AS ( -- only here are units put back; the rows exist since the reservation, and are locked in the order of the items
  INSERT INTO pawl.inventory AS i (item, on_hand)
  SELECT r.item, r.units FROM returned AS r ORDER BY r.item COLLATE "C"
  ON CONFLICT (item) DO UPDATE SET on_hand = i.on_hand + excluded.on_hand, version = i.version + 1 WHERE i.tracked
  RETURNING i.item, i.version, i.on_hand, i.sold
), movement AS (
  INSERT INTO pawl.stock_movements (item, version, kind, change, on_hand, sold, actor, on_behalf_of, reason, request_id)
  SELECT r.item, r.version, 'restock', u.units, r.on_hand, r.sold, @actor::text,
    sqlc.narg('on_behalf_of')::text, sqlc.narg('reason')::text, 'refund ' || k.charge_operations || ' of ' || k.order_id
  FROM restocked AS r JOIN returned AS u ON u.item = r.item, touched AS k
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, actor, on_behalf_of, reason, request_id, fingerprint)
  SELECT k.order_no, k.seq, k.status, k.status, k.fence, @verb::text,
    @actor::text, sqlc.narg('on_behalf_of')::text, sqlc.narg('reason')::text, sqlc.narg('request_id')::text, sqlc.narg('fingerprint')::bytea FROM touched AS k
)
SELECT sqlc.embed(written_orders) FROM (SELECT w.*, e.* FROM touched AS w, pawl.no_effects AS e) AS written_orders;

-- name: ChargeOperationsClaim :many
-- Like LateUndosClaim. A refund is made under the policy of the order, whose provider made the charge.
WITH due AS MATERIALIZED (
  SELECT f.order_no, f.generation, f.number FROM pawl.charge_operations AS f
  WHERE f.due_at <= now() ORDER BY f.due_at LIMIT @most FOR UPDATE SKIP LOCKED
), claimed AS (
  UPDATE pawl.charge_operations AS f SET due_at = now() + make_interval(secs => @lease_seconds::float8), claims = f.claims + 1
  FROM due AS d WHERE f.order_no = d.order_no AND f.generation = d.generation AND f.number = d.number
  RETURNING f.order_no, f.generation, f.number, f.claims, f.state, f.amount, f.sent_at, f.reason, f.reference, f.code, f.request_id, f.lines
)
SELECT c.number, c.claims, c.state::text AS state, c.amount, c.lines, c.sent_at, coalesce(c.reason, '')::text AS reason,
  coalesce(c.reference, '')::text AS reference, coalesce(c.code, '')::text AS code, coalesce(c.request_id, '')::text AS request_id, sqlc.embed(o)
FROM claimed AS c JOIN pawl.full_orders AS o ON o.order_no = c.order_no;

-- name: ChargeOperationBegin :many
-- Records a call before it is made. From this commit on, the money may be refunded, unless the call is a look-up. No
-- row: another replica has claimed the refund, or a person has settled it.
WITH claimed AS MATERIALIZED (
  SELECT f.order_no, f.generation, f.number, f.state FROM pawl.charge_operations AS f
  WHERE f.order_no = @order_no AND f.generation = @generation AND f.number = @number AND f.claims = @claims AND f.due_at IS NOT NULL
    AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  FOR UPDATE
), begun AS (
  UPDATE pawl.charge_operations AS f SET due_at = clock_timestamp() + make_interval(secs => @lease_seconds::float8),
    state = CASE WHEN @operation::text = 'refund' AND c.state = 'pending' THEN 'in_doubt' ELSE c.state END,
    sent_at = CASE WHEN @operation::text = 'refund' THEN coalesce(f.sent_at, now()) ELSE f.sent_at END
  FROM claimed AS c WHERE f.order_no = c.order_no AND f.generation = c.generation AND f.number = c.number
  RETURNING f.order_no, f.generation, f.number, f.sent_at, f.state <> c.state AS changed
), touched AS (
  UPDATE pawl.orders AS o SET seq = o.seq + 1 FROM begun AS b WHERE o.order_no = @order_no AND b.changed
  RETURNING o.order_no, o.fence, o.seq, o.status
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, reason)
  SELECT k.order_no, k.seq, k.status, k.status, k.fence, 'refund_in_doubt', 'refund ' || @number::integer FROM touched AS k
)
INSERT INTO pawl.step_calls (order_no, call, fence, generation, policy, step, operation, charge_operation, route)
SELECT b.order_no, coalesce((SELECT min(t.call) FROM pawl.step_calls AS t WHERE t.order_no = @order_no AND t.call < 0), 0) - 1,
  @fence, b.generation, sqlc.narg('policy')::integer, 'charge', @operation::text, b.number, sqlc.narg('route')::text
FROM begun AS b
RETURNING call, started_at;

-- name: ChargeOperationFinish :exec
-- Records the result of a call, or why there was none. It changes nothing else if the refund was settled or claimed
-- by another replica meanwhile. unsent: no request with its key can take effect any more.
WITH answered AS (
  UPDATE pawl.step_calls AS t SET finished_at = now(), outcome = @outcome::text, code = nullif(@code::text, ''),
    detail = nullif(@detail::text, ''), reference = nullif(@ref::text, '')
  WHERE t.order_no = @order_no AND t.call = @call
), claimed AS MATERIALIZED (
  SELECT f.order_no, f.generation, f.number, f.state, f.reference FROM pawl.charge_operations AS f
  WHERE f.order_no = @order_no AND f.generation = @generation AND f.number = @number AND f.claims = @claims
  FOR UPDATE
), finished AS (
  UPDATE pawl.charge_operations AS f SET state = @state::text, code = nullif(@code::text, ''), detail = nullif(@detail::text, ''),
    reference = coalesce(nullif(@ref::text, ''), f.reference), sent_at = CASE WHEN NOT @unsent::boolean THEN f.sent_at END,
    due_at = CASE WHEN NOT @settled::boolean THEN now() + make_interval(secs => @delay::float8) END,
    finished_at = CASE WHEN NOT @state::text IN ('done', 'failed') THEN NULL WHEN f.state = @state::text THEN f.finished_at ELSE now() END
  FROM claimed AS c WHERE f.order_no = c.order_no AND f.generation = c.generation AND f.number = c.number
  RETURNING f.order_no, f.number, f.state, f.code, f.state <> c.state OR f.reference IS DISTINCT FROM c.reference AS changed
), touched AS (
  UPDATE pawl.orders AS o SET seq = o.seq + 1 FROM finished AS f WHERE o.order_no = @order_no AND f.changed
  RETURNING o.order_no, o.fence, o.seq, o.status, f.number, f.state AS refund_state, f.code
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, reason)
SELECT k.order_no, k.seq, k.status, k.status, k.fence, 'refund_' || k.refund_state, concat_ws(', ', 'refund ' || k.number || ': ' || k.refund_state, k.code)
FROM touched AS k;

-- name: ChargeOperationSettle :many
-- Records what a person has found out about a refund at the provider. not_done: it is sent again, and its key counts
-- as never sent. No row: it is settled, or seq has changed since the order was read.
WITH open AS MATERIALIZED (
  SELECT f.order_no, f.generation, f.number FROM pawl.charge_operations AS f
  WHERE f.order_no = @order_no AND f.number = @number AND f.state IN ('pending', 'in_doubt', 'accepted')
    AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  FOR UPDATE
), touched AS (
  UPDATE pawl.orders AS o SET seq = o.seq + 1
  WHERE o.order_no = @order_no AND o.seq = @seq AND EXISTS (SELECT 1 FROM open AS f)
  RETURNING o.*
), settled AS (
  UPDATE pawl.charge_operations AS f SET claims = f.claims + 1,
    state = CASE @outcome::text WHEN 'done' THEN 'done' WHEN 'refused' THEN 'failed' ELSE 'pending' END,
    finished_at = CASE WHEN @outcome::text <> 'not_done' THEN now() END,
    due_at = CASE WHEN @outcome::text = 'not_done' THEN now() END,
    sent_at = CASE WHEN @outcome::text <> 'not_done' THEN f.sent_at END,
    code = nullif(@code::text, ''), detail = nullif(@detail::text, ''), reference = coalesce(nullif(@ref::text, ''), f.reference)
  FROM touched AS k JOIN open AS p ON p.order_no = k.order_no
  WHERE f.order_no = p.order_no AND f.generation = p.generation AND f.number = p.number
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, actor, on_behalf_of, reason, request_id, fingerprint)
  SELECT k.order_no, k.seq, k.status, k.status, k.fence, @verb::text,
    @actor::text, sqlc.narg('on_behalf_of')::text, sqlc.narg('reason')::text, sqlc.narg('request_id')::text, sqlc.narg('fingerprint')::bytea FROM touched AS k
)
SELECT sqlc.embed(written_orders) FROM (SELECT w.*, e.* FROM touched AS w, pawl.no_effects AS e) AS written_orders;

-- name: ChargeOperationHint :many
-- Makes a refund due because something has happened to it at its provider, so that the provider is asked about it.
-- This includes refunds that are done: the customer's bank may have returned the money.
UPDATE pawl.charge_operations AS f SET due_at = now()
WHERE f.order_no = @order_no AND f.generation = @generation AND f.request_id = @request_id::text
  AND f.executor = @executor::text AND f.state <> 'failed' AND f.sent_at IS NOT NULL
RETURNING f.number;
