-- name: TransitionsOf :many
SELECT t.* FROM transitions AS t
WHERE t.order_no = @order_no AND t.seq > @after
  AND (NOT @durable::boolean OR (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL) -- as OrdersByID
ORDER BY t.seq LIMIT @most;

-- name: TransitionByRequest :one
-- What a request with this id did to the order, if it was seen before. Durable, as OrdersByID: its caller is told that
-- it was done.
SELECT t.order_no, t.seq, t.verb FROM transitions AS t
WHERE t.order_no = @order_no AND t.request_id = @request_id::text
  AND (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL
ORDER BY t.seq LIMIT 1;
