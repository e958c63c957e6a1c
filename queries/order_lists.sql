-- Lists, newest first: order_no falls along the page, and is the cursor. One query for
-- each way to find the rows, because no index holds the status of an order. A page is
-- found first, by one index, and then read by number: the cost is that of a page. What
-- looks roundabout is there to keep it so: (item, order_no) is compared as a row, and
-- ordered by, because the planner would walk along the primary key otherwise.
-- Statuses are those to show: all of them where nobody chose. What a condition on them alone
-- leaves out is not run.
--
-- Numbers rise with the time of creation, so a window of time is a range of numbers
-- (OrderNoAt). The times are compared all the same, but in a CASE: no index serves it,
-- and the planner expects it to be true often enough to stop at a page.
--
-- A page ends early where its orders would take more than some bytes: what many readers can
-- have the service hold in memory is bounded.

-- name: OrderNoAt :one
-- Finds, by halving, where created_at passes a time: at the first number after last_before
-- stands an order that was created before it, at first_after one that was not, or none.
WITH RECURSIVE halves AS (
  SELECT 0::bigint AS last_before, coalesce(max(o.order_no), 0) + 1 AS first_after FROM pawl.orders AS o
  UNION ALL
  SELECT CASE WHEN m.before THEN m.middle ELSE m.last_before END, CASE WHEN m.before THEN m.first_after ELSE m.middle END
  FROM (
    SELECT h.last_before, h.first_after, (h.last_before + h.first_after) / 2 AS middle, coalesce((
      SELECT o.created_at FROM pawl.orders AS o
      WHERE o.order_no >= (h.last_before + h.first_after) / 2 ORDER BY o.order_no LIMIT 1) < @at, false) AS before
    FROM halves AS h WHERE h.first_after - h.last_before > 1
    OFFSET 0
  ) AS m
)
SELECT max(h.last_before)::bigint AS last_before, min(h.first_after)::bigint AS first_after FROM halves AS h;

-- name: OrdersList :many
-- All orders, or those of some statuses with completed among them, as nearly all are: along
-- the primary key.
WITH page AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no > @after::bigint AND o.order_no < @before::bigint
    AND CASE WHEN o.created_at >= @created_from::timestamptz AND o.created_at < @created_to::timestamptz
      AND o.status = ANY(@statuses::text[]) THEN true END
  ORDER BY o.order_no DESC LIMIT @most
)
SELECT o.* FROM pawl.full_orders AS o
WHERE o.order_no = ANY(ARRAY(SELECT pawl.orders_within(ARRAY(SELECT p.order_no FROM page AS p), @bytes::bigint)))
ORDER BY o.order_no DESC;

-- name: OrdersListUncompleted :many
-- Orders of some statuses without completed: failed and canceled ones by the index of what
-- the final move wrote. Those in a state that does not last are due some time or held; they
-- are few, and all of them are looked at.
WITH failed AS MATERIALIZED (
  SELECT f.order_no FROM pawl.orders AS f
  WHERE f.ended_as = 'failed' AND 'failed' = ANY(@statuses::text[])
    AND (f.ended_as, f.order_no) > ('failed', @after::bigint) AND (f.ended_as, f.order_no) < ('failed', @before::bigint)
    AND CASE WHEN f.created_at >= @created_from::timestamptz AND f.created_at < @created_to::timestamptz THEN true END
  ORDER BY f.ended_as DESC, f.order_no DESC LIMIT @most
), canceled AS MATERIALIZED (
  SELECT c.order_no FROM pawl.orders AS c
  WHERE c.ended_as = 'canceled' AND 'canceled' = ANY(@statuses::text[])
    AND (c.ended_as, c.order_no) > ('canceled', @after::bigint) AND (c.ended_as, c.order_no) < ('canceled', @before::bigint)
    AND CASE WHEN c.created_at >= @created_from::timestamptz AND c.created_at < @created_to::timestamptz THEN true END
  ORDER BY c.ended_as DESC, c.order_no DESC LIMIT @most
), unfinished AS MATERIALIZED (
  SELECT u.order_no, u.status, u.created_at FROM pawl.orders AS u
  WHERE (u.due_at IS NOT NULL OR u.hold IS NOT NULL)
    AND NOT @statuses::text[] <@ ARRAY['completed', 'failed', 'canceled']
), page AS (
  SELECT x.order_no FROM failed AS x UNION SELECT y.order_no FROM canceled AS y
  UNION SELECT z.order_no FROM unfinished AS z
  WHERE z.status = ANY(@statuses::text[]) AND z.order_no > @after::bigint AND z.order_no < @before::bigint
    AND z.created_at >= @created_from::timestamptz AND z.created_at < @created_to::timestamptz
  ORDER BY order_no DESC LIMIT @most
)
SELECT o.* FROM pawl.full_orders AS o
WHERE o.order_no = ANY(ARRAY(SELECT pawl.orders_within(ARRAY(SELECT p.order_no FROM page AS p), @bytes::bigint)))
ORDER BY o.order_no DESC;

-- name: OrdersListItem :many
-- Orders for an item: completed ones are among those that reserved it. The others ended
-- without it, or are on their way.
WITH reserved AS MATERIALIZED (
  SELECT v.order_no FROM pawl.reservations AS v
  WHERE 'completed' = ANY(@statuses::text[])
    AND (v.item, v.order_no) > (@item::text, @after::bigint) AND (v.item, v.order_no) < (@item::text, @before::bigint)
    AND v.generation = (
      SELECT u.generation FROM pawl.orders AS u
      WHERE u.order_no = v.order_no AND u.created_at >= @created_from::timestamptz AND u.created_at < @created_to::timestamptz
        AND u.status = ANY(@statuses::text[]))
  ORDER BY v.item DESC, v.order_no DESC LIMIT @most
), failed AS MATERIALIZED (
  SELECT f.order_no FROM pawl.orders AS f
  WHERE f.ended_as = 'failed' AND 'failed' = ANY(@statuses::text[])
    AND (f.item, f.order_no) > (@item::text, @after::bigint) AND (f.item, f.order_no) < (@item::text, @before::bigint)
    AND CASE WHEN f.created_at >= @created_from::timestamptz AND f.created_at < @created_to::timestamptz THEN true END
  ORDER BY f.item DESC, f.order_no DESC LIMIT @most
), canceled AS MATERIALIZED (
  SELECT c.order_no FROM pawl.orders AS c
  WHERE c.ended_as = 'canceled' AND 'canceled' = ANY(@statuses::text[])
    AND (c.item, c.order_no) > (@item::text, @after::bigint) AND (c.item, c.order_no) < (@item::text, @before::bigint)
    AND CASE WHEN c.created_at >= @created_from::timestamptz AND c.created_at < @created_to::timestamptz THEN true END
  ORDER BY c.item DESC, c.order_no DESC LIMIT @most
), unfinished AS MATERIALIZED (
  SELECT u.order_no, u.status, u.item, u.created_at FROM pawl.orders AS u
  WHERE (u.due_at IS NOT NULL OR u.hold IS NOT NULL)
    AND NOT @statuses::text[] <@ ARRAY['completed', 'failed', 'canceled']
), page AS (
  SELECT w.order_no FROM reserved AS w UNION SELECT x.order_no FROM failed AS x UNION SELECT y.order_no FROM canceled AS y
  UNION SELECT z.order_no FROM unfinished AS z
  WHERE z.item = @item::text AND z.status = ANY(@statuses::text[])
    AND z.order_no > @after::bigint AND z.order_no < @before::bigint
    AND z.created_at >= @created_from::timestamptz AND z.created_at < @created_to::timestamptz
  ORDER BY order_no DESC LIMIT @most
)
SELECT o.* FROM pawl.full_orders AS o
WHERE o.order_no = ANY(ARRAY(SELECT pawl.orders_within(ARRAY(SELECT p.order_no FROM page AS p), @bytes::bigint)))
ORDER BY o.order_no DESC;

-- name: OrdersListCustomer :many
-- Orders of a customer, and of these those of some statuses, or for an item.
WITH page AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.customer_id IS NOT NULL
    AND (o.customer_id, o.order_no) > (@customer_id::text, @after::bigint) AND (o.customer_id, o.order_no) < (@customer_id::text, @before::bigint)
    AND CASE WHEN o.created_at >= @created_from::timestamptz AND o.created_at < @created_to::timestamptz
      AND o.status = ANY(@statuses::text[])
      AND (sqlc.narg('item')::text IS NULL OR o.item = sqlc.narg('item')::text) THEN true END
  ORDER BY o.customer_id DESC, o.order_no DESC LIMIT @most
)
SELECT o.* FROM pawl.full_orders AS o
WHERE o.order_no = ANY(ARRAY(SELECT pawl.orders_within(ARRAY(SELECT p.order_no FROM page AS p), @bytes::bigint)))
ORDER BY o.order_no DESC;

-- name: OrdersListHeld :many
-- Orders held for one thing, also those whose reason begins with some words.
WITH page AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.hold IS NOT NULL AND (o.hold, o.order_no) > (@hold::text, @after::bigint) AND (o.hold, o.order_no) < (@hold::text, @before::bigint)
    AND CASE WHEN o.created_at >= @created_from::timestamptz AND o.created_at < @created_to::timestamptz
      AND (@reason::text = '' OR starts_with(o.hold_reason, @reason::text))
      AND o.status = ANY(@statuses::text[])
      AND (sqlc.narg('item')::text IS NULL OR o.item = sqlc.narg('item')::text)
      AND (sqlc.narg('customer_id')::text IS NULL OR o.customer_id = sqlc.narg('customer_id')::text) THEN true END
  ORDER BY o.hold DESC, o.order_no DESC LIMIT @most
)
SELECT o.* FROM pawl.full_orders AS o
WHERE o.order_no = ANY(ARRAY(SELECT pawl.orders_within(ARRAY(SELECT p.order_no FROM page AS p), @bytes::bigint)))
ORDER BY o.order_no DESC;
