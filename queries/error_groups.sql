-- Problems that many orders share.

-- name: ErrorGroups :many
-- Groups the newest failed orders, and the newest orders that wait for a person or are retried, by status, hold and
-- cause: step and code of the failure, or the hold reason up to the colon; and the newest orders whose last refund, capture or
-- void has failed, by its code. Orders that are retried at a step, and at a
-- route of the charge, are one group, whose code is the most frequent one: the reason of their hold changes with each
-- try and with the circuit breaker. Those whose step is being tried now have no hold, and are among them.
-- first_at and last_at are times of failures. For a hold, they are when the first and the last one began of those that the
-- 50 oldest and the 50 newest orders have now: any of them may have been retried by a person, and held again. Those that
-- are retried have first_at from when their tries began. The example is the order at last_at; of those that are retried, the
-- newest that is not being tried. A group has a row for each currency.
--
-- BETWEEN instead of =: with =, the planner may walk the primary key instead of the index.
WITH looked AS MATERIALIZED (
  (SELECT f.order_no, f.status::text AS status, NULL AS hold, false AS trying, NULL AS route, f.failure_step::text AS step,
     coalesce(f.failure_code, '') AS code, f.finished_at AS at, f.seq, f.currency, f.amount
   FROM pawl.orders AS f
   WHERE f.ended_as IN ('failed', 'canceled') AND f.ended_as BETWEEN 'failed' AND 'failed'
   ORDER BY f.ended_as DESC, f.order_no DESC LIMIT @most)
  UNION ALL
  (SELECT h.order_no, h.status, h.hold, false, CASE WHEN h.status IN ('charging', 'refunding') THEN h.route END, NULL,
     split_part(coalesce(h.hold_reason, ''), ':', 1) || CASE WHEN starts_with(h.hold_reason, 'non_retryable:')
       THEN ':' || split_part(h.hold_reason, ':', 2) ELSE '' END, CASE WHEN h.hold = 'retry' THEN h.retry_window_started_at END, h.seq, h.currency, h.amount
   FROM unnest(ARRAY['attention', 'retry']) AS k(hold), LATERAL (
     SELECT w.order_no, w.status::text AS status, w.hold::text AS hold, w.hold_reason, w.route, w.retry_window_started_at, w.seq, w.currency, w.amount FROM pawl.orders AS w
     WHERE w.hold BETWEEN k.hold AND k.hold ORDER BY w.hold DESC, w.order_no DESC LIMIT @most) AS h)
  UNION ALL
  (SELECT d.order_no, d.status, 'retry', true, CASE WHEN d.status IN ('charging', 'refunding') THEN d.route END, NULL, '', d.retry_window_started_at, d.seq, d.currency, d.amount
   FROM (SELECT u.order_no, u.status::text AS status, u.retries, u.route, u.retry_window_started_at, u.seq, u.currency, u.amount FROM pawl.orders AS u
     WHERE u.due_at > (SELECT '-infinity'::timestamptz) AND u.due_at < (SELECT 'infinity'::timestamptz) AND u.hold IS NULL
     ORDER BY u.due_at LIMIT @most) AS d
   WHERE d.retries IS NOT NULL)
  UNION ALL
  (SELECT q.order_no, 'completed', NULL, false, NULL, q.kind::text, coalesce(q.code, ''), q.finished_at, NULL, q.currency, q.amount
   FROM pawl.charge_operations AS q WHERE q.state = 'failed' AND q.request_id IS NOT NULL AND NOT EXISTS (
     SELECT 1 FROM pawl.charge_operations AS n WHERE n.order_no = q.order_no AND n.kind = q.kind AND n.number > q.number)
   ORDER BY q.order_no DESC LIMIT @most)
), grouped AS (
  SELECT l.status, l.hold, l.route, l.step, l.currency, count(*) AS orders, count(*) FILTER (WHERE l.trying) AS trying, sum(l.amount) AS amount,
    coalesce(mode() WITHIN GROUP (ORDER BY l.code) FILTER (WHERE l.code NOT IN ('', 'breaker_open', 'queue_full')), max(l.code)) AS code,
    (array_agg(l.order_no ORDER BY l.order_no))[:50] || (array_agg(l.order_no ORDER BY l.order_no DESC))[:50] AS ends,
    (array_agg(l.seq ORDER BY l.order_no))[:50] || (array_agg(l.seq ORDER BY l.order_no DESC))[:50] AS seqs,
    coalesce(max(l.order_no) FILTER (WHERE NOT l.trying), max(l.order_no)) AS newest,
    (array_agg(l.order_no ORDER BY l.at DESC) FILTER (WHERE l.hold IS NULL))[1] AS last, min(l.at) AS first_at, max(l.at) FILTER (WHERE l.hold IS NULL) AS last_at
  FROM looked AS l GROUP BY l.status, l.hold, l.route, l.step, CASE WHEN l.hold = 'retry' THEN '' ELSE l.code END, l.currency
  ORDER BY newest DESC LIMIT @groups
)
SELECT g.status::text AS status, coalesce(g.hold, '')::text AS hold, coalesce(g.route, '')::text AS route, coalesce(g.step, '')::text AS step,
  g.code::text AS code, g.orders, g.trying, g.currency::text AS currency, g.amount::text AS amount,
  coalesce(least(g.first_at, h.first), now())::timestamptz AS first_at, coalesce(g.last_at, h.last, now())::timestamptz AS last_at,
  n.order_id AS example, coalesce(n.failure_detail, n.hold_reason, '')::text AS detail
FROM grouped AS g CROSS JOIN LATERAL (
  SELECT min(b.at) AS first, max(b.at) AS last, (array_agg(b.order_no ORDER BY b.at DESC NULLS LAST))[1] AS order_no FROM (
    SELECT g.ends[e.n] AS order_no, (SELECT t.at FROM pawl.transitions AS t WHERE t.order_no = g.ends[e.n] AND t.seq = g.seqs[e.n]) AS at
    FROM generate_subscripts(g.ends, 1) AS e(n) WHERE g.hold IS NOT NULL) AS b) AS h
  JOIN pawl.orders AS n ON n.order_no = coalesce(g.last, CASE g.hold WHEN 'attention' THEN h.order_no END, g.newest)
ORDER BY last_at DESC, g.newest DESC;
