-- Calls of remote steps. A call is committed before it is made, and closed by the write that applies its result. The
-- results of several orders are saved by one statement. What differs between them is in arrays, which are joined to
-- the rows that were found, never to orders.

-- name: CallsBegin :many
-- Records calls that are about to be made. From this commit on, the step may take effect. The lease is extended only
-- if it would end before the call.
--
-- With a generation, the call voids a key of that earlier generation. It says nothing about the current step, so
-- in_doubt_since stays: otherwise a stop would record a charge that was never called for. take_overs stays, too, so
-- that an order whose driver dies in such calls is held after three take-overs.
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET
    seq = o.seq + 1, calls = coalesce(o.calls, 0) + 1, take_overs = CASE WHEN sqlc.narg('generation')::integer IS NULL THEN 0 ELSE o.take_overs END,
    retry_window_started_at = coalesce(o.retry_window_started_at, now()),
    in_doubt_since = CASE WHEN @operation::text = 'lookup' OR sqlc.narg('generation')::integer IS NOT NULL THEN o.in_doubt_since
      ELSE coalesce(o.in_doubt_since, now()) END,
    due_at = CASE WHEN o.due_at >= clock_timestamp() + make_interval(secs => @call_seconds::float8) THEN o.due_at
      ELSE clock_timestamp() + make_interval(secs => @lease_seconds::float8) END
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l))
    AND o.status = (SELECT @expected::pawl.order_status) AND o.fence = (SELECT @fence::bigint) AND o.seq = (SELECT @seq::integer)
  RETURNING o.order_no, o.fence, o.seq, o.status, o.calls, o.policy, o.in_doubt_since,
    coalesce(sqlc.narg('generation')::integer, o.generation) AS generation
), begun AS (
  INSERT INTO pawl.step_calls (order_no, call, fence, generation, policy, step, operation, route, undo_reference)
  SELECT m.order_no, m.calls, m.fence, m.generation, m.policy, @step::text, @operation::text, nullif(@route::text, ''),
    CASE WHEN @operation::text = 'undo' THEN nullif((SELECT @undo_references::text[])[array_position((SELECT @order_nos::bigint[]), m.order_no)], '') END
  FROM moved AS m
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb)
  SELECT m.order_no, m.seq, m.status, m.status, m.fence, 'call' FROM moved AS m
)
SELECT m.order_no, m.seq, m.calls::integer AS call, m.in_doubt_since, now()::timestamptz AS at
FROM moved AS m;

-- name: CallsSuspend :many
-- Saves results that leave orders in their state. An order is put on hold, or continues if hold is empty. With a
-- negative delay it is held until a person acts.
WITH answers AS MATERIALIZED (
  SELECT x.order_no, x.hold, x.reason, x.delay, x.counts, x.cleared, x.outcome, x.code, x.detail, x.reference, x.action
  FROM ROWS FROM (unnest((SELECT @order_nos::bigint[])), unnest((SELECT @holds::text[])), unnest((SELECT @reasons::text[])),
      unnest((SELECT @delays::float8[])), unnest((SELECT @counts::boolean[])), unnest((SELECT @cleared::boolean[])),
      unnest((SELECT @outcomes::text[])), unnest((SELECT @codes::text[])), unnest((SELECT @details::text[])),
      unnest((SELECT @refs::text[])), unnest((SELECT @actions::text[])))
    AS x(order_no, hold, reason, delay, counts, cleared, outcome, code, detail, reference, action)
), locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET
    seq = o.seq + 1, take_overs = 0,
    hold = nullif(a.hold, ''), hold_reason = nullif(a.reason, ''),
    owner = CASE WHEN a.hold = '' THEN o.owner END,
    due_at = CASE WHEN a.hold = '' THEN o.due_at WHEN a.delay >= 0 THEN clock_timestamp() + make_interval(secs => a.delay) END,
    retries = coalesce(o.retries, 0) + a.counts::integer, retry_window_started_at = coalesce(o.retry_window_started_at, now()),
    in_doubt_since = CASE WHEN NOT a.cleared THEN o.in_doubt_since END,
    action = nullif(a.action, '')::jsonb
  FROM answers AS a
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l)) AND a.order_no = o.order_no
    AND o.status = (SELECT @expected::pawl.order_status) AND o.fence = (SELECT @fence::bigint) AND o.seq = (SELECT @seq::integer)
  RETURNING o.order_no, o.fence, o.seq, o.status, o.hold, o.hold_reason, o.calls
), finished AS (
  UPDATE pawl.step_calls AS t SET finished_at = now(), outcome = a.outcome, code = nullif(a.code, ''),
    detail = nullif(a.detail, ''), reference = nullif(a.reference, '')
  FROM moved AS m JOIN answers AS a ON a.order_no = m.order_no
  WHERE t.order_no = m.order_no AND t.call = m.calls AND t.finished_at IS NULL AND a.outcome <> ''
), consumed AS (
  UPDATE pawl.step_answers AS w SET consumed_at = now()
  WHERE w.order_no = ANY(ARRAY(SELECT n.order_no FROM moved AS n)) AND w.consumed_at IS NULL AND (SELECT @consumes::boolean)
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, reason)
SELECT m.order_no, m.seq, m.status, m.status, m.fence, coalesce(m.hold, 'answer'), m.hold_reason FROM moved AS m
RETURNING order_no, seq, to_status, at;

-- name: CallFenced :exec
-- Records an answer that arrived after another replica had claimed the order. It moves nothing.
UPDATE pawl.step_calls AS t SET finished_at = now(), fenced = true, outcome = @outcome::text,
  code = nullif(@code::text, ''), detail = nullif(@detail::text, ''), reference = nullif(@ref::text, '')
WHERE t.order_no = @order_no AND t.call = @call AND t.fence = @fence AND t.finished_at IS NULL;

-- name: CallsOf :many
-- Returns the calls of an order by number. undo_open: the call belongs to a late undo that is still open.
SELECT t.*, (t.call < 0 AND t.operation = 'undo' AND EXISTS (SELECT 1 FROM pawl.late_undos AS u
  WHERE u.order_no = @order_no AND u.generation = t.generation AND u.step = t.step AND u.finished_at IS NULL))::boolean AS undo_open, coalesce((SELECT f.kind::text FROM pawl.charge_operations AS f
  WHERE f.order_no = @order_no AND f.generation = t.generation AND f.number = t.charge_operation), '')::text AS kind
FROM pawl.step_calls AS t
WHERE t.order_no = @order_no AND t.call > @after AND t.call < @before ORDER BY t.call LIMIT @most;

-- name: CallsOfNewest :many
SELECT t.*, (t.call < 0 AND t.operation = 'undo' AND EXISTS (SELECT 1 FROM pawl.late_undos AS u
  WHERE u.order_no = @order_no AND u.generation = t.generation AND u.step = t.step AND u.finished_at IS NULL))::boolean AS undo_open, coalesce((SELECT f.kind::text FROM pawl.charge_operations AS f
  WHERE f.order_no = @order_no AND f.generation = t.generation AND f.number = t.charge_operation), '')::text AS kind
FROM pawl.step_calls AS t
WHERE t.order_no = @order_no AND t.call > @after AND t.call < @before ORDER BY t.call DESC LIMIT @most;

-- name: CallsPreflight :many
-- Reads what earlier calls left behind. For the key of each requested step: an unused answer that came without a
-- call; the provider's reference, or empty; the reference in an earlier undo request; and when the key was first
-- sent. A confirmation uses the reference of the charge that it captures.
--
-- For a charge or a reservation, also the keys of earlier generations that were sent and not certainly undone
-- (voids). They must be undone first, even if they were refused: a delayed request may still arrive, and not every
-- provider remembers refusals. Keys that a person recorded as undone are left out, because the provider would refuse
-- again.
WITH asked AS (
  SELECT x.order_no, x.generation, x.step, x.operation
  FROM ROWS FROM (unnest(@order_nos::bigint[]), unnest(@generations::integer[]), unnest(@steps::text[]), unnest(@operations::text[]))
    AS x(order_no, generation, step, operation)
), keys AS (
  SELECT x.order_no, x.generation, x.step, x.operation, 0 AS policy, '' AS route, false AS voids,
    CASE x.step WHEN 'confirm' THEN 'charge' ELSE x.step END AS effect
  FROM asked AS x
  UNION ALL
  SELECT x.order_no, e.generation, e.step, 'undo', coalesce(e.policy, 0), coalesce(e.route, ''), true, e.step
  FROM asked AS x CROSS JOIN LATERAL (
    SELECT DISTINCT t.generation, t.step, t.policy, t.route FROM pawl.step_calls AS t
    WHERE t.order_no = x.order_no AND t.generation < x.generation AND t.operation = 'do' AND t.step IN ('charge', 'reserve')
      AND NOT EXISTS (
        SELECT 1 FROM pawl.step_calls AS u
        WHERE u.order_no = t.order_no AND u.generation = t.generation AND u.step = t.step AND u.operation = 'undo' AND u.outcome = 'done')
      AND NOT EXISTS (
        SELECT 1 FROM pawl.step_answers AS w
        WHERE w.order_no = t.order_no AND w.generation = t.generation AND w.step = t.step AND w.operation = 'undo' AND w.outcome = 'done')
      AND NOT EXISTS (
        SELECT 1 FROM pawl.late_undos AS l
        WHERE l.order_no = t.order_no AND l.generation = t.generation AND l.step = t.step AND l.finished_at IS NOT NULL)
  ) AS e
  WHERE x.operation = 'do' AND x.step <> 'confirm'
)
SELECT k.order_no::bigint AS order_no, k.generation::integer AS generation, k.step::text AS step,
  k.policy::integer AS policy, k.route::text AS route, k.voids::boolean AS voids,
  coalesce(
    (SELECT c.reference FROM pawl.charges AS c WHERE k.effect = 'charge' AND c.order_no = k.order_no AND c.generation = k.generation),
    (SELECT r.reference FROM pawl.reservations AS r WHERE k.effect = 'reserve' AND r.order_no = k.order_no AND r.generation = k.generation AND r.line = 1),
    (SELECT t.reference FROM pawl.step_calls AS t WHERE t.order_no = k.order_no AND t.generation = k.generation AND t.step = k.effect
       AND t.operation <> 'undo' AND t.charge_operation IS NULL AND t.reference IS NOT NULL ORDER BY t.call DESC LIMIT 1),
    (SELECT l.reference FROM pawl.late_undos AS l WHERE l.order_no = k.order_no AND l.generation = k.generation AND l.step = k.effect),
    (SELECT w.reference FROM pawl.step_answers AS w WHERE w.order_no = k.order_no AND w.generation = k.generation AND w.step = k.effect
       AND w.operation = 'do'), '')::text AS reference,
  -- Not EXISTS, which the planner may hash, reading the whole table.
  coalesce((SELECT true FROM pawl.step_calls AS t WHERE t.order_no = k.order_no AND t.generation = k.generation AND t.step = k.step
    AND t.operation = 'undo' LIMIT 1), false)::boolean AS undo_begun,
  coalesce((SELECT t.undo_reference FROM pawl.step_calls AS t WHERE t.order_no = k.order_no AND t.generation = k.generation AND t.step = k.step
    AND t.operation = 'undo' ORDER BY t.started_at LIMIT 1), '')::text AS undo_named,
  coalesce((SELECT min(t.started_at) FROM pawl.step_calls AS t WHERE t.order_no = k.order_no AND t.generation = k.generation
    AND t.step = k.step AND t.operation = 'do'), now())::timestamptz AS sent_at,
  coalesce(a.source, '')::text AS source, coalesce(a.outcome, '')::text AS outcome, coalesce(a.code, '')::text AS code,
  coalesce(a.detail, '')::text AS detail, coalesce(a.reference, '')::text AS answer_reference, coalesce(a.data::text, '')::text AS data
FROM keys AS k LEFT JOIN LATERAL (
  SELECT w.source, w.outcome, w.code, w.detail, w.reference, w.data FROM pawl.step_answers AS w
  WHERE w.order_no = k.order_no AND w.generation = k.generation AND w.step = k.step AND w.operation = k.operation
    AND w.consumed_at IS NULL AND NOT k.voids LIMIT 1
) AS a ON true
ORDER BY k.order_no, k.generation, k.step;
