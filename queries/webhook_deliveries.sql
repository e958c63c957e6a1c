-- Deliveries, as people see them.

-- name: WebhookDeliveriesList :many
-- Lists the deliveries of an endpoint, newest first, optionally of one state or subject. Each filter has its own
-- index, and only the branch for the given filters runs. States are compared in a CASE: the planner expects it to be
-- true often enough to stop after a page.
WITH page AS MATERIALIZED (
  (SELECT d.delivery_no FROM pawl.webhook_deliveries AS d
   WHERE @subject::text = '' AND @state::text IN ('', 'delivered') AND d.endpoint_no = @endpoint_no AND d.delivery_no < @before
     AND CASE WHEN @state::text IN ('', d.state) THEN true END
   ORDER BY d.delivery_no DESC LIMIT @most)
  UNION ALL
  (SELECT d.delivery_no FROM pawl.webhook_deliveries AS d
   WHERE @subject::text = '' AND @state::text IN ('pending', 'failing') AND d.endpoint_no = @endpoint_no AND d.delivery_no < @before
     AND d.finished_at IS NULL AND d.state = 'pending' AND d.attempts >= (@state::text = 'failing')::integer
   ORDER BY d.delivery_no DESC LIMIT @most)
  UNION ALL
  (SELECT d.delivery_no FROM pawl.webhook_deliveries AS d
   WHERE @subject::text = '' AND @state::text = 'exhausted' AND d.endpoint_no = @endpoint_no AND d.delivery_no < @before AND d.state = 'exhausted'
   ORDER BY d.delivery_no DESC LIMIT @most)
  UNION ALL
  (SELECT d.delivery_no FROM pawl.webhook_deliveries AS d
   WHERE @subject::text = '' AND @state::text = 'skipped' AND d.endpoint_no = @endpoint_no AND d.delivery_no < @before AND d.state = 'skipped'
   ORDER BY d.delivery_no DESC LIMIT @most)
  UNION ALL
  (SELECT d.delivery_no FROM pawl.webhook_deliveries AS d
   WHERE @subject::text <> '' AND d.endpoint_no = @endpoint_no AND d.subject = @subject::text AND d.delivery_no < @before
     AND CASE WHEN @state::text IN ('', d.state) OR @state::text = 'failing' AND d.state = 'pending' AND d.attempts > 0 THEN true END
   ORDER BY d.delivery_no DESC LIMIT @most)
)
SELECT d.endpoint_no, d.delivery_no, d.event_id, d.type, d.subject, d.state, d.attempts, d.created_at, d.due_at, d.attempted_at, d.finished_at,
  coalesce(d.log -> -1 ->> 'status', '0')::integer AS status, coalesce(d.log -> -1 ->> 'error', '')::text AS error,
  coalesce((SELECT o.order_id FROM pawl.orders AS o
    WHERE o.order_no = CASE WHEN d.subject ^@ 'order ' THEN substr(d.subject, 7)::bigint END), '')::text AS order_id
FROM pawl.webhook_deliveries AS d
WHERE d.endpoint_no = @endpoint_no AND d.delivery_no = ANY(ARRAY(SELECT p.delivery_no FROM page AS p))
ORDER BY d.delivery_no DESC;

-- name: WebhookDeliveriesOfSubject :many
-- Lists the deliveries of the newest events of an order to all endpoints, and for each endpoint the first unfinished
-- delivery, which the others wait for.
WITH page AS MATERIALIZED (
  SELECT n.endpoint_no, n.delivery_no FROM pawl.webhook_endpoints AS e CROSS JOIN LATERAL (
    SELECT d.endpoint_no, d.delivery_no, d.seq FROM pawl.webhook_deliveries AS d
    WHERE d.endpoint_no = e.endpoint_no AND d.subject = @subject::text ORDER BY d.delivery_no DESC LIMIT @most
  ) AS n
  WHERE e.state <> 'deleted' ORDER BY n.seq DESC, n.endpoint_no LIMIT @most
), waited_for AS MATERIALIZED (
  SELECT f.endpoint_no, f.delivery_no FROM pawl.webhook_endpoints AS e CROSS JOIN LATERAL (
    SELECT d.endpoint_no, d.delivery_no FROM pawl.webhook_deliveries AS d
    WHERE d.endpoint_no = e.endpoint_no AND d.subject = @subject::text AND d.finished_at IS NULL ORDER BY d.delivery_no LIMIT 1
  ) AS f
  WHERE e.state <> 'deleted'
)
SELECT d.endpoint_no, d.delivery_no, d.event_id, d.type, d.subject, d.state, d.attempts, d.created_at, d.due_at, d.attempted_at, d.finished_at,
  coalesce(d.log -> -1 ->> 'status', '0')::integer AS status, coalesce(d.log -> -1 ->> 'error', '')::text AS error, @order_id::text AS order_id
FROM (SELECT p.endpoint_no, p.delivery_no FROM page AS p UNION SELECT w.endpoint_no, w.delivery_no FROM waited_for AS w) AS s
JOIN pawl.webhook_deliveries AS d ON d.endpoint_no = s.endpoint_no AND d.delivery_no = s.delivery_no
ORDER BY d.seq DESC, d.endpoint_no, d.delivery_no DESC;

-- name: WebhookDeliveryShow :one
SELECT d.endpoint_no, d.delivery_no, d.event_id, d.type, d.subject, d.state, d.attempts, d.created_at, d.due_at, d.attempted_at, d.finished_at, d.log,
  coalesce((SELECT o.order_id FROM pawl.orders AS o
    WHERE o.order_no = CASE WHEN d.subject ^@ 'order ' THEN substr(d.subject, 7)::bigint END), '')::text AS order_id
FROM pawl.webhook_deliveries AS d JOIN pawl.webhook_endpoints AS e ON e.endpoint_no = d.endpoint_no
WHERE d.endpoint_no = @endpoint_no AND d.delivery_no = @delivery_no AND e.state <> 'deleted';
