-- Operations of charges that were requested: refunds, and captures and voids of a charge that only authorized. They
-- never move an order, but raise its seq, because the order shows them.
--
-- A condition on set_config is always true. It sets lock_timeout for this statement only.

-- name: ChargeOperationAsk :many
-- Records an operation on the charge of a completed order, if its seq has not changed. A charge of the ledger is
-- refunded by this commit; any other operation is due at once. Returned units are in stock from now on, even if the
-- refund of the money fails.
WITH touched AS (
  UPDATE pawl.orders AS o SET seq = o.seq + 1, charge_operations = coalesce(o.charge_operations, 0) + 1
  WHERE o.order_no = @order_no AND o.seq = @seq AND o.ended_as = 'completed' AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  RETURNING o.*
), asked AS (
  INSERT INTO pawl.charge_operations (order_no, generation, number, kind, currency, amount, voided, state, executor, restock, lines, reason, request_id, due_at, finished_at)
  SELECT k.order_no, k.generation, k.charge_operations, @verb::text, c.currency, sqlc.arg('amount')::pawl.money_amount, sqlc.narg('voided')::pawl.money_amount,
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
-- Like LateUndosClaim. An operation is made under the policy of the order, whose provider made the charge.
WITH due AS MATERIALIZED (
  SELECT f.order_no, f.generation, f.number FROM pawl.charge_operations AS f
  WHERE f.due_at <= now() ORDER BY f.due_at LIMIT @most FOR UPDATE SKIP LOCKED
), claimed AS (
  UPDATE pawl.charge_operations AS f SET due_at = now() + make_interval(secs => @lease_seconds::float8), claims = f.claims + 1, calling = NULL
  FROM due AS d WHERE f.order_no = d.order_no AND f.generation = d.generation AND f.number = d.number
  RETURNING f.order_no, f.generation, f.number, f.kind, f.claims, f.state, f.amount, f.voided, f.sent_at, f.reason, f.reference, f.code, f.request_id, f.lines
)
SELECT c.number, c.kind::text AS kind, c.claims, c.state::text AS state, c.amount, c.lines, (c.voided IS NOT NULL)::boolean AS final, c.sent_at, coalesce(c.reason, '')::text AS reason,
  coalesce(c.reference, '')::text AS reference, coalesce(c.code, '')::text AS code, coalesce(c.request_id, '')::text AS request_id, sqlc.embed(o)
FROM claimed AS c JOIN pawl.full_orders AS o ON o.order_no = c.order_no;

-- name: ChargeOperationsHasten :exec
-- Spreads operations that failed over the next seconds, because their provider works again: not all at once, and none
-- twice, since those that are due sooner stay as they are. What a person must settle is not called. A place is a policy
-- and its route; the orders are looked up one by one, because the planner may else read all of them.
WITH failed AS MATERIALIZED (
  SELECT f.order_no, f.generation, f.number FROM pawl.charge_operations AS f
  WHERE f.due_at > now() + make_interval(secs => @seconds::float8) AND f.calling IS NULL
    AND f.state IN ('pending', 'in_doubt') AND f.code <> 'outcome_unknown'
    AND (SELECT concat_ws(' ', o.policy, o.route) FROM pawl.orders AS o WHERE o.order_no = f.order_no) = ANY(@places::text[])
  ORDER BY f.due_at LIMIT @most FOR UPDATE OF f SKIP LOCKED
)
UPDATE pawl.charge_operations AS f SET due_at = now() + random() * make_interval(secs => @seconds::float8)
FROM failed AS d WHERE f.order_no = d.order_no AND f.generation = d.generation AND f.number = d.number;

-- name: ChargeOperationsWaiting :many
-- Counts open operations that three calls or more have not done, by kind and currency, with the most frequent code and the next try.
-- unknown: they are not called again, because their outcome is unknown and the provider may have forgotten the key.
SELECT w.kind::text AS kind, w.unknown, w.currency::text AS currency, count(*) AS operations, sum(w.amount)::text AS amount,
  min(w.created_at)::timestamptz AS since, min(w.due_at)::timestamptz AS next, (mode() WITHIN GROUP (ORDER BY w.code))::text AS code
FROM (SELECT f.kind, (f.code = 'outcome_unknown')::boolean AS unknown, f.currency, f.amount, f.created_at, f.due_at, f.code FROM pawl.charge_operations AS f
  WHERE f.due_at IS NOT NULL AND f.state IN ('pending', 'in_doubt') AND f.code IS NOT NULL AND (f.claims >= 3 OR f.code = 'outcome_unknown') AND f.request_id IS NOT NULL LIMIT @most) AS w
GROUP BY w.kind, w.unknown, w.currency ORDER BY w.kind, w.unknown, w.currency;

-- name: ChargeOperationBegin :many
-- Records a call before it is made. From this commit on, the operation may have its effect, unless the call is a
-- look-up. No row: another replica has claimed the operation, or a person has settled it. 23505: as in LateUndoBegin.
WITH claimed AS MATERIALIZED (
  SELECT f.order_no, f.generation, f.number, f.state FROM pawl.charge_operations AS f
  WHERE f.order_no = @order_no AND f.generation = @generation AND f.number = @number AND f.claims = @claims AND f.due_at IS NOT NULL
    AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  FOR UPDATE
), begun AS (
  UPDATE pawl.charge_operations AS f SET due_at = clock_timestamp() + make_interval(secs => @lease_seconds::float8), calling = true,
    state = CASE WHEN @operation::text <> 'lookup' AND c.state = 'pending' THEN 'in_doubt' ELSE c.state END,
    sent_at = CASE WHEN @operation::text <> 'lookup' THEN coalesce(f.sent_at, now()) ELSE f.sent_at END
  FROM claimed AS c WHERE f.order_no = c.order_no AND f.generation = c.generation AND f.number = c.number
  RETURNING f.order_no, f.generation, f.number, f.kind, f.sent_at, f.state <> c.state AS changed
), touched AS (
  UPDATE pawl.orders AS o SET seq = o.seq + 1 FROM begun AS b WHERE o.order_no = @order_no AND b.changed
  RETURNING o.order_no, o.fence, o.seq, o.status, b.kind
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, reason)
  SELECT k.order_no, k.seq, k.status, k.status, k.fence, k.kind || '_sent', concat_ws(' ', k.kind, @number::integer) FROM touched AS k
)
INSERT INTO pawl.step_calls (order_no, call, fence, generation, policy, step, operation, charge_operation, route)
SELECT b.order_no, coalesce((SELECT min(t.call) FROM pawl.step_calls AS t WHERE t.order_no = @order_no AND t.call < 0), 0) - 1,
  @fence, b.generation, sqlc.narg('policy')::integer, 'charge', @operation::text, b.number, sqlc.narg('route')::text
FROM begun AS b
RETURNING call, started_at;

-- name: ChargeOperationFinish :exec
-- Records the result of a call, or why there was none. The first one that leaves the operation in doubt is in the history
-- as well: each operation is in doubt while it is called. It changes nothing else if the operation was settled or
-- claimed by another replica meanwhile. unsent: no request with its key can take effect any more.
WITH answered AS (
  UPDATE pawl.step_calls AS t SET finished_at = now(), outcome = @outcome::text, code = nullif(@code::text, ''),
    detail = nullif(@detail::text, ''), reference = nullif(@ref::text, '')
  WHERE t.order_no = @order_no AND t.call = @call
), claimed AS MATERIALIZED (
  SELECT f.order_no, f.generation, f.number, f.state, f.reference FROM pawl.charge_operations AS f
  WHERE f.order_no = @order_no AND f.generation = @generation AND f.number = @number AND f.claims = @claims
  FOR UPDATE
), finished AS (
  UPDATE pawl.charge_operations AS f SET state = @state::text, calling = NULL, code = nullif(@code::text, ''), detail = nullif(@detail::text, ''),
    reference = coalesce(nullif(@ref::text, ''), f.reference), sent_at = CASE WHEN NOT @unsent::boolean THEN f.sent_at END,
    due_at = CASE WHEN NOT @settled::boolean THEN now() + make_interval(secs => @delay::float8) END,
    finished_at = CASE WHEN NOT @state::text IN ('done', 'failed') THEN NULL WHEN f.state = @state::text THEN f.finished_at ELSE now() END
  FROM claimed AS c WHERE f.order_no = c.order_no AND f.generation = c.generation AND f.number = c.number
  RETURNING f.order_no, f.generation, f.number, f.kind, f.request_id, f.state, f.code, f.state <> c.state OR f.reference IS DISTINCT FROM c.reference
    OR f.state = 'in_doubt' AND @outcome::text = 'unknown' AND NOT EXISTS (
      SELECT FROM pawl.step_calls AS e WHERE e.order_no = f.order_no AND e.generation = f.generation AND e.charge_operation = f.number
        AND e.call <> @call AND e.outcome = 'unknown') AS changed
), touched AS (
  UPDATE pawl.orders AS o SET seq = o.seq + 1 FROM finished AS f WHERE o.order_no = @order_no AND f.changed
  RETURNING o.order_no, o.fence, o.seq, o.status, f.number, f.kind, f.state AS operation_state, f.code
), authorized AS ( -- a void asks the provider: now if a capture was told of the end, and in a day if it has not ended
  UPDATE pawl.charges AS c SET capture_by = least(c.capture_by, now()), capture_due_at = now() + make_interval(days => (f.kind = 'void')::integer)
  FROM finished AS f WHERE f.state = 'failed' AND (f.kind = 'void' AND f.request_id IS NULL OR f.kind = 'capture' AND f.code = 'authorization_expired')
    AND c.order_no = f.order_no AND c.generation = f.generation
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, reason)
SELECT k.order_no, k.seq, k.status, k.status, k.fence, k.kind || '_' || k.operation_state, concat_ws(', ', concat(k.kind, ' ', k.number, ': ', k.operation_state), k.code)
FROM touched AS k;

-- name: ChargeOperationSettle :many
-- Records what a person has found out about an operation at the provider. not_done: it is sent again, and its key
-- counts as never sent. No row: it is settled, a call is under way, whose answer may differ, or seq has changed since
-- the order was read.
WITH open AS MATERIALIZED (
  SELECT f.order_no, f.generation, f.number, f.kind, f.request_id FROM pawl.charge_operations AS f
  WHERE f.order_no = @order_no AND f.number = @number AND f.state IN ('pending', 'in_doubt', 'accepted')
    AND (f.calling AND f.due_at > now()) IS NOT TRUE
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
), authorized AS ( -- as in ChargeOperationFinish
  UPDATE pawl.charges AS c SET capture_by = least(c.capture_by, now()), capture_due_at = now() + make_interval(days => (p.kind = 'void')::integer)
  FROM touched AS k JOIN open AS p ON p.order_no = k.order_no
  WHERE @outcome::text = 'refused' AND (p.kind = 'void' AND p.request_id IS NULL OR p.kind = 'capture' AND @code::text = 'authorization_expired')
    AND c.order_no = p.order_no AND c.generation = p.generation
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, actor, on_behalf_of, reason, request_id, fingerprint)
  SELECT k.order_no, k.seq, k.status, k.status, k.fence, @verb::text,
    @actor::text, sqlc.narg('on_behalf_of')::text, sqlc.narg('reason')::text, sqlc.narg('request_id')::text, sqlc.narg('fingerprint')::bytea FROM touched AS k
)
SELECT sqlc.embed(written_orders) FROM (SELECT w.*, e.* FROM touched AS w, pawl.no_effects AS e) AS written_orders;

-- name: ChargeOperationHint :many
-- Makes an operation due because something has happened to it at its provider, so that the provider is asked about it.
-- This includes refunds that are done: the customer's bank may have returned the money. Without a request id, it is
-- about all captures and voids that are open.
UPDATE pawl.charge_operations AS f SET due_at = now()
WHERE f.order_no = @order_no AND f.generation = @generation AND f.executor = @executor::text AND f.sent_at IS NOT NULL
  AND CASE WHEN @request_id::text <> '' THEN f.request_id = @request_id::text AND f.state <> 'failed' AND (f.kind = 'refund' OR f.state <> 'done')
    ELSE f.kind <> 'refund' AND f.state NOT IN ('done', 'failed') END
RETURNING f.number;

-- name: AuthorizationsEnding :many
-- Looks at authorizations that are about to end, or have ended, and of which something is neither captured nor voided.
-- The first time, the history says so. At the end, a void without a request asks the provider whether the authorization
-- has ended: the rest then counts as voided. While an order or an operation is under way, they are looked at again.
WITH due AS MATERIALIZED (
  SELECT c.order_no, c.generation, c.currency, c.amount, c.executor, c.capture_by FROM pawl.charges AS c
  WHERE c.capture_due_at <= now() AND c.refunded_at IS NULL ORDER BY c.capture_due_at LIMIT @most
), judged AS MATERIALIZED (
  SELECT d.order_no, d.generation, d.currency, d.executor, d.capture_by, d.capture_by <= now() AS ended, o.status, o.seq,
    d.amount - coalesce(sum(f.amount + coalesce(f.voided, 0)) FILTER (WHERE f.state <> 'failed'), 0) AS rest,
    coalesce(bool_or(f.state NOT IN ('done', 'failed')), false) OR o.ended_as IS NULL AS under_way
  FROM due AS d JOIN pawl.orders AS o ON o.order_no = d.order_no
  LEFT JOIN pawl.charge_operations AS f ON f.order_no = d.order_no AND f.generation = d.generation AND f.kind <> 'refund' AND f.number > 0
  WHERE o.order_no = ANY(ARRAY(SELECT e.order_no FROM due AS e))
  GROUP BY d.order_no, d.generation, d.currency, d.amount, d.executor, d.capture_by, o.order_no
), locked AS MATERIALIZED ( -- the order before its charge, as everywhere
  SELECT o.order_no FROM pawl.orders AS o WHERE o.order_no = ANY(ARRAY(SELECT e.order_no FROM due AS e))
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), touched AS (
  UPDATE pawl.orders AS o SET seq = o.seq + 1,
    charge_operations = CASE WHEN j.ended THEN coalesce(o.charge_operations, 0) + 1 ELSE o.charge_operations END
  FROM judged AS j
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l)) AND o.order_no = j.order_no AND o.seq = j.seq
    AND o.status = 'completed' AND j.rest > 0 AND (NOT j.ended OR NOT j.under_way)
  RETURNING o.order_no, o.fence, o.seq, o.status, o.charge_operations, j.generation, j.currency, j.rest, j.executor, j.ended, j.capture_by
), asked AS (
  INSERT INTO pawl.charge_operations (order_no, generation, number, kind, currency, amount, state, executor, due_at)
  SELECT t.order_no, t.generation, t.charge_operations, 'void', t.currency, t.rest, 'pending', t.executor, now() FROM touched AS t WHERE t.ended
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, reason)
  SELECT t.order_no, t.seq, t.status, t.status, t.fence, CASE WHEN t.ended THEN 'void' ELSE 'capture_due' END,
    CASE WHEN t.ended THEN concat('void ', t.charge_operations, ': the authorization should have ended')
      ELSE concat(t.rest, ' ', t.currency, ' can be captured until ', to_char(t.capture_by AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) END
  FROM touched AS t
)
UPDATE pawl.charges AS c SET
  capture_by = CASE WHEN j.rest = 0 AND NOT j.under_way OR j.status IN ('failed', 'canceled') THEN NULL ELSE c.capture_by END,
  capture_due_at = CASE
    WHEN j.rest = 0 AND NOT j.under_way OR j.status IN ('failed', 'canceled') THEN NULL
    WHEN t.order_no IS NULL THEN now() + interval '1 minute' -- under way, or written to at this moment
    WHEN NOT j.ended THEN c.capture_by END
FROM judged AS j LEFT JOIN touched AS t ON t.order_no = j.order_no
WHERE c.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l)) AND c.order_no = j.order_no AND c.generation = j.generation
  AND c.capture_due_at <= now()
RETURNING c.order_no;

-- name: AuthorizationHint :execrows
-- Has the provider asked about an authorization now, because it seems to have ended.
UPDATE pawl.charges AS c SET capture_by = least(c.capture_by, now()), capture_due_at = now()
WHERE c.order_no = @order_no AND c.generation = @generation AND c.capture = 'later' AND c.capture_by IS NOT NULL;
