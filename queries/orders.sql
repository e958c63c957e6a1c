-- name: OrdersAdmit :many
-- Inserts the orders that do not exist yet, already leased to this process and on
-- their way: the first move and its history row are the same statement. Rows go in
-- by order_id: two replicas that admit the same orders in other orders deadlock
-- otherwise. What is not returned existed, or came to exist meanwhile: read it. Somebody
-- who inserts one of them and does not commit is waited for half a second.
WITH incoming AS (
  SELECT x.order_id, x.amount, x.currency, x.item, x.quantity, x.metadata
  FROM ROWS FROM (unnest(@order_ids::text[]), unnest(@amounts::text[]), unnest(@currencies::text[]),
                  unnest(@items::text[]), unnest(@quantities::integer[]), unnest(@metadata::text[]))
    AS x(order_id, amount, currency, item, quantity, metadata)
), admitted AS (
  INSERT INTO orders (order_id, status, fence, owner, due_at, amount, currency, item, quantity, metadata)
  SELECT i.order_id, 'charging', 1, @owner::uuid, clock_timestamp() + make_interval(secs => @lease_seconds::float8),
    i.amount::numeric, i.currency, i.item, i.quantity, nullif(i.metadata, '')::jsonb
  FROM incoming AS i WHERE (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  ORDER BY i.order_id COLLATE "C"
  ON CONFLICT (order_id) DO NOTHING
  RETURNING orders.order_no, orders.order_id, orders.created_at
), history AS (
  INSERT INTO transitions (order_no, seq, from_status, to_status, fence)
  SELECT a.order_no, 1, 'pending', 'charging', 1 FROM admitted AS a
)
SELECT a.order_no, a.order_id, a.created_at FROM admitted AS a;

-- name: OrdersByID :many
-- Orders as they are, with what stands and what was undone of their generation.
SELECT sqlc.embed(o), c.created_at AS charged_at, c.refunded_at, r.created_at AS reserved_at, r.released_at
FROM orders AS o
LEFT JOIN charges AS c ON c.order_no = o.order_no AND c.generation = o.generation
LEFT JOIN reservations AS r ON r.order_no = o.order_no AND r.generation = o.generation
WHERE o.order_id = ANY((SELECT @order_ids::text[])::text[]);

-- name: OrdersByNo :many
-- The same by number.
SELECT sqlc.embed(o), c.created_at AS charged_at, c.refunded_at, r.created_at AS reserved_at, r.released_at
FROM orders AS o
LEFT JOIN charges AS c ON c.order_no = o.order_no AND c.generation = o.generation
LEFT JOIN reservations AS r ON r.order_no = o.order_no AND r.generation = o.generation
WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[]);

-- name: OrdersWatched :many
-- What somebody who waits for another replica needs to know.
SELECT o.order_no, o.owner,
  (o.hold IS NOT NULL OR o.ended_as IS NOT NULL)::boolean AS ended,
  coalesce(o.due_at <= now(), false)::boolean AS due
FROM orders AS o WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[]);
