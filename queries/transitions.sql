-- name: TransitionsOf :many
SELECT sqlc.embed(t) FROM transitions AS t
WHERE t.order_no = @order_no AND t.seq > @after ORDER BY t.seq LIMIT @most;

-- name: TransitionByRequest :one
-- What a request with this id did to the order, if it was seen before.
SELECT t.order_no, t.seq, t.verb FROM transitions AS t
WHERE t.order_no = @order_no AND t.request_id = @request_id::text ORDER BY t.seq LIMIT 1;
