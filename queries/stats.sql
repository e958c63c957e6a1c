-- Counts and ages for metrics. They stop at so many rows: whoever asks comes every few seconds.

-- name: OrdersHeldStats :many
-- How many orders wait, by what for; how long the longest wait has lasted, of as many of the oldest orders; and how old
-- the oldest order is. A wait began with the order's last row in the history. 0: none waits.
SELECT h.hold::text AS hold,
  (SELECT count(*) FROM (SELECT 1 FROM pawl.orders AS o WHERE o.hold = h.hold ORDER BY o.order_no LIMIT @most) AS counted) AS orders,
  (SELECT coalesce(max(extract(epoch FROM now() - since)), 0)::float8 FROM (
    SELECT (SELECT t.at FROM pawl.transitions AS t WHERE t.order_no = o.order_no AND t.seq = o.seq) AS since
    FROM pawl.orders AS o WHERE o.hold = h.hold ORDER BY o.order_no LIMIT @oldest) AS held) AS longest,
  coalesce((SELECT extract(epoch FROM now() - o.created_at) FROM pawl.orders AS o WHERE o.hold = h.hold ORDER BY o.order_no LIMIT 1), 0)::float8 AS oldest
FROM unnest(ARRAY['retry', 'callback', 'scheduled', 'queued', 'approval', 'paused', 'attention']) AS h(hold);

-- name: OrderAge :one
-- How old an order is; 0: there is none.
SELECT coalesce((SELECT extract(epoch FROM now() - o.created_at) FROM pawl.orders AS o WHERE o.order_no = @order_no), 0)::float8 AS seconds;

-- name: LateUndosCount :one
-- How many effects that were reported too late are not undone yet.
SELECT count(*) AS open FROM (SELECT 1 FROM pawl.late_undos AS u WHERE u.finished_at IS NULL LIMIT @most) AS counted;

-- name: RefundsOpen :one
-- How many refunds that were asked for are neither done nor failed, and how old the oldest of them is that its provider has
-- not accepted; 0: there is none. One that is accepted may take a bank days.
SELECT count(*) AS open, coalesce(max(extract(epoch FROM now() - counted.created_at)) FILTER (WHERE counted.state <> 'accepted'), 0)::float8 AS oldest
FROM (SELECT f.created_at, f.state FROM pawl.refunds AS f WHERE f.due_at IS NOT NULL AND f.state <> 'done' LIMIT @most) AS counted;
