-- Counts and ages for metrics. They have limits, because they run every few seconds.

-- name: OrdersHeldStats :many
-- Returns for each hold the number of orders; the longest wait, among a number of the oldest orders; and the age of
-- the oldest order. A wait began with the last history row of the order. 0: no order waits.
--
-- BETWEEN instead of =: with =, ordered by number, the planner may walk the primary key.
SELECT h.hold::text AS hold,
  (SELECT count(*) FROM (SELECT 1 FROM pawl.orders AS o WHERE o.hold BETWEEN h.hold AND h.hold
    ORDER BY o.hold, o.order_no LIMIT @most) AS counted) AS orders,
  (SELECT coalesce(max(extract(epoch FROM now() - since)), 0)::float8 FROM (
    SELECT (SELECT t.at FROM pawl.transitions AS t WHERE t.order_no = o.order_no AND t.seq = o.seq) AS since
    FROM pawl.orders AS o WHERE o.hold BETWEEN h.hold AND h.hold
    ORDER BY o.hold, o.order_no LIMIT @oldest) AS held) AS longest,
  coalesce((SELECT extract(epoch FROM now() - o.created_at) FROM pawl.orders AS o
    WHERE o.hold BETWEEN h.hold AND h.hold ORDER BY o.hold, o.order_no LIMIT 1), 0)::float8 AS oldest
FROM unnest(ARRAY['retry', 'callback', 'scheduled', 'queued', 'approval', 'paused', 'attention']) AS h(hold);

-- name: OpenWork :one
-- Returns the age of an order, or 0 if it does not exist; the number of open late undos; the number of authorizations
-- that are about to end, or should have ended, and of which something is neither captured nor voided; and the number of
-- charge operations that are neither done nor failed, with the age of the oldest one that its provider has not
-- accepted, or 0. A bank may take days for an accepted one.
SELECT
  coalesce((SELECT extract(epoch FROM now() - o.created_at) FROM pawl.orders AS o WHERE o.order_no = @order_no), 0)::float8 AS oldest_order,
  (SELECT count(*) FROM (SELECT 1 FROM pawl.late_undos AS u WHERE u.finished_at IS NULL LIMIT @most) AS late) AS late_undos,
  (SELECT count(*) FROM (SELECT 1 FROM pawl.charges AS c
    WHERE c.capture_by IS NOT NULL AND (c.capture_due_at IS NULL OR c.capture_due_at >= c.capture_by)
      AND c.amount > (SELECT coalesce(sum(p.amount + coalesce(p.voided, 0)), 0) FROM pawl.charge_operations AS p
        WHERE p.order_no = c.order_no AND p.generation = c.generation AND p.number > 0 AND p.kind <> 'refund' AND p.state <> 'failed')
    ORDER BY c.capture_by LIMIT @most) AS ending) AS authorizations,
  count(*) AS charge_operations,
  coalesce(max(extract(epoch FROM now() - open.created_at)) FILTER (WHERE open.state <> 'accepted'), 0)::float8 AS oldest_charge_operation
FROM (SELECT f.created_at, f.state FROM pawl.charge_operations AS f WHERE f.due_at IS NOT NULL AND f.state <> 'done' LIMIT @most) AS open;

-- name: OrdersUnfinished :many
-- Counts unfinished orders by state and hold, with the oldest of each: among the driven orders that are due first,
-- and the oldest of each hold, up to a limit each. Held ones are divided by currency, with their amount, and by the route of a charge;
-- those for a person also by reason, up to its colon. So are driven ones whose step is being tried again. tried_since: when the first of them with
-- an answer that counts as a retry was tried first; the year 1 if there is none. (The range is
-- hidden from the planner, which would otherwise sort all driven orders.)
WITH driven AS MATERIALIZED (
  SELECT d.order_no, d.status, d.hold, d.retries IS NOT NULL AS again, CASE WHEN d.retries IS NOT NULL AND d.status IN ('charging', 'refunding') THEN d.route END AS route,
    CASE WHEN d.retries IS NOT NULL THEN d.currency END AS currency, CASE WHEN d.retries IS NOT NULL THEN d.amount ELSE 0 END AS amount,
    CASE WHEN d.retries > 0 THEN d.retry_window_started_at END AS tried_since
  FROM pawl.orders AS d
  WHERE d.due_at > (SELECT '-infinity'::timestamptz) AND d.due_at < (SELECT 'infinity'::timestamptz) AND d.hold IS NULL
  ORDER BY d.due_at LIMIT @most::integer
), held AS MATERIALIZED (
  SELECT w.order_no, w.status, w.hold, w.reason, CASE WHEN w.status IN ('charging', 'refunding') THEN w.route END AS route, w.currency, w.amount, w.tried_since
  FROM unnest(ARRAY['retry', 'callback', 'scheduled', 'queued', 'approval', 'paused', 'attention']) AS k(hold), LATERAL (
    SELECT h.order_no, h.status, h.hold, CASE WHEN h.hold = 'attention' THEN split_part(h.hold_reason, ':', 1) END AS reason,
      h.route, h.currency, h.amount, CASE WHEN h.retries > 0 THEN h.retry_window_started_at END AS tried_since
    FROM pawl.orders AS h
    WHERE h.hold BETWEEN k.hold AND k.hold ORDER BY h.hold, h.order_no LIMIT @most::integer) AS w
), counted AS (
  SELECT u.status, u.hold, u.again, u.reason, u.route, u.currency, count(*) AS orders, sum(u.amount) AS amount, min(u.order_no) AS oldest, min(u.tried_since) AS tried_since
  FROM (SELECT a.order_no, a.status, a.hold, a.again, NULL AS reason, a.route, a.currency, a.amount, a.tried_since FROM driven AS a
    UNION ALL SELECT b.order_no, b.status, b.hold, false, b.reason, b.route, b.currency, b.amount, b.tried_since FROM held AS b) AS u
  GROUP BY u.status, u.hold, u.again, u.reason, u.route, u.currency
)
SELECT o.status, o.hold, c.again::boolean AS again, coalesce(c.reason, '')::text AS reason, coalesce(c.route, '')::text AS route,
  coalesce(c.currency, '')::text AS currency, c.orders, c.amount::text AS amount, o.order_id, o.created_at, coalesce(c.tried_since, '0001-01-01Z')::timestamptz AS tried_since,
  ((SELECT count(*) FROM driven) >= @most::integer)::boolean AS driven_cut
FROM counted AS c JOIN pawl.orders AS o ON o.order_no = c.oldest ORDER BY o.order_no;

-- name: OrdersEnded :one
-- Counts ended orders by outcome. Completed orders are in no index: they are counted among a number of the newest
-- orders. A caller that knows that there are many passes 0.
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
-- Lists the running services on this database, by the names of their connections.
SELECT a.application_name::text AS name, count(*) AS connections
FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND starts_with(a.application_name, @service::text)
GROUP BY a.application_name ORDER BY a.application_name LIMIT 100;

-- name: ReplicaReport :exec
INSERT INTO pawl.replica_reports AS r (owner, name, at, orders_per_second, steps, outages)
SELECT @owner, @name, now(), @orders_per_second, @steps, coalesce(sqlc.narg('outages')::jsonb, '[]') WHERE (SELECT set_config('synchronous_commit', 'off', true)) <> ''
ON CONFLICT (owner) DO UPDATE SET at = excluded.at, orders_per_second = excluded.orders_per_second, steps = excluded.steps,
  outages = coalesce(sqlc.narg('outages')::jsonb, r.outages);

-- name: ReplicaReportEnd :exec
-- Leaves only the outages in the report of a replica that ends, and removes those of replicas that ended long ago.
WITH old AS (DELETE FROM pawl.replica_reports AS r WHERE r.at < now() - interval '1 hour')
UPDATE pawl.replica_reports AS r SET name = '', orders_per_second = 0, steps = '[]' WHERE r.owner = @owner;

-- name: ReplicaReports :many
-- Returns the last reports. late: the last one is older than late_seconds; silent: many are missing. Those without a name are of replicas that have ended.
-- orders and until: how many of the driven orders that are due first, as many as most, belong to a late replica, and when the last of them is due.
SELECT r.owner, r.name, r.since, r.at, (r.at < now() - make_interval(secs => @late_seconds::float8))::boolean AS late,
  r.at < now() - interval '20 seconds' AS silent,
  r.orders_per_second, r.steps, r.outages, coalesce(d.orders, 0)::bigint AS orders, coalesce(d.until, r.at)::timestamptz AS until
FROM pawl.replica_reports AS r LEFT JOIN LATERAL (
  SELECT count(*) AS orders, max(f.due_at) AS until FROM (
    SELECT o.owner, o.due_at FROM pawl.orders AS o
    WHERE o.due_at > (SELECT '-infinity'::timestamptz) AND o.due_at < (SELECT 'infinity'::timestamptz) AND o.hold IS NULL
    ORDER BY o.due_at LIMIT @most::integer) AS f
  WHERE f.owner = r.owner) AS d ON r.name <> '' AND r.at < now() - make_interval(secs => @late_seconds::float8)
WHERE r.at > now() - interval '1 hour' ORDER BY r.at;

-- name: OrdersByOutcome :many
-- Counts orders by the number that each came with, and which of them completed, need a person, or ended otherwise.
SELECT n.of::integer AS of, count(*) AS waited, count(*) FILTER (WHERE o.status = 'completed') AS completed,
  count(*) FILTER (WHERE o.hold IN ('attention', 'approval')) AS held,
  count(*) FILTER (WHERE o.status = 'failed') AS failed, count(*) FILTER (WHERE o.status = 'canceled') AS canceled
FROM ROWS FROM (unnest(@order_nos::bigint[]), unnest(@ofs::integer[])) AS n(order_no, of) JOIN pawl.orders AS o ON o.order_no = n.order_no
GROUP BY n.of;
