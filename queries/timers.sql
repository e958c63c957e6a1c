-- Deadlines. These statements move no order: they ask it to stop, as a person would, and its driver or next owner
-- does so.

-- name: TimersDue :one
-- Reports which kinds of timers are due: one cheap look, because a claim of each kind would mostly find nothing. It
-- includes orders past their deadline that are being stopped already. ORDER BY and LIMIT make the planner use the
-- indexes.
SELECT
  ((SELECT least(o.complete_by, o.reserved_until) FROM pawl.orders AS o
    WHERE (o.complete_by IS NOT NULL OR o.reserved_until IS NOT NULL) AND o.ended_as IS NULL AND least(o.complete_by, o.reserved_until) <= now()
    ORDER BY least(o.complete_by, o.reserved_until) LIMIT 1) IS NOT NULL)::boolean AS deadlines,
  ((SELECT u.due_at FROM pawl.late_undos AS u
    WHERE u.finished_at IS NULL AND u.due_at <= now() ORDER BY u.due_at LIMIT 1) IS NOT NULL)::boolean AS late_undos,
  ((SELECT f.due_at FROM pawl.charge_operations AS f WHERE f.due_at <= now() ORDER BY f.due_at LIMIT 1) IS NOT NULL)::boolean AS charge_operations,
  ((SELECT c.capture_due_at FROM pawl.charges AS c WHERE c.capture_due_at <= now() ORDER BY c.capture_due_at LIMIT 1) IS NOT NULL)::boolean AS authorizations;

-- name: OrdersExpired :many
-- Stops orders past their deadline, and reservations that waited too long for their confirmation. A confirmation in
-- doubt is left alone: its answer decides. Held orders become due, so that a replica claims them.
WITH expired AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no IN (
      SELECT d.order_no FROM pawl.orders AS d
      WHERE (d.complete_by IS NOT NULL OR d.reserved_until IS NOT NULL) AND d.ended_as IS NULL
        AND least(d.complete_by, d.reserved_until) <= now()
        AND (d.complete_by <= now() OR d.status = 'confirming')
        AND (d.stop_requested IS NULL OR d.stop_requested = 'pause') AND d.status NOT IN ('releasing', 'refunding')
        AND NOT (d.status = 'confirming' AND d.in_doubt_since IS NOT NULL)
      ORDER BY least(d.complete_by, d.reserved_until) LIMIT @most)
    AND o.ended_as IS NULL AND (o.stop_requested IS NULL OR o.stop_requested = 'pause')
    AND o.status NOT IN ('releasing', 'refunding') AND NOT (o.status = 'confirming' AND o.in_doubt_since IS NOT NULL)
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), stopped AS (
  UPDATE pawl.orders AS o SET
    stop_requested = 'deadline', seq = o.seq + 1,
    failure_code = CASE WHEN o.complete_by <= now() THEN 'deadline_exceeded' ELSE 'reservation_expired' END,
    due_at = CASE WHEN o.hold IS NULL THEN o.due_at ELSE now() END,
    take_overs = CASE WHEN o.hold IS NULL THEN o.take_overs ELSE 0 END,
    hold = NULL, hold_reason = NULL
  WHERE o.order_no = ANY(ARRAY(SELECT e.order_no FROM expired AS e))
  RETURNING o.order_no, o.fence, o.seq, o.status, o.failure_code
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, reason)
SELECT s.order_no, s.seq, s.status, s.status, s.fence, 'deadline', s.failure_code FROM stopped AS s
RETURNING order_no;

-- name: ApprovalTimedOut :many
-- Approves or rejects an order that was not approved in time, as its policy says.
WITH moved AS (
  UPDATE pawl.orders AS o SET
    seq = o.seq + 1,
    approved_at = CASE WHEN @approves::boolean THEN now() END,
    stop_requested = CASE WHEN NOT @approves::boolean THEN 'deadline' END,
    failure_code = CASE WHEN NOT @approves::boolean THEN 'approval_timed_out' END
  WHERE o.order_no = @order_no AND o.status = @expected AND o.fence = @fence AND o.seq = @seq
    AND (SELECT set_config('lock_timeout', '500ms', true)) <> '' AND o.stop_requested IS NULL AND o.approved_at IS NULL
  RETURNING o.order_no, o.fence, o.seq, o.status
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, reason)
SELECT m.order_no, m.seq, m.status, m.status, m.fence, CASE WHEN @approves::boolean THEN 'approve' ELSE 'reject' END, 'approval timed out'
FROM moved AS m
RETURNING order_no, seq, to_status, at;
