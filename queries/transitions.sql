-- name: TransitionsOf :many
SELECT t.* FROM pawl.transitions AS t
WHERE t.order_no = @order_no AND t.seq > @after
  AND (NOT @durable::boolean OR (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL) -- as OrdersByID
ORDER BY t.seq LIMIT @most;

-- name: TransitionByRequest :one
-- What a request with this id did to the order, if it was seen before. Durable, as OrdersByID: its caller is told that
-- it was done. The generation is the one that the order was at then.
SELECT t.order_no, t.seq, t.verb, (SELECT count(*) FROM pawl.transitions AS r
    WHERE r.order_no = t.order_no AND r.seq <= t.seq AND r.from_status = 'failed' AND r.to_status = 'pending')::integer AS generation
FROM pawl.transitions AS t
WHERE t.order_no = @order_no AND t.request_id = @request_id::text
  AND (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL
ORDER BY t.seq LIMIT 1;

-- name: PaymentMethodOf :one
-- The payment method of an earlier generation: that which the next change replaced, or else that of the order. The nth
-- restart of an order began its generation n.
SELECT coalesce((
    SELECT r.payment_method FROM (
      SELECT t.payment_method, row_number() OVER (ORDER BY t.seq) AS generation FROM pawl.transitions AS t
      WHERE t.order_no = @order_no AND t.from_status = 'failed' AND t.to_status = 'pending'
    ) AS r
    WHERE r.generation > @generation::integer AND r.payment_method IS NOT NULL ORDER BY r.generation LIMIT 1
  ), o.payment_method, '')::text AS payment_method
FROM pawl.orders AS o WHERE o.order_no = @order_no;
