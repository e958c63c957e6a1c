-- Problems that many orders share.

-- name: ErrorGroups :many
-- Groups the newest failed orders, and the newest orders that wait for a person or are retried, by status, hold and
-- cause: step and code of the failure, or the hold reason up to the colon. first_at and last_at are times of failures.
-- For a hold, they are when the oldest or the newest order was first held there, and when the hold of the newest began:
-- an order that is retried is held again and again. A group has a row for each currency. recent counts those that failed
-- within the last minute; of a hold, those that were created then, because all of them are held again and again.
--
-- BETWEEN instead of =: with =, the planner may walk the primary key instead of the index.
WITH looked AS MATERIALIZED (
  (SELECT f.order_no, f.status::text AS status, NULL AS hold, f.failure_step::text AS step, coalesce(f.failure_code, '') AS code, f.finished_at AS at,
     f.finished_at AS began, f.currency, f.amount
   FROM pawl.orders AS f
   WHERE f.ended_as IN ('failed', 'canceled') AND f.ended_as BETWEEN 'failed' AND 'failed'
   ORDER BY f.ended_as DESC, f.order_no DESC LIMIT @most)
  UNION ALL
  (SELECT h.order_no, h.status, h.hold, NULL,
     split_part(coalesce(h.hold_reason, ''), ':', 1) || CASE WHEN starts_with(h.hold_reason, 'non_retryable:')
       THEN ':' || split_part(h.hold_reason, ':', 2) ELSE '' END, NULL,
     h.created_at, h.currency, h.amount
   FROM unnest(ARRAY['attention', 'retry']) AS k(hold), LATERAL (
     SELECT w.order_no, w.status::text AS status, w.hold::text AS hold, w.hold_reason, w.created_at, w.currency, w.amount FROM pawl.orders AS w
     WHERE w.hold BETWEEN k.hold AND k.hold ORDER BY w.hold DESC, w.order_no DESC LIMIT @most) AS h)
), grouped AS (
  SELECT l.status, l.hold, l.step, l.code, l.currency, count(*) AS orders, sum(l.amount) AS amount,
    count(*) FILTER (WHERE l.began > now() - interval '1 minute') AS recent, min(l.order_no) AS oldest, max(l.order_no) AS newest,
    min(l.at) AS first_at, max(l.at) AS last_at
  FROM looked AS l GROUP BY l.status, l.hold, l.step, l.code, l.currency ORDER BY newest DESC LIMIT @groups
)
SELECT g.status::text AS status, coalesce(g.hold, '')::text AS hold, coalesce(g.step, '')::text AS step, g.code::text AS code, g.orders,
  g.currency::text AS currency, g.amount::text AS amount, g.recent,
  coalesce(g.first_at, (SELECT min(t.at) FROM pawl.transitions AS t
    WHERE t.order_no IN (g.oldest, g.newest) AND t.to_status = g.status AND t.actor IS NULL
      AND t.verb IN (g.hold, CASE g.hold WHEN 'attention' THEN 'hold' END) -- a claim and the ledger write hold
    OR t.order_no = n.order_no AND t.seq = n.seq), now())::timestamptz AS first_at,
  coalesce(g.last_at, (SELECT t.at FROM pawl.transitions AS t WHERE t.order_no = n.order_no AND t.seq = n.seq), now())::timestamptz AS last_at,
  n.order_id AS example, coalesce(n.failure_detail, n.hold_reason, '')::text AS detail
FROM grouped AS g JOIN pawl.orders AS n ON n.order_no = g.newest
ORDER BY last_at DESC, g.newest DESC;
