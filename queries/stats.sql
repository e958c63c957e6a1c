-- Counts and ages for metrics. They stop at so many rows, because they run every few seconds.

-- name: OrdersHeldStats :many
-- How many orders wait, by what for; how long the longest wait has lasted, of as many of the oldest orders; and how old
-- the oldest order is. A wait began with the order's last row in the history. 0: none waits.
-- With an equal sign, and in the order of their numbers, the planner may look for the orders of a hold along the primary key.
SELECT h.hold::text AS hold,
  (SELECT count(*) FROM (SELECT 1 FROM pawl.orders AS o WHERE o.hold BETWEEN h.hold AND h.hold ORDER BY o.hold, o.order_no LIMIT @most) AS counted) AS orders,
  (SELECT coalesce(max(extract(epoch FROM now() - since)), 0)::float8 FROM (
    SELECT (SELECT t.at FROM pawl.transitions AS t WHERE t.order_no = o.order_no AND t.seq = o.seq) AS since
    FROM pawl.orders AS o WHERE o.hold BETWEEN h.hold AND h.hold
    ORDER BY o.hold, o.order_no LIMIT @oldest) AS held) AS longest,
  coalesce((SELECT extract(epoch FROM now() - o.created_at) FROM pawl.orders AS o
    WHERE o.hold BETWEEN h.hold AND h.hold ORDER BY o.hold, o.order_no LIMIT 1), 0)::float8 AS oldest
FROM unnest(ARRAY['retry', 'callback', 'scheduled', 'queued', 'approval', 'paused', 'attention']) AS h(hold);

-- name: OpenWork :one
-- The age of an order, 0 if it does not exist; how many effects that were reported too late are not undone yet; and how many
-- refunds are neither done nor failed, with the age of the oldest that its provider has not accepted, or 0. A bank may take
-- days for one that is accepted.
SELECT
  coalesce((SELECT extract(epoch FROM now() - o.created_at) FROM pawl.orders AS o WHERE o.order_no = @order_no), 0)::float8 AS oldest_order,
  (SELECT count(*) FROM (SELECT 1 FROM pawl.late_undos AS u WHERE u.finished_at IS NULL LIMIT @most) AS late) AS late_undos,
  count(*) AS refunds,
  coalesce(max(extract(epoch FROM now() - open.created_at)) FILTER (WHERE open.state <> 'accepted'), 0)::float8 AS oldest_refund
FROM (SELECT f.created_at, f.state FROM pawl.refunds AS f WHERE f.due_at IS NOT NULL AND f.state <> 'done' LIMIT @most) AS open;

-- name: OrdersUnfinished :many
-- How many unfinished orders there are in each state and hold, and the oldest of them by number: of as many as a replica drives,
-- those that are due first, and as many of each hold. (The planner sorts all that are due, unless it can't see how many that is.)
WITH driven AS MATERIALIZED (
  SELECT d.order_no, d.status, d.hold FROM pawl.orders AS d
  WHERE d.due_at > (SELECT '-infinity'::timestamptz) AND d.due_at < (SELECT 'infinity'::timestamptz) AND d.hold IS NULL
  ORDER BY d.due_at LIMIT @most
), held AS MATERIALIZED (
  SELECT w.order_no, w.status, w.hold
  FROM unnest(ARRAY['retry', 'callback', 'scheduled', 'queued', 'approval', 'paused', 'attention']) AS k(hold), LATERAL (
    SELECT h.order_no, h.status, h.hold FROM pawl.orders AS h
    WHERE h.hold BETWEEN k.hold AND k.hold ORDER BY h.hold, h.order_no LIMIT @most) AS w
), counted AS (
  SELECT u.status, u.hold, count(*) AS orders, min(u.order_no) AS oldest
  FROM (SELECT order_no, status, hold FROM driven UNION ALL SELECT order_no, status, hold FROM held) AS u GROUP BY u.status, u.hold
)
SELECT o.status, o.hold, c.orders, o.order_id, o.created_at, ((SELECT count(*) FROM driven) >= @most)::boolean AS driven_cut
FROM counted AS c JOIN pawl.orders AS o ON o.order_no = c.oldest ORDER BY o.order_no;

-- name: OrdersEnded :one
-- How many orders have ended, by how. Completed ones are in no index: they are counted among so many of the newest orders,
-- and a caller that knows there are many passes 0.
SELECT
  (SELECT count(*) FROM (
    SELECT 1 FROM pawl.orders AS f WHERE f.ended_as IN ('failed', 'canceled')
      AND f.ended_as BETWEEN 'failed' AND 'failed'
    ORDER BY f.ended_as, f.order_no LIMIT @most) AS failed) AS failed,
  (SELECT count(*) FROM (
    SELECT 1 FROM pawl.orders AS c WHERE c.ended_as IN ('failed', 'canceled')
      AND c.ended_as BETWEEN 'canceled' AND 'canceled'
    ORDER BY c.ended_as, c.order_no LIMIT @most) AS canceled) AS canceled,
  (SELECT count(*) FILTER (WHERE n.status = 'completed') FROM (
    SELECT o.status FROM pawl.orders AS o ORDER BY o.order_no DESC LIMIT @newest) AS n) AS completed;

-- name: ServerReplicas :many
-- The running services on this database, by the names of their connections.
SELECT a.application_name::text AS name, count(*) AS connections, min(a.backend_start)::timestamptz AS since
FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND starts_with(a.application_name, @service::text)
GROUP BY a.application_name ORDER BY a.application_name LIMIT 100;
