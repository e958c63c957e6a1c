-- name: DemoBooks :one
-- Returns totals of the demo's books, in one snapshot. It reads all rows; there are not many. What is refunded on request
-- is not kept.
SELECT o.completed, o.failed, c.charges, (c.charged - f.refunded)::text AS kept
FROM (SELECT count(*) FILTER (WHERE p.status = 'completed') AS completed, count(*) FILTER (WHERE p.status IN ('failed', 'canceled')) AS failed
   FROM pawl.orders AS p) AS o,
  (SELECT count(*) AS charges, coalesce(sum(a.amount::numeric) FILTER (WHERE a.currency = @currency), 0) AS charged FROM pawl.known_charges AS a
   WHERE a.refunded_at IS NULL) AS c,
  (SELECT coalesce(sum(e.amount::numeric), 0) AS refunded FROM pawl.charge_operations AS e
   WHERE e.number > 0 AND e.kind = 'refund' AND e.state = 'done' AND e.currency = @currency) AS f;

-- name: DemoOrders :one
-- Counts the orders, and the late charges that are not undone yet: their orders have ended.
SELECT count(*) AS orders, (SELECT count(*) FROM pawl.late_undos AS u WHERE u.finished_at IS NULL AND u.step = 'charge') AS late
FROM pawl.orders AS o;
