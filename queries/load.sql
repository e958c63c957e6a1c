-- name: LoadStored :one
-- Counts those of the given orders that are stored.
SELECT count(*) AS orders FROM pawl.orders AS o WHERE o.order_id = ANY((SELECT @order_ids::text[])::text[]);
