-- Counts for metrics. They stop at so many rows: whoever asks comes every few seconds.

-- name: OrdersHeldCounts :many
-- How many orders wait, by what they wait for.
SELECT h.hold::text AS hold,
  (SELECT count(*) FROM (SELECT 1 FROM orders AS o WHERE o.hold = h.hold ORDER BY o.order_no LIMIT @most) AS counted) AS orders
FROM unnest(ARRAY['retry', 'callback', 'scheduled', 'queued', 'approval', 'paused', 'attention']) AS h(hold);

-- name: LateUndosCount :one
-- How many effects that were reported too late are not undone yet.
SELECT count(*) AS open FROM (SELECT 1 FROM late_undos AS u WHERE u.finished_at IS NULL LIMIT @most) AS counted;

-- name: RefundsCount :one
-- Refunds that were asked for, and are neither done nor failed.
SELECT count(*) AS open FROM (SELECT 1 FROM refunds AS f WHERE f.due_at IS NOT NULL AND f.state <> 'done' LIMIT @most) AS counted;
