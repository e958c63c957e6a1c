-- Lists, newest first: order_no falls along the page, and is the cursor. One query for
-- each way to find the rows, because no index holds the status of an order.

-- name: OrdersList :many
-- All orders, or the completed ones (nearly all are): along the primary key.
SELECT sqlc.embed(o), c.created_at AS charged_at, c.refunded_at, r.created_at AS reserved_at, r.released_at
FROM orders AS o
LEFT JOIN charges AS c ON c.order_no = o.order_no AND c.generation = o.generation
LEFT JOIN reservations AS r ON r.order_no = o.order_no AND r.generation = o.generation
WHERE o.order_no < @before AND o.created_at >= @created_from AND o.created_at < @created_to
  AND (sqlc.narg('status')::text IS NULL OR o.status = sqlc.narg('status')::text)
ORDER BY o.order_no DESC LIMIT @most;

-- name: OrdersListEnded :many
-- Failed or canceled orders: by the index of what the final move wrote.
SELECT sqlc.embed(o), c.created_at AS charged_at, c.refunded_at, r.created_at AS reserved_at, r.released_at
FROM orders AS o
LEFT JOIN charges AS c ON c.order_no = o.order_no AND c.generation = o.generation
LEFT JOIN reservations AS r ON r.order_no = o.order_no AND r.generation = o.generation
WHERE o.ended_as IN ('failed', 'canceled') AND o.ended_as = @status
  AND o.order_no < @before AND o.created_at >= @created_from AND o.created_at < @created_to
ORDER BY o.order_no DESC LIMIT @most;

-- name: OrdersListUnfinished :many
-- Orders in a state that does not last: each is due some time or held.
WITH unfinished AS MATERIALIZED (
  SELECT u.order_no FROM orders AS u
  WHERE (u.due_at IS NOT NULL OR u.hold IS NOT NULL) AND u.status = @status
    AND u.order_no < @before AND u.created_at >= @created_from AND u.created_at < @created_to
  ORDER BY u.order_no DESC LIMIT @most
)
SELECT sqlc.embed(o), c.created_at AS charged_at, c.refunded_at, r.created_at AS reserved_at, r.released_at
FROM orders AS o
LEFT JOIN charges AS c ON c.order_no = o.order_no AND c.generation = o.generation
LEFT JOIN reservations AS r ON r.order_no = o.order_no AND r.generation = o.generation
WHERE o.order_no = ANY(ARRAY(SELECT u.order_no FROM unfinished AS u))
ORDER BY o.order_no DESC;

-- name: OrdersListItem :many
-- Orders for an item: those that reserved it, those that ended without, those on
-- their way. Three short index scans, each cut at a page.
WITH reserved AS MATERIALIZED (
  SELECT u.order_no FROM reservations AS v JOIN orders AS u ON u.order_no = v.order_no
  WHERE v.item = @item AND v.order_no < @before
    AND u.created_at >= @created_from AND u.created_at < @created_to
    AND (sqlc.narg('status')::text IS NULL OR u.status = sqlc.narg('status')::text)
  ORDER BY v.order_no DESC LIMIT @most
), ended AS MATERIALIZED (
  SELECT u.order_no FROM orders AS u
  WHERE u.ended_as IN ('failed', 'canceled') AND u.item = @item AND u.order_no < @before
    AND u.created_at >= @created_from AND u.created_at < @created_to
    AND (sqlc.narg('status')::text IS NULL OR u.status = sqlc.narg('status')::text)
  ORDER BY u.order_no DESC LIMIT @most
), unfinished AS MATERIALIZED (
  SELECT u.order_no FROM orders AS u
  WHERE (u.due_at IS NOT NULL OR u.hold IS NOT NULL) AND u.item = @item AND u.order_no < @before
    AND u.created_at >= @created_from AND u.created_at < @created_to
    AND (sqlc.narg('status')::text IS NULL OR u.status = sqlc.narg('status')::text)
  ORDER BY u.order_no DESC LIMIT @most
)
SELECT sqlc.embed(o), c.created_at AS charged_at, c.refunded_at, r.created_at AS reserved_at, r.released_at
FROM orders AS o
LEFT JOIN charges AS c ON c.order_no = o.order_no AND c.generation = o.generation
LEFT JOIN reservations AS r ON r.order_no = o.order_no AND r.generation = o.generation
WHERE o.order_no = ANY(ARRAY(
  SELECT x.order_no FROM reserved AS x UNION SELECT y.order_no FROM ended AS y UNION SELECT z.order_no FROM unfinished AS z))
ORDER BY o.order_no DESC LIMIT @most;
