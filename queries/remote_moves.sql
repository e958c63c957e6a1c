-- The moves of remote steps. They also close the call. A move without a call (a stop before the first one, or a
-- ledger step among remote ones) finds none to close.
--
-- If the next step is remote, too, and its call can be made at once, the move into its state also records the call
-- (@begins). A lease that outlasts the call is not changed: due_at is indexed, and an update that leaves it alone is
-- a HOT update.
--
-- The planner does not see arguments in sub-selects. If it saw that no answer is consumed, or which status is meant, it
-- would make a plan for each execution, which takes three times as long as the rest.

-- name: RemoteCharged :many
-- If a stop was requested meanwhile, the charge is recorded all the same, and then undone.
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET
    status = CASE WHEN o.stop_requested IS NULL OR o.stop_requested = 'pause' THEN 'reserving' ELSE 'refunding' END,
    outcome = CASE WHEN o.stop_requested <> 'pause' THEN 'canceled' END,
    seq = o.seq + 1, take_overs = 0, retries = NULL, action = NULL,
    calls = CASE WHEN @begins::boolean AND o.stop_requested IS NULL THEN coalesce(o.calls, 0) + 1 ELSE o.calls END,
    retry_window_started_at = CASE WHEN @begins::boolean AND o.stop_requested IS NULL THEN now() END,
    in_doubt_since = CASE WHEN @begins::boolean AND o.stop_requested IS NULL THEN now() END,
    due_at = CASE WHEN NOT @begins::boolean OR o.due_at >= clock_timestamp() + make_interval(secs => @call_seconds::float8) THEN o.due_at
      ELSE clock_timestamp() + make_interval(secs => @lease_seconds::float8) END
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l))
    AND o.status = (SELECT @expected::pawl.order_status) AND o.fence = (SELECT @fence::bigint) AND o.seq = (SELECT @seq::integer)
  RETURNING o.order_no, o.fence, o.seq, o.status, o.generation, o.currency, o.amount, o.calls, o.policy, o.in_doubt_since,
    array_position((SELECT @order_nos::bigint[]), o.order_no) AS place
), charged AS (
  INSERT INTO pawl.charges (order_no, generation, currency, amount, executor, reference, data, capture, capture_by, capture_due_at)
  SELECT m.order_no, m.generation, m.currency, m.amount, @executor::text, nullif((SELECT @refs::text[])[m.place], ''), nullif((SELECT @data::text[])[m.place], '')::jsonb,
    nullif(@capture::text, ''), CASE WHEN @capture::text = 'later' THEN now() + make_interval(secs => @capture_seconds::float8) END,
    CASE WHEN @capture::text = 'later' THEN now() + make_interval(secs => @capture_due_seconds::float8) END
  FROM moved AS m ORDER BY m.order_no
), finished AS (
  UPDATE pawl.step_calls AS t SET finished_at = now(), outcome = 'done', reference = nullif((SELECT @refs::text[])[m.place], '')
  FROM moved AS m
  WHERE t.order_no = m.order_no AND t.finished_at IS NULL
    AND t.call = m.calls - CASE WHEN m.in_doubt_since IS NULL THEN 0 ELSE 1 END
), begun AS (
  INSERT INTO pawl.step_calls (order_no, call, fence, generation, policy, step, operation)
  SELECT m.order_no, m.calls, m.fence, m.generation, m.policy, 'reserve', 'do' FROM moved AS m WHERE m.in_doubt_since IS NOT NULL
), consumed AS (
  UPDATE pawl.step_answers AS w SET consumed_at = now()
  WHERE w.order_no = ANY(ARRAY(SELECT n.order_no FROM moved AS n)) AND w.consumed_at IS NULL AND (SELECT @consumes::boolean)
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence)
SELECT m.order_no, m.seq, 'charging', m.status, m.fence FROM moved AS m
RETURNING order_no, seq, to_status, at;

-- name: RemoteReserved :many
-- The stock belongs to the other system; the inventory here is unchanged.
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET
    status = CASE WHEN o.stop_requested IS NULL OR o.stop_requested = 'pause' THEN 'confirming' ELSE 'releasing' END,
    outcome = CASE WHEN o.stop_requested <> 'pause' THEN 'canceled' END,
    reserved_until = now() + make_interval(secs => o.reservation_ttl),
    seq = o.seq + 1, take_overs = 0, retries = NULL, action = NULL,
    calls = CASE WHEN @begins::boolean AND o.stop_requested IS NULL THEN coalesce(o.calls, 0) + 1 ELSE o.calls END,
    retry_window_started_at = CASE WHEN @begins::boolean AND o.stop_requested IS NULL THEN now() END,
    in_doubt_since = CASE WHEN @begins::boolean AND o.stop_requested IS NULL THEN now() END,
    due_at = CASE WHEN NOT @begins::boolean OR o.due_at >= clock_timestamp() + make_interval(secs => @call_seconds::float8) THEN o.due_at
      ELSE clock_timestamp() + make_interval(secs => @lease_seconds::float8) END
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l))
    AND o.status = (SELECT @expected::pawl.order_status) AND o.fence = (SELECT @fence::bigint) AND o.seq = (SELECT @seq::integer)
  RETURNING o.order_no, o.fence, o.seq, o.status, o.generation, o.item, o.quantity, o.lines, o.calls, o.policy, o.in_doubt_since,
    array_position((SELECT @order_nos::bigint[]), o.order_no) AS place
), reserved AS (
  INSERT INTO pawl.reservations (order_no, generation, line, item, quantity, executor, reference, data)
  SELECT m.order_no, m.generation, i.line, i.item, i.quantity, @executor::text,
    CASE WHEN i.line = 1 THEN nullif((SELECT @refs::text[])[m.place], '') END, CASE WHEN i.line = 1 THEN nullif((SELECT @data::text[])[m.place], '')::jsonb END
  FROM moved AS m
  CROSS JOIN LATERAL pawl.items_of(m.item, m.quantity, m.lines) AS i(line, item, quantity) ORDER BY m.order_no
), finished AS (
  UPDATE pawl.step_calls AS t SET finished_at = now(), outcome = 'done', reference = nullif((SELECT @refs::text[])[m.place], '')
  FROM moved AS m
  WHERE t.order_no = m.order_no AND t.finished_at IS NULL
    AND t.call = m.calls - CASE WHEN m.in_doubt_since IS NULL THEN 0 ELSE 1 END
), begun AS (
  INSERT INTO pawl.step_calls (order_no, call, fence, generation, policy, step, operation)
  SELECT m.order_no, m.calls, m.fence, m.generation, m.policy, 'confirm', 'do' FROM moved AS m WHERE m.in_doubt_since IS NOT NULL
), consumed AS (
  UPDATE pawl.step_answers AS w SET consumed_at = now()
  WHERE w.order_no = ANY(ARRAY(SELECT n.order_no FROM moved AS n)) AND w.consumed_at IS NULL AND (SELECT @consumes::boolean)
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence)
SELECT m.order_no, m.seq, 'reserving', m.status, m.fence FROM moved AS m
RETURNING order_no, seq, to_status, at;

-- name: RemoteConfirmed :many
-- A confirmation can't be stopped once it was called for, so stop_requested is ignored. This move also sells what the
-- ledger reserved, and marks an authorized charge as captured. (The condition on set_config is always true. It sets
-- lock_timeout.)
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET
    status = 'completed', ended_as = 'completed', finished_at = now(), due_at = NULL, owner = NULL, stop_requested = NULL,
    failure_step = NULL, failure_code = NULL, failure_detail = NULL,
    seq = o.seq + 1, take_overs = 0, retries = NULL, retry_window_started_at = NULL, in_doubt_since = NULL, action = NULL
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l))
    AND o.status = (SELECT @expected::pawl.order_status) AND o.fence = (SELECT @fence::bigint) AND o.seq = (SELECT @seq::integer)
  RETURNING o.order_no, o.fence, o.seq, o.status, o.generation, o.item, o.quantity, o.lines, o.calls,
    array_position((SELECT @order_nos::bigint[]), o.order_no) AS place
), sold AS (
  INSERT INTO pawl.inventory AS i (item, reserved)
  SELECT l.item, sum(l.quantity) FROM moved AS m CROSS JOIN LATERAL pawl.items_of(m.item, m.quantity, m.lines) AS l(line, item, quantity)
  WHERE (SELECT @sells::boolean) AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  GROUP BY l.item ORDER BY l.item COLLATE "C"
  ON CONFLICT (item) DO UPDATE SET
    reserved = i.reserved - excluded.reserved,
    on_hand = CASE WHEN i.tracked THEN i.on_hand - excluded.reserved ELSE i.on_hand END,
    sold = i.sold + excluded.reserved, version = i.version + 1
), confirmed AS (
  INSERT INTO pawl.confirmations (order_no, generation, executor, reference, data)
  SELECT m.order_no, m.generation, @executor::text, nullif((SELECT @refs::text[])[m.place], ''), nullif((SELECT @data::text[])[m.place], '')::jsonb
  FROM moved AS m WHERE @executor::text <> '' ORDER BY m.order_no
), captured AS (
  UPDATE pawl.charges AS c SET captured_at = now()
  WHERE c.order_no = ANY(ARRAY(SELECT n.order_no FROM moved AS n)) AND c.refunded_at IS NULL AND c.capture = 'on_confirm'
), finished AS (
  UPDATE pawl.step_calls AS t SET finished_at = now(), outcome = 'done', reference = nullif((SELECT @refs::text[])[m.place], '')
  FROM moved AS m
  WHERE t.order_no = m.order_no AND t.call = m.calls
    AND t.finished_at IS NULL
), consumed AS (
  UPDATE pawl.step_answers AS w SET consumed_at = now()
  WHERE w.order_no = ANY(ARRAY(SELECT n.order_no FROM moved AS n)) AND w.consumed_at IS NULL AND (SELECT @consumes::boolean)
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence)
SELECT m.order_no, m.seq, 'confirming', m.status, m.fence FROM moved AS m
RETURNING order_no, seq, to_status, at;

-- name: RemoteRefused :many
-- The step was not done, so the steps before it are undone. After a refused charge there are none, and the order
-- ends. If an earlier call is in doubt, however, a refusal of a later one does not mean that the earlier one will
-- never arrive: not every provider remembers refusals. Such a step is recorded as done, and undone, as when an order
-- is stopped.
WITH locked AS MATERIALIZED (
  SELECT o.order_no, o.status AS was FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET
    status = CASE WHEN o.status = 'confirming' OR o.status = 'reserving' AND @doubted::boolean THEN 'releasing'
      WHEN o.status = 'reserving' OR @doubted::boolean THEN 'refunding'
      WHEN o.stop_requested <> 'pause' THEN 'canceled' ELSE 'failed' END,
    outcome = CASE WHEN o.stop_requested <> 'pause' THEN 'canceled' ELSE 'failed' END,
    ended_as = CASE WHEN o.status <> 'charging' OR @doubted::boolean THEN NULL
      WHEN o.stop_requested <> 'pause' THEN 'canceled' ELSE 'failed' END,
    finished_at = CASE WHEN o.status = 'charging' AND NOT @doubted::boolean THEN now() END,
    due_at = CASE WHEN o.status <> 'charging' OR @doubted::boolean THEN o.due_at END,
    owner = CASE WHEN o.status <> 'charging' OR @doubted::boolean THEN o.owner END,
    failure_step = @step::text,
    failure_code = (SELECT @codes::text[])[array_position((SELECT @order_nos::bigint[]), o.order_no)],
    failure_detail = nullif((SELECT @details::text[])[array_position((SELECT @order_nos::bigint[]), o.order_no)], ''),
    seq = o.seq + 1, take_overs = 0, retries = NULL, retry_window_started_at = NULL, action = NULL,
    in_doubt_since = CASE WHEN @doubted::boolean AND o.status <> 'confirming' THEN o.in_doubt_since END
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l))
    AND o.status = (SELECT @expected::pawl.order_status) AND o.fence = (SELECT @fence::bigint) AND o.seq = (SELECT @seq::integer)
  RETURNING o.order_no, o.fence, o.seq, o.status, o.calls, o.failure_code, o.failure_detail,
    o.generation, o.currency, o.amount, o.item, o.quantity, o.lines
), charged AS (
  INSERT INTO pawl.charges (order_no, generation, currency, amount, executor, in_doubt, capture)
  SELECT m.order_no, m.generation, m.currency, m.amount, @executor::text, true, nullif(@capture::text, '')
  FROM moved AS m WHERE (SELECT @step::text) = 'charge' AND m.status = 'refunding' ORDER BY m.order_no
), reserved AS (
  INSERT INTO pawl.reservations (order_no, generation, line, item, quantity, executor, in_doubt)
  SELECT m.order_no, m.generation, i.line, i.item, i.quantity, @executor::text, true
  FROM moved AS m CROSS JOIN LATERAL pawl.items_of(m.item, m.quantity, m.lines) AS i(line, item, quantity) WHERE (SELECT @step::text) = 'reserve' AND m.status = 'releasing' ORDER BY m.order_no
), finished AS (
  UPDATE pawl.step_calls AS t SET finished_at = now(), outcome = 'refused', code = m.failure_code, detail = m.failure_detail
  FROM moved AS m
  WHERE t.order_no = m.order_no AND t.call = m.calls AND t.finished_at IS NULL
), consumed AS (
  UPDATE pawl.step_answers AS w SET consumed_at = now()
  WHERE w.order_no = ANY(ARRAY(SELECT n.order_no FROM moved AS n)) AND w.consumed_at IS NULL AND (SELECT @consumes::boolean)
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, reason)
SELECT m.order_no, m.seq, l.was, m.status, m.fence, m.failure_code FROM moved AS m JOIN locked AS l ON l.order_no = m.order_no
RETURNING order_no, seq, to_status, at;

-- name: RemoteFallback :many
-- The charge was certainly refused, with a code after which another route is tried. It begins again on that route as
-- the next generation, with a key that no provider has seen. Before it is sent, the key of the refused charge is
-- voided, as after a redrive. An order that is to stop does not fall back: the request raised seq, and its driver reads
-- it.
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET
    generation = o.generation + 1, route = @route::text,
    seq = o.seq + 1, take_overs = 0, retries = NULL, retry_window_started_at = NULL, in_doubt_since = NULL, action = NULL
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l))
    AND o.status = (SELECT @expected::pawl.order_status) AND o.fence = (SELECT @fence::bigint) AND o.seq = (SELECT @seq::integer) AND (o.stop_requested IS NULL OR o.stop_requested = 'pause')
  RETURNING o.order_no, o.fence, o.seq, o.status, o.calls, o.route, array_position((SELECT @order_nos::bigint[]), o.order_no) AS place
), finished AS (
  UPDATE pawl.step_calls AS t SET finished_at = now(), outcome = 'refused', code = (SELECT @codes::text[])[m.place],
    detail = nullif((SELECT @details::text[])[m.place], '')
  FROM moved AS m
  WHERE t.order_no = m.order_no AND t.call = m.calls AND t.finished_at IS NULL
), consumed AS (
  UPDATE pawl.step_answers AS w SET consumed_at = now()
  WHERE w.order_no = ANY(ARRAY(SELECT n.order_no FROM moved AS n)) AND w.consumed_at IS NULL AND (SELECT @consumes::boolean)
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, reason)
SELECT m.order_no, m.seq, m.status, m.status, m.fence, 'fallback', (SELECT @codes::text[])[m.place] || ': next route ' || m.route
FROM moved AS m
RETURNING order_no, seq, to_status, at;

-- name: RemoteStopped :many
-- Leaves a state because of a stop, without an answer. If nothing is in doubt, the step was not done. In doubt it is
-- recorded as done, and undone: the undo of a key that the provider has never seen makes a late call fail.
-- in_doubt_since stays, because the key keeps its age. A confirmation in doubt is not stopped. An unfinished undo of
-- an earlier generation's key becomes a late undo, because the order will have no state in which it could be
-- repeated.
WITH locked AS MATERIALIZED (
  SELECT o.order_no, o.status AS was FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET
    status = CASE WHEN o.status = 'confirming' OR o.status = 'reserving' AND o.in_doubt_since IS NOT NULL THEN 'releasing'
      WHEN o.status = 'reserving' OR o.in_doubt_since IS NOT NULL THEN 'refunding' ELSE 'canceled' END,
    outcome = 'canceled',
    ended_as = CASE WHEN o.status = 'charging' AND o.in_doubt_since IS NULL THEN 'canceled' END,
    finished_at = CASE WHEN o.status = 'charging' AND o.in_doubt_since IS NULL THEN now() END,
    due_at = CASE WHEN o.status <> 'charging' OR o.in_doubt_since IS NOT NULL THEN o.due_at END,
    owner = CASE WHEN o.status <> 'charging' OR o.in_doubt_since IS NOT NULL THEN o.owner END,
    seq = o.seq + 1, take_overs = 0, retries = NULL, retry_window_started_at = NULL, action = NULL,
    in_doubt_since = CASE WHEN o.status IN ('charging', 'reserving') THEN o.in_doubt_since END
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l))
    AND o.status = (SELECT @expected::pawl.order_status) AND o.fence = (SELECT @fence::bigint) AND o.seq = (SELECT @seq::integer)
    AND o.stop_requested <> 'pause' AND NOT (o.status = 'confirming' AND o.in_doubt_since IS NOT NULL)
  RETURNING o.order_no, o.fence, o.seq, o.status, o.generation, o.currency, o.amount, o.item, o.quantity, o.lines
), charged AS (
  INSERT INTO pawl.charges (order_no, generation, currency, amount, executor, in_doubt, capture)
  SELECT m.order_no, m.generation, m.currency, m.amount, @executor::text, true, nullif(@capture::text, '')
  FROM moved AS m JOIN locked AS l ON l.order_no = m.order_no WHERE l.was = 'charging' AND m.status = 'refunding' ORDER BY m.order_no
), reserved AS (
  INSERT INTO pawl.reservations (order_no, generation, line, item, quantity, executor, in_doubt)
  SELECT m.order_no, m.generation, i.line, i.item, i.quantity, @executor::text, true
  FROM moved AS m JOIN locked AS l ON l.order_no = m.order_no
  CROSS JOIN LATERAL pawl.items_of(m.item, m.quantity, m.lines) AS i(line, item, quantity) WHERE l.was = 'reserving' AND m.status = 'releasing' ORDER BY m.order_no
), handed_over AS (
  INSERT INTO pawl.late_undos (order_no, generation, step, reason)
  SELECT DISTINCT u.order_no, u.generation, u.step, 'an undo that was not done when the order was stopped'
  FROM pawl.step_calls AS u JOIN moved AS m ON m.order_no = u.order_no
  WHERE u.order_no = ANY(ARRAY(SELECT n.order_no FROM moved AS n WHERE n.generation > 0))
    AND u.generation < m.generation AND u.operation = 'undo'
    AND NOT EXISTS (
      SELECT 1 FROM pawl.step_calls AS d WHERE d.order_no = u.order_no AND d.generation = u.generation AND d.step = u.step
        AND d.operation = 'undo' AND d.outcome = 'done')
    AND NOT EXISTS (
      SELECT 1 FROM pawl.step_answers AS w WHERE w.order_no = u.order_no AND w.generation = u.generation AND w.step = u.step
        AND w.operation = 'undo' AND w.outcome = 'done')
  ORDER BY u.order_no, u.generation, u.step
  ON CONFLICT (order_no, generation, step) DO NOTHING -- it is being undone already, or a person has closed it
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence)
SELECT m.order_no, m.seq, l.was, m.status, m.fence FROM moved AS m JOIN locked AS l ON l.order_no = m.order_no
RETURNING order_no, seq, to_status, at;
