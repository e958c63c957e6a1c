-- Problems that many orders share.

-- name: ErrorGroups :many
-- Groups the newest failed orders, and the newest orders that wait for a person or are retried, by status, hold and
-- cause: step and code of the failure, or the hold reason up to the colon. Orders that are retried at a step, and at a
-- route of the charge, are one group, whose code is the most frequent one: the reason of their hold changes with each
-- try and with the circuit breaker. Those whose step is being tried now have no hold, and are among them.
-- first_at and last_at are times of failures. For a hold, they are when one of the 100 oldest orders or the newest one was
-- first held there, and when the hold of the newest began: an order that is retried is held again and again, and any of
-- them may be the first that is held for a person. A group has a row for each currency.
--
-- BETWEEN instead of =: with =, the planner may walk the primary key instead of the index.
WITH looked AS MATERIALIZED (
  (SELECT f.order_no, f.status::text AS status, NULL AS hold, false AS trying, NULL AS route, f.failure_step::text AS step,
     coalesce(f.failure_code, '') AS code, f.finished_at AS at, f.currency, f.amount
   FROM pawl.orders AS f
   WHERE f.ended_as IN ('failed', 'canceled') AND f.ended_as BETWEEN 'failed' AND 'failed'
   ORDER BY f.ended_as DESC, f.order_no DESC LIMIT @most)
  UNION ALL
  (SELECT h.order_no, h.status, h.hold, false, CASE WHEN h.status IN ('charging', 'refunding') THEN h.route END, NULL,
     split_part(coalesce(h.hold_reason, ''), ':', 1) || CASE WHEN starts_with(h.hold_reason, 'non_retryable:')
       THEN ':' || split_part(h.hold_reason, ':', 2) ELSE '' END, NULL, h.currency, h.amount
   FROM unnest(ARRAY['attention', 'retry']) AS k(hold), LATERAL (
     SELECT w.order_no, w.status::text AS status, w.hold::text AS hold, w.hold_reason, w.route, w.currency, w.amount FROM pawl.orders AS w
     WHERE w.hold BETWEEN k.hold AND k.hold ORDER BY w.hold DESC, w.order_no DESC LIMIT @most) AS h)
  UNION ALL
  (SELECT d.order_no, d.status, 'retry', true, CASE WHEN d.status IN ('charging', 'refunding') THEN d.route END, NULL, '', NULL, d.currency, d.amount
   FROM (SELECT u.order_no, u.status::text AS status, u.retries, u.route, u.currency, u.amount FROM pawl.orders AS u
     WHERE u.due_at > (SELECT '-infinity'::timestamptz) AND u.due_at < (SELECT 'infinity'::timestamptz) AND u.hold IS NULL
     ORDER BY u.due_at LIMIT @most) AS d
   WHERE d.retries IS NOT NULL)
), grouped AS (
  SELECT l.status, l.hold, l.route, l.step, l.currency, count(*) AS orders, count(*) FILTER (WHERE l.trying) AS trying, sum(l.amount) AS amount,
    coalesce(mode() WITHIN GROUP (ORDER BY l.code) FILTER (WHERE l.code NOT IN ('', 'breaker_open', 'queue_full')), max(l.code)) AS code,
    (array_agg(l.order_no ORDER BY l.order_no))[:100] AS oldest, coalesce(max(l.order_no) FILTER (WHERE NOT l.trying), max(l.order_no)) AS newest, min(l.at) AS first_at, max(l.at) AS last_at
  FROM looked AS l GROUP BY l.status, l.hold, l.route, l.step, CASE WHEN l.hold = 'retry' THEN '' ELSE l.code END, l.currency
  ORDER BY newest DESC LIMIT @groups
)
SELECT g.status::text AS status, coalesce(g.hold, '')::text AS hold, coalesce(g.route, '')::text AS route, coalesce(g.step, '')::text AS step,
  g.code::text AS code, g.orders, g.trying, g.currency::text AS currency, g.amount::text AS amount,
  coalesce(g.first_at, (SELECT min(t.at) FROM pawl.transitions AS t
    WHERE t.order_no = ANY (g.oldest || g.newest) AND t.to_status = g.status AND t.actor IS NULL
      AND t.verb IN (g.hold, CASE g.hold WHEN 'attention' THEN 'hold' END) -- a claim and the ledger write hold
    OR t.order_no = n.order_no AND t.seq = n.seq), now())::timestamptz AS first_at,
  coalesce(g.last_at, (SELECT t.at FROM pawl.transitions AS t WHERE t.order_no = n.order_no AND t.seq = n.seq), now())::timestamptz AS last_at,
  n.order_id AS example, coalesce(n.failure_detail, n.hold_reason, '')::text AS detail
FROM grouped AS g JOIN pawl.orders AS n ON n.order_no = g.newest
ORDER BY last_at DESC, g.newest DESC;
