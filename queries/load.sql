-- name: LoadStored :one
-- How many of these orders there are.
SELECT count(*) AS orders FROM pawl.orders AS o WHERE o.order_id = ANY((SELECT @order_ids::text[])::text[]);
