-- Answers that arrive without a call.
--
-- A condition on set_config is always true. It sets lock_timeout for this statement only.

-- name: AnswerTarget :many
-- Returns the order that a callback is about, and the last call for that step in that generation. No row: there was
-- none.
SELECT sqlc.embed(o), t.started_at AS called_at, t.policy AS call_policy, coalesce(t.route, '')::text AS call_route
FROM pawl.full_orders AS o CROSS JOIN LATERAL (
  SELECT c.started_at, c.policy, c.route FROM pawl.step_calls AS c
  WHERE c.order_no = o.order_no AND c.generation = @generation AND c.step = @step AND c.operation = 'do'
  ORDER BY c.call DESC LIMIT 1) AS t
WHERE o.order_no = @order_no;

-- name: AnswerStore :many
-- Stores an answer and, if the order waits at that step for a callback, a retry or a person, claims it for this
-- process. It raises seq even if the order does not wait yet: a driver that is about to hold it then loses its
-- compare-and-set, reads the row, and finds the answer. Whether the order waits is read in the CTE that locks its
-- row; the rest of the statement sees the row as it was before the lock. The first answer is kept, unless it was
-- not_done. Waits for the row for at most 500 ms.
WITH target AS MATERIALIZED (
  SELECT o.order_no, coalesce(o.generation = @generation AND o.status = @waiting_in
    AND o.hold IN ('callback', 'retry', 'attention'), false) AS wakes
  FROM pawl.orders AS o
  WHERE o.order_no = @order_no AND (SELECT set_config('lock_timeout', '500ms', true)) <> '' AND o.calls > 0
  FOR NO KEY UPDATE
), stored AS (
  INSERT INTO pawl.step_answers AS w (order_no, generation, step, source, outcome, code, detail, reference, data)
  SELECT t.order_no, @generation, @step, @source, @outcome, nullif(@code::text, ''), nullif(@detail::text, ''),
    nullif(@ref::text, ''), nullif(@data::text, '')::jsonb
  FROM target AS t
  ON CONFLICT (order_no, generation, step, operation) DO UPDATE SET
    answered_at = now(), consumed_at = NULL, source = excluded.source, outcome = excluded.outcome, code = excluded.code,
    detail = excluded.detail, reference = excluded.reference, data = excluded.data
    WHERE w.outcome = 'not_done' AND (w.consumed_at IS NOT NULL OR excluded.outcome <> 'not_done')
  RETURNING w.order_no
), touched AS (
  UPDATE pawl.orders AS o SET
    seq = o.seq + (o.ended_as IS NULL)::integer, fence = o.fence + t.wakes::integer,
    owner = CASE WHEN t.wakes THEN @owner::uuid ELSE o.owner END,
    due_at = CASE WHEN t.wakes THEN clock_timestamp() + make_interval(secs => @lease_seconds::float8) ELSE o.due_at END,
    hold = CASE WHEN NOT t.wakes THEN o.hold END, hold_reason = CASE WHEN NOT t.wakes THEN o.hold_reason END
  FROM target AS t
  WHERE o.order_no = t.order_no AND EXISTS (SELECT 1 FROM stored AS s)
  RETURNING o.*
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb)
  SELECT k.order_no, k.seq, k.status, k.status, k.fence, @source FROM touched AS k WHERE k.ended_as IS NULL
)
SELECT sqlc.embed(written_orders) FROM (SELECT w.*, e.* FROM touched AS w, pawl.no_effects AS e) AS written_orders;

-- name: AnswerOf :one
-- Returns the stored answer for this step of this generation. Durable, as OrdersByID: a caller that is told that an
-- answer was accepted does not send it again.
SELECT w.source, w.outcome, coalesce(w.code, '') AS code, coalesce(w.reference, '') AS reference, w.consumed_at
FROM pawl.step_answers AS w WHERE w.order_no = @order_no AND w.generation = @generation AND w.step = @step AND w.operation = 'do'
  AND (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL;

-- name: LateUndoOpen :many
-- Opens the undo of an effect that was reported although the books say that it is absent or undone. No row: the
-- effect is in the books, or may still get there, or its undo is open already and has its reference. While the charge
-- is being refunded, no reservation is left. An undo that is opened again is tried, and reported as an event, like a
-- new one.
INSERT INTO pawl.late_undos AS u (order_no, generation, step, reason, reference)
SELECT o.order_no, @generation, @step, @reason, nullif(@ref::text, '') FROM pawl.orders AS o
WHERE o.order_no = @order_no
  AND (o.generation > @generation OR o.ended_as IN ('failed', 'canceled') OR @step = 'reserve' AND o.status = 'refunding')
  AND NOT EXISTS (SELECT 1 FROM pawl.charges AS c WHERE @step = 'charge' AND c.order_no = o.order_no
    AND c.generation = @generation AND c.refunded_at IS NULL)
  AND NOT EXISTS (SELECT 1 FROM pawl.reservations AS r WHERE @step = 'reserve' AND r.order_no = o.order_no
    AND r.generation = @generation AND r.released_at IS NULL)
ON CONFLICT (order_no, generation, step) DO UPDATE SET finished_at = NULL, due_at = now(), reason = excluded.reason,
    reference = coalesce(u.reference, excluded.reference), claims = 0, code = NULL, detail = NULL
  WHERE u.finished_at IS NOT NULL OR u.reference IS NULL AND excluded.reference IS NOT NULL
RETURNING order_no;

-- name: LateUndosClaim :many
-- Claims due late undos. The lease is short: it only lasts until the call is committed, which extends it beyond the
-- call. claims distinguishes one claim from the next. undo_policy and undo_route are those of the call that did the
-- step, not of an earlier undo. sent_unerased: an undo was sent before the customer was erased. Not EXISTS, as in
-- CallsPreflight.
WITH due AS MATERIALIZED (
  SELECT u.order_no, u.generation, u.step FROM pawl.late_undos AS u
  WHERE u.finished_at IS NULL AND u.due_at <= now() ORDER BY u.due_at LIMIT @most FOR UPDATE SKIP LOCKED
), claimed AS (
  UPDATE pawl.late_undos AS u SET due_at = now() + make_interval(secs => @lease_seconds::float8), claims = u.claims + 1
  FROM due AS d WHERE u.order_no = d.order_no AND u.generation = d.generation AND u.step = d.step
  RETURNING u.order_no, u.generation, u.step, u.claims, u.code
)
SELECT c.generation AS undo_generation, c.step, c.claims, coalesce(c.code, '') AS code, sqlc.embed(o),
  d.policy AS undo_policy, coalesce(d.route, '')::text AS undo_route,
  coalesce((SELECT true FROM pawl.step_calls AS v JOIN pawl.transitions AS e ON e.order_no = v.order_no AND e.verb = 'erase' AND e.at > v.started_at
    WHERE v.order_no = c.order_no AND v.generation = c.generation AND v.step = c.step AND v.operation = 'undo' LIMIT 1), false)::boolean AS sent_unerased
FROM claimed AS c JOIN pawl.full_orders AS o ON o.order_no = c.order_no
LEFT JOIN LATERAL (SELECT t.policy, t.route FROM pawl.step_calls AS t
  WHERE t.order_no = c.order_no AND t.generation = c.generation AND t.step = c.step AND t.operation = 'do'
  ORDER BY t.call DESC LIMIT 1) AS d ON true;

-- name: LateUndoBegin :many
-- Records the call of a late undo before it is made. Its number is below zero, because the driver of the order
-- numbers its own calls from 1. No row: another process has claimed the undo, it is closed, or seq has changed since
-- the order was read. The reference to undo was read after that, so with an unchanged seq the driver can't have begun
-- an undo of the same key with another reference. Raising seq makes a driver that is about to do so read again.
-- 23505: another side call of the order, which the snapshot does not show, has the number.
WITH claimed AS MATERIALIZED (
  SELECT u.order_no FROM pawl.late_undos AS u
  WHERE u.order_no = @order_no AND u.generation = @generation AND u.step = @step AND u.claims = @claims AND u.finished_at IS NULL
    AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  FOR UPDATE
), touched AS (
  UPDATE pawl.orders AS o SET seq = o.seq + (o.ended_as IS NULL)::integer
  WHERE o.order_no = @order_no AND o.seq = @seq AND EXISTS (SELECT 1 FROM claimed AS c)
  RETURNING o.order_no, o.fence, o.seq, o.status, o.ended_as
), extended AS (
  UPDATE pawl.late_undos AS u SET due_at = clock_timestamp() + make_interval(secs => @lease_seconds::float8)
  FROM touched AS k WHERE u.order_no = k.order_no AND u.order_no = @order_no AND u.generation = @generation AND u.step = @step
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb)
  SELECT k.order_no, k.seq, k.status, k.status, k.fence, 'late_undo' FROM touched AS k WHERE k.ended_as IS NULL
)
INSERT INTO pawl.step_calls (order_no, call, fence, generation, policy, step, operation, route, undo_reference)
SELECT k.order_no, coalesce((SELECT min(t.call) FROM pawl.step_calls AS t WHERE t.order_no = @order_no AND t.call < 0), 0) - 1,
  k.fence, @generation, sqlc.narg('policy')::integer, @step, 'undo', nullif(@route::text, ''), nullif(@undo_reference::text, '')
FROM touched AS k
RETURNING call, started_at;

-- name: LateUndoFinish :exec
-- Records the answer. It changes nothing else if the undo was closed, opened again or claimed by another process
-- meanwhile.
WITH answered AS (
  UPDATE pawl.step_calls AS t SET finished_at = now(), outcome = @outcome::text, code = nullif(@code::text, ''), detail = nullif(@detail::text, '')
  WHERE t.order_no = @order_no AND t.call = @call
)
UPDATE pawl.late_undos AS u SET
  finished_at = CASE WHEN @outcome::text = 'done' THEN now() END, due_at = now() + make_interval(secs => @delay::float8),
  code = nullif(@code::text, ''), detail = nullif(@detail::text, '')
WHERE u.order_no = @order_no AND u.generation = @generation AND u.step = @step AND u.claims = @claims AND u.finished_at IS NULL;

-- name: LateUndoSettle :many
-- Closes a late undo that a person has done by hand. It is written to the history of the order, which may have ended.
-- No row: the undo is not open, or seq has changed since the order was read.
WITH settled AS MATERIALIZED (
  SELECT u.order_no FROM pawl.late_undos AS u
  WHERE u.order_no = @order_no AND u.generation = @generation AND u.step = @step AND u.finished_at IS NULL
    AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  FOR UPDATE
), touched AS (
  UPDATE pawl.orders AS o SET seq = o.seq + 1
  WHERE o.order_no = @order_no AND o.seq = @seq AND EXISTS (SELECT 1 FROM settled AS s)
  RETURNING o.*
), closed AS (
  UPDATE pawl.late_undos AS u SET finished_at = now(), code = NULL, detail = 'undone by hand'
  FROM touched AS k WHERE u.order_no = k.order_no AND u.order_no = @order_no AND u.generation = @generation AND u.step = @step
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, actor, on_behalf_of, reason, request_id, fingerprint)
  SELECT k.order_no, k.seq, k.status, k.status, k.fence, @verb::text,
    @actor::text, sqlc.narg('on_behalf_of')::text, sqlc.narg('reason')::text, sqlc.narg('request_id')::text,
    sqlc.narg('fingerprint')::bytea FROM touched AS k
)
SELECT sqlc.embed(written_orders) FROM (SELECT w.*, e.* FROM touched AS w, pawl.no_effects AS e) AS written_orders;

-- name: LateUndoIsOpen :one
SELECT EXISTS (SELECT 1 FROM pawl.late_undos AS u WHERE u.order_no = @order_no AND u.generation = @generation AND u.step = @step
  AND u.finished_at IS NULL)::boolean AS open;
