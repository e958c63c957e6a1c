-- name: TransitionsOf :many
SELECT t.* FROM pawl.transitions AS t
WHERE t.order_no = @order_no AND t.seq > @after AND t.seq < @before
  AND (NOT @durable::boolean OR (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL) -- as OrdersByID
ORDER BY t.seq LIMIT @most;

-- name: TransitionsOfNewest :many
-- The end of a history, newest first.
SELECT t.* FROM pawl.transitions AS t
WHERE t.order_no = @order_no AND t.seq > @after AND t.seq < @before
ORDER BY t.seq DESC LIMIT @most;

-- name: TransitionsByRequest :many
-- Returns the fingerprint of the request of this actor with this id for each of the orders that it was applied to. A
-- refund is identified by its id alone, for all actors, because providers know it by that. Durable, as OrdersByID, if the
-- caller is told that it was done. The history of the orders is read only if the id is known: that of a preview is new.
SELECT DISTINCT ON (t.order_no) t.order_no, t.fingerprint FROM pawl.transitions AS t
WHERE EXISTS (SELECT FROM pawl.transitions AS known WHERE known.request_id = @request_id::text)
  AND t.order_no = ANY((SELECT @order_nos::bigint[])::bigint[]) AND t.request_id = @request_id::text
  AND (t.actor = @actor::text OR @verb::text IN ('refund', 'capture', 'void') AND t.verb IN ('refund', 'capture', 'void'))
  AND (NOT @durable::boolean OR (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL)
ORDER BY t.order_no, t.seq;

-- name: OrdersOfRequest :many
-- Returns the orders to which a request of this actor was applied.
SELECT DISTINCT o.order_no, o.order_id FROM pawl.transitions AS t JOIN pawl.orders AS o ON o.order_no = t.order_no
WHERE t.request_id = @request_id::text AND t.actor = @actor::text AND t.verb = @verb::text
ORDER BY o.order_no DESC LIMIT @most;

-- name: RequestPage :many
-- Returns the orders to which requests with an id were applied, by number, with the last verb of each, and what the
-- state of the request follows from. All rows of the id are read first, by their index; the primary key would lead
-- through all orders.
WITH found AS MATERIALIZED (
  SELECT t.order_no, t.seq, t.verb, t.actor, t.on_behalf_of, t.reason, t.at FROM pawl.transitions AS t
  WHERE t.request_id = @request_id::text
), page AS (
  SELECT DISTINCT ON (f.order_no) f.* FROM found AS f WHERE f.order_no > @after::bigint
  ORDER BY f.order_no, f.seq DESC LIMIT @most
)
SELECT p.order_no, coalesce(p.verb, '')::text AS verb, coalesce(p.actor, '')::text AS actor,
  coalesce(p.on_behalf_of, '')::text AS on_behalf_of, coalesce(p.reason, '')::text AS reason, p.at,
  o.status, o.hold, coalesce(r.state::text, '')::text AS refund
FROM page AS p JOIN pawl.orders AS o ON o.order_no = p.order_no
LEFT JOIN pawl.charge_operations AS r ON p.verb = r.kind AND r.order_no = p.order_no AND r.request_id = @request_id::text
ORDER BY p.order_no;

-- name: RequestTotals :many
-- Counts the orders of RequestPage, up to a number, by what the state of the request follows from. The amount is that of
-- the refund, if one was requested.
WITH found AS MATERIALIZED (
  SELECT DISTINCT ON (t.order_no) t.order_no, t.verb FROM pawl.transitions AS t
  WHERE t.request_id = @request_id::text ORDER BY t.order_no, t.seq DESC LIMIT @most
)
SELECT coalesce(f.verb, '')::text AS verb, o.status, o.hold, coalesce(r.state::text, '')::text AS refund, o.currency,
  count(*) AS orders, sum(coalesce(r.amount, o.amount))::pawl.money_amount AS amount
FROM found AS f JOIN pawl.orders AS o ON o.order_no = f.order_no
LEFT JOIN pawl.charge_operations AS r ON f.verb = r.kind AND r.order_no = f.order_no AND r.request_id = @request_id::text
GROUP BY 1, 2, 3, 4, 5;

-- name: BulkRefusalsKeep :exec
-- Stores what a bulk request was refused, by order id, and removes what is older than a month. A repeated request
-- replaces what it was refused before.
WITH old AS (
  DELETE FROM pawl.bulk_refusals AS b WHERE b.ctid = ANY(ARRAY(
    SELECT c.ctid FROM pawl.bulk_refusals AS c WHERE c.at < now() - interval '30 days' AND c.request_id <> @request_id::text
    FOR UPDATE SKIP LOCKED))
)
INSERT INTO pawl.bulk_refusals AS b (request_id, verb, actor, reason, refused)
SELECT @request_id::text, @verb::text, @actor::text, sqlc.narg('reason')::text, jsonb_object_agg(r.order_id, jsonb_build_object('code', r.code, 'detail', r.detail))
FROM ROWS FROM (unnest(@order_ids::text[]), unnest(@codes::text[]), unnest(@details::text[])) AS r(order_id, code, detail)
ON CONFLICT (request_id) DO UPDATE SET at = now(), verb = excluded.verb, actor = excluded.actor, reason = excluded.reason,
  refused = b.refused || excluded.refused;

-- name: BulkRefusals :many
-- Returns what bulk requests with an id were refused, by order id, without the orders to which one of them was applied.
-- Without an amount, there is no such order.
SELECT b.at, b.verb, b.actor, coalesce(b.reason, '')::text AS reason, r.key::text AS order_id,
  coalesce(r.value->>'code', '')::text AS code, coalesce(r.value->>'detail', '')::text AS detail,
  coalesce(p.amount::text, '')::text AS amount, coalesce(p.currency, '')::text AS currency
FROM pawl.bulk_refusals AS b CROSS JOIN LATERAL jsonb_each(b.refused - ARRAY(
  SELECT o.order_id::text FROM pawl.transitions AS t JOIN pawl.orders AS o ON o.order_no = t.order_no
  WHERE t.request_id = @request_id::text)) AS r
LEFT JOIN pawl.orders AS p ON p.order_id = r.key
WHERE b.request_id = @request_id::text
ORDER BY r.key COLLATE "C" LIMIT @most;

-- name: PaymentMethodOf :one
-- Returns the payment method of an earlier generation: the one that the next change replaced, or else that in the
-- row of the order. The nth redrive or fallback began generation n.
SELECT coalesce((
    SELECT r.payment_method FROM (
      SELECT t.payment_method, row_number() OVER (ORDER BY t.seq) AS generation FROM pawl.transitions AS t
      WHERE t.order_no = @order_no AND (t.from_status = 'failed' AND t.to_status = 'pending' OR t.verb = 'fallback')
    ) AS r
    WHERE r.generation > @generation::integer AND r.payment_method IS NOT NULL ORDER BY r.generation LIMIT 1
  ), o.payment_method, '')::text AS payment_method
FROM pawl.orders AS o WHERE o.order_no = @order_no;
