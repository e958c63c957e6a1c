-- Requests of people about an order. The engine decides by the row that it has read whether a verb applies. These
-- statements write only if the row still has that seq, which every write raises. They wait for the row for at most
-- 500 ms: a condition on set_config is always true, and sets lock_timeout for this statement only.

-- name: OrderVerb :many
-- Writes the changes of a verb that moves no order. An order that continues is claimed for this process, or left due
-- for one that has its policy. An order that rests waits for a person. Otherwise the driver keeps fence and lease,
-- and its next move sees the request in the row.
WITH asked AS (
  UPDATE pawl.orders AS o SET
    seq = o.seq + 1, hold = sqlc.narg('hold')::text, hold_reason = sqlc.narg('hold_reason')::text,
    stop_requested = sqlc.narg('stop_requested')::text, failure_code = sqlc.narg('failure_code')::text,
    policy = sqlc.narg('policy')::integer, route = sqlc.narg('route')::text,
    approved_at = CASE WHEN @approves::boolean THEN now() ELSE o.approved_at END,
    -- In doubt, one retry stays counted: that of the call without an answer.
    retries = CASE WHEN NOT @renews::boolean THEN o.retries WHEN o.in_doubt_since IS NOT NULL THEN 1 END,
    retry_window_started_at = CASE WHEN NOT @renews::boolean THEN o.retry_window_started_at END,
    fence = o.fence + CASE WHEN @next::text = 'claimed' THEN 1 ELSE 0 END,
    owner = CASE @next::text WHEN 'claimed' THEN @owner::uuid WHEN 'same' THEN o.owner END,
    take_overs = CASE WHEN @next::text = 'same' THEN o.take_overs ELSE 0 END, -- otherwise it would be held again at once
    due_at = CASE @next::text WHEN 'claimed' THEN clock_timestamp() + make_interval(secs => @lease_seconds::float8)
      WHEN 'due' THEN now() WHEN 'same' THEN o.due_at END
  WHERE o.order_no = @order_no AND o.seq = @seq AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  RETURNING o.*
), hastened AS ( -- the retry of a completed order
  UPDATE pawl.charge_operations AS f SET due_at = now() FROM asked AS a
  WHERE f.order_no = a.order_no AND a.status = 'completed' AND @verb::text = 'retry'
    AND f.due_at > now() AND f.calling IS NULL AND f.state IN ('pending', 'in_doubt') AND f.code <> 'outcome_unknown'
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, actor, on_behalf_of, reason, request_id, fingerprint)
  SELECT a.order_no, a.seq, a.status, a.status, a.fence, @verb::text,
    @actor::text, sqlc.narg('on_behalf_of')::text, sqlc.narg('reason')::text, sqlc.narg('request_id')::text,
    sqlc.narg('fingerprint')::bytea FROM asked AS a
)
SELECT sqlc.embed(written_orders) FROM (SELECT w.*, e.* FROM asked AS w, pawl.no_effects AS e) AS written_orders;

-- name: OrderRedrive :many
-- Starts the next generation of a failed order. Its old end is cleared. No step of it may be in effect, nor an undo
-- open. A deadline that has passed is removed. The order needs a concurrency permit again. With another payment
-- method, the history keeps the replaced one.
WITH redriven AS (
  UPDATE pawl.orders AS o SET
    status = 'pending', generation = o.generation + 1, seq = o.seq + 1, take_overs = 0,
    outcome = NULL, ended_as = NULL, finished_at = NULL, failure_step = NULL, failure_code = NULL, failure_detail = NULL,
    hold = NULL, hold_reason = NULL, stop_requested = NULL, retries = NULL, retry_window_started_at = NULL, in_doubt_since = NULL,
    action = NULL, permit_at = NULL, reserved_until = NULL,
    complete_by = CASE WHEN o.complete_by > now() THEN o.complete_by END,
    policy = sqlc.narg('policy')::integer, route = sqlc.narg('route')::text, payment_method = coalesce(sqlc.narg('payment_method')::text, o.payment_method),
    fence = o.fence + CASE WHEN @claims::boolean THEN 1 ELSE 0 END,
    owner = CASE WHEN @claims::boolean THEN @owner::uuid END,
    due_at = CASE WHEN @claims::boolean THEN clock_timestamp() + make_interval(secs => @lease_seconds::float8) ELSE now() END
  WHERE o.order_no = @order_no AND o.seq = @seq AND o.status = 'failed' AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
    AND NOT EXISTS (SELECT 1 FROM pawl.charges AS c WHERE c.order_no = o.order_no AND c.refunded_at IS NULL)
    AND NOT EXISTS (SELECT 1 FROM pawl.reservations AS r WHERE r.order_no = o.order_no AND r.released_at IS NULL)
    AND NOT EXISTS (SELECT 1 FROM pawl.late_undos AS u WHERE u.order_no = o.order_no AND u.finished_at IS NULL)
  RETURNING o.*
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, actor, on_behalf_of, reason,
    request_id, fingerprint, payment_method)
  SELECT d.order_no, d.seq, 'failed', d.status, d.fence, @verb::text, @actor::text, sqlc.narg('on_behalf_of')::text, sqlc.narg('reason')::text,
    sqlc.narg('request_id')::text, sqlc.narg('fingerprint')::bytea, sqlc.narg('replaced_payment_method')::text FROM redriven AS d
)
SELECT sqlc.embed(written_orders) FROM (SELECT w.*, e.* FROM redriven AS w, pawl.no_effects AS e) AS written_orders;

-- name: OrderSettle :many
-- Records what a person says about a step, or about its undo. It is stored like a provider's answer, and the driver
-- applies it. If there is an unused answer already, nothing is written.
WITH target AS MATERIALIZED (
  SELECT o.order_no, o.generation FROM pawl.orders AS o
  WHERE o.order_no = @order_no AND o.seq = @seq AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  FOR NO KEY UPDATE
), stored AS (
  INSERT INTO pawl.step_answers AS w (order_no, generation, step, operation, source, outcome, code, detail, reference)
  SELECT t.order_no, t.generation, @step::text, @operation::text, 'operator', @outcome::text, nullif(@code::text, ''), nullif(@detail::text, ''),
    nullif(@ref::text, '')
  FROM target AS t
  ON CONFLICT (order_no, generation, step, operation) DO UPDATE SET
    answered_at = now(), consumed_at = NULL, source = excluded.source, outcome = excluded.outcome, code = excluded.code,
    detail = excluded.detail, reference = excluded.reference, data = NULL
    WHERE w.consumed_at IS NOT NULL
  RETURNING w.order_no
), settled AS (
  UPDATE pawl.orders AS o SET
    seq = o.seq + 1, hold = sqlc.narg('hold')::text, hold_reason = CASE WHEN sqlc.narg('hold')::text IS NOT NULL THEN o.hold_reason END,
    fence = o.fence + CASE WHEN @next::text = 'claimed' THEN 1 ELSE 0 END,
    owner = CASE WHEN @next::text = 'claimed' THEN @owner::uuid END,
    take_overs = 0,
    due_at = CASE @next::text WHEN 'claimed' THEN clock_timestamp() + make_interval(secs => @lease_seconds::float8)
      WHEN 'due' THEN now() WHEN 'same' THEN o.due_at END
  WHERE o.order_no IN (SELECT s.order_no FROM stored AS s) AND o.seq = @seq
  RETURNING o.*
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, actor, on_behalf_of, reason, request_id, fingerprint)
  SELECT s.order_no, s.seq, s.status, s.status, s.fence, @verb::text,
    @actor::text, sqlc.narg('on_behalf_of')::text, sqlc.narg('reason')::text, sqlc.narg('request_id')::text,
    sqlc.narg('fingerprint')::bytea FROM settled AS s
)
SELECT sqlc.embed(written_orders) FROM (SELECT w.*, e.* FROM settled AS w, pawl.no_effects AS e) AS written_orders;

-- name: OrderFacts :many
-- Returns facts about orders that their rows lack: whether a step is in effect or being undone, whether the order was
-- retried, whether a step of its generation was ever called for, and whether an answer waits for it.
SELECT k.order_no::bigint AS order_no,
  (EXISTS (SELECT 1 FROM pawl.charges AS c WHERE c.order_no = k.order_no AND c.refunded_at IS NULL)
    OR EXISTS (SELECT 1 FROM pawl.reservations AS r WHERE r.order_no = k.order_no AND r.released_at IS NULL)
    OR EXISTS (SELECT 1 FROM pawl.late_undos AS u WHERE u.order_no = k.order_no AND u.finished_at IS NULL))::boolean AS standing,
  EXISTS (SELECT 1 FROM pawl.transitions AS t WHERE t.order_no = k.order_no AND t.verb = 'retry') AS retried,
  EXISTS (SELECT 1 FROM pawl.step_calls AS t WHERE t.order_no = k.order_no AND t.generation = k.generation AND t.step = k.step
    AND t.operation = 'do') AS called,
  EXISTS (SELECT 1 FROM pawl.step_answers AS w WHERE w.order_no = k.order_no AND w.generation = k.generation AND w.step = k.step
    AND w.operation = k.operation AND w.consumed_at IS NULL) AS answered
FROM ROWS FROM (unnest((SELECT @order_nos::bigint[])), unnest((SELECT @generations::integer[])),
  unnest((SELECT @steps::text[])), unnest((SELECT @operations::text[]))) AS k(order_no, generation, step, operation);
