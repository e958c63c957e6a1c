-- Lists, newest first: order_no falls along the page, and is the cursor. One query for
-- each way to find the rows, because no index holds the status of an order. A page is
-- found first, by one index, and then read by number: the cost is that of a page. What
-- looks roundabout is there to keep it so: (item, order_no) is compared as a row, and
-- ordered by, because the planner would walk along the primary key otherwise.
--
-- Numbers rise with the time of creation, so a window of time is a range of numbers
-- (OrderNoAt). The times are compared all the same, but in a CASE: no index serves it,
-- and the planner expects it to be true often enough to stop at a page.

-- name: OrderNoAt :one
-- Finds, by halving, where created_at passes a time: at the first number after last_before
-- stands an order that was created before it, at first_after one that was not, or none.
WITH RECURSIVE halves AS (
  SELECT 0::bigint AS last_before, coalesce(max(o.order_no), 0) + 1 AS first_after FROM orders AS o
  UNION ALL
  SELECT CASE WHEN m.before THEN m.middle ELSE m.last_before END, CASE WHEN m.before THEN m.first_after ELSE m.middle END
  FROM (
    SELECT h.last_before, h.first_after, (h.last_before + h.first_after) / 2 AS middle, coalesce((
      SELECT o.created_at FROM orders AS o
      WHERE o.order_no >= (h.last_before + h.first_after) / 2 ORDER BY o.order_no LIMIT 1) < @at, false) AS before
    FROM halves AS h WHERE h.first_after - h.last_before > 1
    OFFSET 0
  ) AS m
)
SELECT max(h.last_before)::bigint AS last_before, min(h.first_after)::bigint AS first_after FROM halves AS h;

-- name: OrdersList :many
-- All orders, or the completed ones (nearly all are): along the primary key.
WITH page AS MATERIALIZED (
  SELECT o.order_no FROM orders AS o
  WHERE o.order_no > @after::bigint AND o.order_no < @before::bigint
    AND CASE WHEN o.created_at >= @created_from::timestamptz AND o.created_at < @created_to::timestamptz
      AND (sqlc.narg('status')::text IS NULL OR o.status = sqlc.narg('status')::text) THEN true END
  ORDER BY o.order_no DESC LIMIT @most
)
SELECT o.* FROM full_orders AS o
WHERE o.order_no = ANY(ARRAY(SELECT p.order_no FROM page AS p))
ORDER BY o.order_no DESC;

-- name: OrdersListEnded :many
-- Failed or canceled orders: by the index of what the final move wrote.
WITH page AS MATERIALIZED (
  SELECT o.order_no FROM orders AS o
  WHERE o.ended_as IN ('failed', 'canceled')
    AND (o.ended_as, o.order_no) > (@status::text, @after::bigint) AND (o.ended_as, o.order_no) < (@status::text, @before::bigint)
    AND CASE WHEN o.created_at >= @created_from::timestamptz AND o.created_at < @created_to::timestamptz THEN true END
  ORDER BY o.ended_as DESC, o.order_no DESC LIMIT @most
)
SELECT o.* FROM full_orders AS o
WHERE o.order_no = ANY(ARRAY(SELECT p.order_no FROM page AS p))
ORDER BY o.order_no DESC;

-- name: OrdersListUnfinished :many
-- Orders in a state that does not last, of one item or of all: each is due some time or
-- held. They are few, and all of them are looked at.
WITH unfinished AS MATERIALIZED (
  SELECT o.order_no, o.status, o.item, o.created_at FROM orders AS o WHERE o.due_at IS NOT NULL OR o.hold IS NOT NULL
), page AS (
  SELECT u.order_no FROM unfinished AS u
  WHERE u.status = @status::text AND (sqlc.narg('item')::text IS NULL OR u.item = sqlc.narg('item')::text)
    AND u.order_no > @after::bigint AND u.order_no < @before::bigint AND u.created_at >= @created_from::timestamptz AND u.created_at < @created_to::timestamptz
  ORDER BY u.order_no DESC LIMIT @most
)
SELECT o.* FROM full_orders AS o
WHERE o.order_no = ANY(ARRAY(SELECT p.order_no FROM page AS p))
ORDER BY o.order_no DESC;

-- name: OrdersListItemEnded :many
-- Failed or canceled orders for an item.
WITH page AS MATERIALIZED (
  SELECT o.order_no FROM orders AS o
  WHERE o.ended_as IN ('failed', 'canceled') AND o.ended_as = @status::text
    AND (o.item, o.order_no) > (@item::text, @after::bigint) AND (o.item, o.order_no) < (@item::text, @before::bigint)
    AND CASE WHEN o.created_at >= @created_from::timestamptz AND o.created_at < @created_to::timestamptz THEN true END
  ORDER BY o.item DESC, o.order_no DESC LIMIT @most
)
SELECT o.* FROM full_orders AS o
WHERE o.order_no = ANY(ARRAY(SELECT p.order_no FROM page AS p))
ORDER BY o.order_no DESC;

-- name: OrdersListItem :many
-- All orders for an item, or the completed ones: those that reserved it, and unless only
-- completed ones are asked for, those that ended without and those on their way.
WITH reserved AS MATERIALIZED (
  SELECT v.order_no FROM reservations AS v
  WHERE (v.item, v.order_no) > (@item::text, @after::bigint) AND (v.item, v.order_no) < (@item::text, @before::bigint)
    AND v.generation = (
      SELECT u.generation FROM orders AS u
      WHERE u.order_no = v.order_no AND u.created_at >= @created_from::timestamptz AND u.created_at < @created_to::timestamptz
        AND (NOT @completed::boolean OR u.status = 'completed'))
  ORDER BY v.item DESC, v.order_no DESC LIMIT @most
), failed AS MATERIALIZED (
  SELECT u.order_no FROM orders AS u
  WHERE u.ended_as = 'failed' AND NOT @completed::boolean
    AND (u.item, u.order_no) > (@item::text, @after::bigint) AND (u.item, u.order_no) < (@item::text, @before::bigint)
    AND CASE WHEN u.created_at >= @created_from::timestamptz AND u.created_at < @created_to::timestamptz THEN true END
  ORDER BY u.item DESC, u.order_no DESC LIMIT @most
), canceled AS MATERIALIZED (
  SELECT u.order_no FROM orders AS u
  WHERE u.ended_as = 'canceled' AND NOT @completed::boolean
    AND (u.item, u.order_no) > (@item::text, @after::bigint) AND (u.item, u.order_no) < (@item::text, @before::bigint)
    AND CASE WHEN u.created_at >= @created_from::timestamptz AND u.created_at < @created_to::timestamptz THEN true END
  ORDER BY u.item DESC, u.order_no DESC LIMIT @most
), unfinished AS MATERIALIZED (
  SELECT u.order_no, u.item, u.created_at FROM orders AS u WHERE (u.due_at IS NOT NULL OR u.hold IS NOT NULL) AND NOT @completed::boolean
), page AS (
  SELECT x.order_no FROM reserved AS x UNION SELECT f.order_no FROM failed AS f UNION SELECT y.order_no FROM canceled AS y
  UNION SELECT z.order_no FROM unfinished AS z
  WHERE z.item = @item::text AND z.order_no > @after::bigint AND z.order_no < @before::bigint
    AND z.created_at >= @created_from::timestamptz AND z.created_at < @created_to::timestamptz
  ORDER BY order_no DESC LIMIT @most
)
SELECT o.* FROM full_orders AS o
WHERE o.order_no = ANY(ARRAY(SELECT p.order_no FROM page AS p))
ORDER BY o.order_no DESC;

-- name: OrdersListHeld :many
-- Orders held for one thing, also those whose reason begins with some words.
WITH page AS MATERIALIZED (
  SELECT o.order_no FROM orders AS o
  WHERE o.hold IS NOT NULL AND (o.hold, o.order_no) > (@hold::text, @after::bigint) AND (o.hold, o.order_no) < (@hold::text, @before::bigint)
    AND CASE WHEN o.created_at >= @created_from::timestamptz AND o.created_at < @created_to::timestamptz
      AND (@reason::text = '' OR starts_with(o.hold_reason, @reason::text))
      AND (sqlc.narg('status')::text IS NULL OR o.status = sqlc.narg('status')::text)
      AND (sqlc.narg('item')::text IS NULL OR o.item = sqlc.narg('item')::text) THEN true END
  ORDER BY o.hold DESC, o.order_no DESC LIMIT @most
)
SELECT o.* FROM full_orders AS o
WHERE o.order_no = ANY(ARRAY(SELECT p.order_no FROM page AS p))
ORDER BY o.order_no DESC;
