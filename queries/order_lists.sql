-- Lists, newest or oldest first: order_no falls or rises along the page, and is the cursor. The numbers of a page are
-- found first (OrdersFind), with one index, and then the orders are read by number (OrdersRead), so the cost is that
-- of a page. No index has the status or amount of an order. So OrdersFind looks at some numbers after the cursor, and
-- returns those whose orders match, and where it stopped. The caller continues from there, or gives up.
--
-- Some conditions look roundabout to keep the search cheap: (item, order_no) is compared as a row, and is the order,
-- because the planner would walk the primary key otherwise. Branches that conditions on arguments alone exclude are
-- not executed.
--
-- Numbers rise with the time of creation, so a window of time is a range of numbers (OrderNoAt). The times are
-- compared all the same.

-- name: OrderNoAt :one
-- Finds by bisection where created_at passes a time: the first order at or after last_before was created before it,
-- and the first one at or after first_after was not, or does not exist.
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

-- name: OrdersFind :one
-- by is the index to search: number (the primary key, for lists that include completed orders), customer, item,
-- dispute, open or failed (refunds, captures and voids; all are few), or uncompleted; or these: a search has found them. An item's completed orders are found through its reservations; failed and canceled orders through
-- ended_as; held orders hold by hold (holds), or by item. Unless they are completed, orders with lines have no item in an
-- index ('' is in its place), and all of them are looked at. Driven orders are few, and all are read, through orders_due
-- without the held ones.
--
-- Each search returns its next numbers, as many as looks, so the next ones of all of them are among these.
--
-- The hidden range, the order and the limit of the search for driven orders make the planner walk orders_due.
-- Otherwise it expects a fifth of the table there, and reads all of it. Unlike a bitmap scan, an index scan also
-- marks dead entries, which the next one skips.
WITH looked AS (
  (SELECT o.order_no FROM pawl.orders AS o
   WHERE @by::text = 'number' AND NOT @oldest::boolean AND o.order_no > @after::bigint AND o.order_no < @before::bigint
   ORDER BY o.order_no DESC LIMIT @looks::integer)
  UNION ALL
  (SELECT o.order_no FROM pawl.orders AS o
   WHERE @by::text = 'number' AND @oldest::boolean AND o.order_no > @after::bigint AND o.order_no < @before::bigint
   ORDER BY o.order_no LIMIT @looks::integer)
  UNION ALL
  (SELECT h.order_no FROM unnest(@holds::text[]) AS k(hold), LATERAL (
     SELECT w.order_no FROM pawl.orders AS w
     WHERE NOT @oldest::boolean AND w.hold IS NOT NULL AND (w.hold, w.order_no) > (k.hold, @after::bigint) AND (w.hold, w.order_no) < (k.hold, @before::bigint)
     ORDER BY w.hold DESC, w.order_no DESC LIMIT @looks::integer) AS h)
  UNION ALL
  (SELECT h.order_no FROM unnest(@holds::text[]) AS k(hold), LATERAL (
     SELECT w.order_no FROM pawl.orders AS w
     WHERE @oldest::boolean AND w.hold IS NOT NULL AND (w.hold, w.order_no) > (k.hold, @after::bigint) AND (w.hold, w.order_no) < (k.hold, @before::bigint)
     ORDER BY w.hold, w.order_no LIMIT @looks::integer) AS h)
  UNION ALL
  (SELECT h.order_no FROM unnest(ARRAY[@name::text, '']) AS n(item), LATERAL (
     SELECT i.order_no FROM pawl.orders AS i
     WHERE @by::text = 'item' AND @unfinished::boolean AND NOT @oldest::boolean AND i.hold IS NOT NULL
       AND (i.item, i.order_no) > (n.item, @after::bigint) AND (i.item, i.order_no) < (n.item, @before::bigint)
     ORDER BY i.item DESC, i.order_no DESC LIMIT @looks::integer) AS h)
  UNION ALL
  (SELECT h.order_no FROM unnest(ARRAY[@name::text, '']) AS n(item), LATERAL (
     SELECT i.order_no FROM pawl.orders AS i
     WHERE @by::text = 'item' AND @unfinished::boolean AND @oldest::boolean AND i.hold IS NOT NULL
       AND (i.item, i.order_no) > (n.item, @after::bigint) AND (i.item, i.order_no) < (n.item, @before::bigint)
     ORDER BY i.item, i.order_no LIMIT @looks::integer) AS h)
  UNION ALL
  (SELECT d.order_no FROM (
     SELECT u.order_no FROM pawl.orders AS u WHERE @by::text IN ('uncompleted', 'item') AND @unfinished::boolean
       AND u.due_at > (SELECT '-infinity'::timestamptz) AND u.due_at < (SELECT 'infinity'::timestamptz) AND u.hold IS NULL
     ORDER BY u.due_at LIMIT (SELECT 1000000)) AS d
   WHERE d.order_no > @after::bigint AND d.order_no < @before::bigint
   ORDER BY CASE WHEN @oldest::boolean THEN d.order_no ELSE -d.order_no END LIMIT @looks::integer)
  UNION ALL
  (SELECT c.order_no FROM pawl.orders AS c
   WHERE @by::text = 'customer' AND NOT @oldest::boolean AND c.customer_id IS NOT NULL
     AND (c.customer_id, c.order_no) > (@name::text, @after::bigint) AND (c.customer_id, c.order_no) < (@name::text, @before::bigint)
   ORDER BY c.customer_id DESC, c.order_no DESC LIMIT @looks::integer)
  UNION ALL
  (SELECT c.order_no FROM pawl.orders AS c
   WHERE @by::text = 'customer' AND @oldest::boolean AND c.customer_id IS NOT NULL
     AND (c.customer_id, c.order_no) > (@name::text, @after::bigint) AND (c.customer_id, c.order_no) < (@name::text, @before::bigint)
   ORDER BY c.customer_id, c.order_no LIMIT @looks::integer)
  UNION ALL
  (SELECT r.order_no FROM (
     SELECT DISTINCT v.item, v.order_no FROM pawl.reservations AS v
     WHERE @by::text = 'item' AND 'completed' = ANY(@statuses::text[]) AND NOT @oldest::boolean
       AND (v.item, v.order_no) > (@name::text, @after::bigint) AND (v.item, v.order_no) < (@name::text, @before::bigint)
     ORDER BY v.item DESC, v.order_no DESC LIMIT @looks::integer) AS r)
  UNION ALL
  (SELECT r.order_no FROM (
     SELECT DISTINCT v.item, v.order_no FROM pawl.reservations AS v
     WHERE @by::text = 'item' AND 'completed' = ANY(@statuses::text[]) AND @oldest::boolean
       AND (v.item, v.order_no) > (@name::text, @after::bigint) AND (v.item, v.order_no) < (@name::text, @before::bigint)
     ORDER BY v.item, v.order_no LIMIT @looks::integer) AS r)
  UNION ALL
  (SELECT f.order_no FROM pawl.orders AS f
   WHERE @by::text = 'uncompleted' AND 'failed' = ANY(@statuses::text[]) AND NOT @oldest::boolean AND f.ended_as IN ('failed', 'canceled')
     AND (f.ended_as, f.order_no) > ('failed', @after::bigint) AND (f.ended_as, f.order_no) < ('failed', @before::bigint)
   ORDER BY f.ended_as DESC, f.order_no DESC LIMIT @looks::integer)
  UNION ALL
  (SELECT f.order_no FROM pawl.orders AS f
   WHERE @by::text = 'uncompleted' AND 'failed' = ANY(@statuses::text[]) AND @oldest::boolean AND f.ended_as IN ('failed', 'canceled')
     AND (f.ended_as, f.order_no) > ('failed', @after::bigint) AND (f.ended_as, f.order_no) < ('failed', @before::bigint)
   ORDER BY f.ended_as, f.order_no LIMIT @looks::integer)
  UNION ALL
  (SELECT h.order_no FROM unnest(ARRAY[@name::text, '']) AS n(item), LATERAL (
     SELECT f.order_no FROM pawl.orders AS f
     WHERE @by::text = 'item' AND 'failed' = ANY(@statuses::text[]) AND NOT @oldest::boolean AND f.ended_as = 'failed'
       AND (f.item, f.order_no) > (n.item, @after::bigint) AND (f.item, f.order_no) < (n.item, @before::bigint)
     ORDER BY f.item DESC, f.order_no DESC LIMIT @looks::integer) AS h)
  UNION ALL
  (SELECT h.order_no FROM unnest(ARRAY[@name::text, '']) AS n(item), LATERAL (
     SELECT f.order_no FROM pawl.orders AS f
     WHERE @by::text = 'item' AND 'failed' = ANY(@statuses::text[]) AND @oldest::boolean AND f.ended_as = 'failed'
       AND (f.item, f.order_no) > (n.item, @after::bigint) AND (f.item, f.order_no) < (n.item, @before::bigint)
     ORDER BY f.item, f.order_no LIMIT @looks::integer) AS h)
  UNION ALL
  (SELECT k.order_no FROM pawl.orders AS k
   WHERE @by::text = 'uncompleted' AND 'canceled' = ANY(@statuses::text[]) AND NOT @oldest::boolean AND k.ended_as IN ('failed', 'canceled')
     AND (k.ended_as, k.order_no) > ('canceled', @after::bigint) AND (k.ended_as, k.order_no) < ('canceled', @before::bigint)
   ORDER BY k.ended_as DESC, k.order_no DESC LIMIT @looks::integer)
  UNION ALL
  (SELECT k.order_no FROM pawl.orders AS k
   WHERE @by::text = 'uncompleted' AND 'canceled' = ANY(@statuses::text[]) AND @oldest::boolean AND k.ended_as IN ('failed', 'canceled')
     AND (k.ended_as, k.order_no) > ('canceled', @after::bigint) AND (k.ended_as, k.order_no) < ('canceled', @before::bigint)
   ORDER BY k.ended_as, k.order_no LIMIT @looks::integer)
  UNION ALL
  (SELECT h.order_no FROM unnest(ARRAY[@name::text, '']) AS n(item), LATERAL (
     SELECT k.order_no FROM pawl.orders AS k
     WHERE @by::text = 'item' AND 'canceled' = ANY(@statuses::text[]) AND NOT @oldest::boolean AND k.ended_as = 'canceled'
       AND (k.item, k.order_no) > (n.item, @after::bigint) AND (k.item, k.order_no) < (n.item, @before::bigint)
     ORDER BY k.item DESC, k.order_no DESC LIMIT @looks::integer) AS h)
  UNION ALL
  (SELECT h.order_no FROM unnest(ARRAY[@name::text, '']) AS n(item), LATERAL (
     SELECT k.order_no FROM pawl.orders AS k
     WHERE @by::text = 'item' AND 'canceled' = ANY(@statuses::text[]) AND @oldest::boolean AND k.ended_as = 'canceled'
       AND (k.item, k.order_no) > (n.item, @after::bigint) AND (k.item, k.order_no) < (n.item, @before::bigint)
     ORDER BY k.item, k.order_no LIMIT @looks::integer) AS h)
  UNION ALL
  (SELECT d.order_no FROM (SELECT DISTINCT v.order_no FROM pawl.disputes AS v
     WHERE @by::text = 'dispute' AND v.order_no > @after::bigint AND v.order_no < @before::bigint) AS d
   ORDER BY CASE WHEN @oldest::boolean THEN d.order_no ELSE -d.order_no END LIMIT @looks::integer)
  UNION ALL
  (SELECT u.order_no FROM (
     SELECT q.order_no FROM pawl.charge_operations AS q WHERE @by::text = 'open' AND q.due_at IS NOT NULL
     UNION
     SELECT w.order_no FROM pawl.charge_operations AS w WHERE @by::text = 'failed' AND w.state = 'failed') AS u
   WHERE u.order_no > @after::bigint AND u.order_no < @before::bigint
   ORDER BY CASE WHEN @oldest::boolean THEN u.order_no ELSE -u.order_no END LIMIT @looks::integer)
  UNION ALL
  (SELECT n.order_no FROM unnest(@order_nos::bigint[]) AS n(order_no) WHERE @by::text = 'these')
), page AS MATERIALIZED (
  SELECT l.order_no FROM looked AS l GROUP BY l.order_no
  ORDER BY CASE WHEN @oldest::boolean THEN l.order_no ELSE -l.order_no END LIMIT @looks::integer
)
SELECT ARRAY(
    SELECT p.order_no FROM page AS p
    WHERE (
      SELECT o.status = ANY(@statuses::text[]) AND o.created_at >= @created_from::timestamptz AND o.created_at < @created_to::timestamptz
        AND o.amount >= @amount_from::pawl.money_amount AND o.amount <= @amount_to::pawl.money_amount
        AND (@item::text = '' OR o.item = @item::text
          OR o.lines IS NOT NULL AND @item::text IN (SELECT l.item FROM pawl.items_of(o.item, o.quantity, o.lines) AS l(line, item, quantity))) AND (@customer_id::text = '' OR o.customer_id = @customer_id::text)
        AND (@hold::text = '' OR o.hold = @hold::text)
        AND (@reason::text = '' OR o.hold_reason = @reason::text OR starts_with(o.hold_reason, @reason::text || ':'))
        AND CASE WHEN @failure_step::text IN ('refund', 'capture', 'void') THEN o.charge_operations IS NOT NULL AND EXISTS (
            SELECT 1 FROM pawl.charge_operations AS u WHERE u.order_no = o.order_no AND u.kind = @failure_step::text AND u.state = 'failed'
              AND u.request_id IS NOT NULL AND (@failure_code::text = '' OR u.code = @failure_code::text) AND NOT EXISTS (
                SELECT 1 FROM pawl.charge_operations AS n WHERE n.order_no = u.order_no AND n.kind = u.kind AND n.number > u.number))
          ELSE (@failure_step::text = '' OR o.failure_step = @failure_step::text) AND (@failure_code::text = '' OR o.failure_code = @failure_code::text) END
        AND (@submitted_by::text = '' OR o.submitted_by = @submitted_by::text) AND (@route::text = '' OR o.route = @route::text)
        AND (@currency::text = '' OR o.currency = @currency::text)
        AND (NOT @charged::boolean OR EXISTS (SELECT 1 FROM pawl.known_charges AS g WHERE g.order_no = o.order_no))
        AND (NOT @refunded::boolean OR EXISTS (
          SELECT 1 FROM pawl.known_operations AS u WHERE u.order_no = o.order_no AND u.kind = 'refund'))
        AND (NOT @authorized::boolean OR EXISTS (
          SELECT 1 FROM pawl.known_charges AS g WHERE g.order_no = o.order_no AND g.refunded_at IS NULL AND g.capture IS NOT NULL AND g.captured_at IS NULL
            AND g.amount > (SELECT coalesce(sum(u.amount + coalesce(u.voided, 0)), 0) FROM pawl.charge_operations AS u
              WHERE u.order_no = g.order_no AND u.generation = g.generation AND u.kind <> 'refund' AND u.state = 'done')))
        AND (NOT @voided::boolean OR o.charge_operations IS NOT NULL AND EXISTS (
          SELECT 1 FROM pawl.charge_operations AS u WHERE u.order_no = o.order_no AND u.state = 'done' AND (u.kind = 'void' OR u.voided > 0)))
        AND (@refund::text = '' OR o.charge_operations IS NOT NULL AND EXISTS (
          SELECT 1 FROM pawl.charge_operations AS u WHERE u.order_no = o.order_no AND u.number > 0
            AND CASE WHEN @refund::text = 'open' THEN u.state NOT IN ('done', 'failed') ELSE u.kind = 'refund' AND u.state = 'done' AND NOT EXISTS (
              SELECT 1 FROM pawl.charge_operations AS n WHERE n.order_no = u.order_no AND n.kind = 'refund' AND n.number > u.number) END))
        AND (@dispute::text = '' OR o.disputes IS NOT NULL AND EXISTS (
          SELECT 1 FROM pawl.disputes AS d WHERE d.order_no = o.order_no
            AND CASE WHEN @dispute::text = 'open' THEN d.state = 'opened' AND NOT EXISTS (
              SELECT 1 FROM pawl.disputes AS e WHERE e.order_no = d.order_no AND e.reference = d.reference AND e.state <> 'opened')
            ELSE d.state = @dispute::text END))
      FROM pawl.orders AS o WHERE o.order_no = p.order_no)
    ORDER BY CASE WHEN @oldest::boolean THEN p.order_no ELSE -p.order_no END)::bigint[] AS found,
  (SELECT count(*) FROM page AS p)::integer AS looked,
  coalesce((SELECT CASE WHEN @oldest::boolean THEN max(p.order_no) ELSE min(p.order_no) END FROM page AS p), 0)::bigint AS last;

-- name: OrdersRead :many
-- Reads orders by number, in this order. It ends early where they would take more than some bytes: what
-- many readers can have the service hold in memory is bounded.
SELECT o.* FROM pawl.full_orders AS o
WHERE o.order_no = ANY(ARRAY(SELECT pawl.orders_within(@order_nos::bigint[], @bytes::bigint)))
ORDER BY array_position(@order_nos::bigint[], o.order_no);

-- name: OrdersStatusSince :many
-- Finds when orders came into their status: the last row of their history that changed it. An order that is retried has
-- newer rows. One that waits for a person has the row of its hold: it may have been retried and held again.
SELECT o.order_no, c.at FROM pawl.orders AS o, LATERAL (
  SELECT t.at FROM pawl.transitions AS t
  WHERE t.order_no = o.order_no AND (t.from_status IS DISTINCT FROM t.to_status OR o.hold IN ('attention', 'approval', 'paused'))
  ORDER BY t.seq DESC LIMIT 1) AS c
WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[]);

-- name: OrdersMoney :many
-- Adds up the money of some orders by currency, as VerifyMoney does: of each order, or of all of them, with order_no 0.
-- Orders that were never charged have none.
SELECT (CASE WHEN @each::boolean THEN m.order_no ELSE 0 END)::bigint AS order_no, m.currency,
  sum(m.charged)::text AS charged, (0 * sum(m.charged) + sum(m.undone + m.refunded))::text AS refunded,
  (0 * sum(m.charged) + sum(m.authorized))::text AS authorized, (0 * sum(m.charged) + sum(m.voided))::text AS voided,
  sum(m.charged - m.undone - m.refunded - m.voided - m.authorized - m.lost)::text AS kept,
  (0 * sum(m.charged) + sum(m.disputed))::text AS disputed, (0 * sum(m.charged) + sum(m.lost))::text AS lost
FROM pawl.order_money AS m WHERE m.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
GROUP BY 1, m.currency ORDER BY 1, m.currency;

-- name: OrdersAmounts :many
-- Adds up the amounts of some orders by currency.
SELECT o.currency::text AS currency, count(*) AS orders, sum(o.amount)::text AS amount
FROM pawl.orders AS o WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[]) GROUP BY 1 ORDER BY 1;

-- name: OrderNosBefore :many
-- Reads the numbers of orders downwards.
SELECT o.order_no FROM pawl.orders AS o WHERE o.order_no > @after::bigint AND o.order_no < @before::bigint ORDER BY o.order_no DESC LIMIT @looks::integer;

-- name: MoneyMovements :many
-- Reads the movements of money of some orders in a span of time, the newest order first. No kinds: all.
SELECT (SELECT o.order_id FROM pawl.orders AS o WHERE o.order_no = m.order_no)::text AS order_id, m.at::timestamptz AS at, m.kind, m.amount::text AS amount, m.currency,
  coalesce(m.reference, '')::text AS reference
FROM pawl.movements AS m
WHERE m.order_no = ANY((SELECT @order_nos::bigint[])::bigint[]) AND m.at >= @moved_from::timestamptz AND m.at < @moved_to::timestamptz
  AND (@currency::text = '' OR m.currency = @currency::text) AND (coalesce(cardinality(@kinds::text[]), 0) = 0 OR m.kind = ANY(@kinds::text[]))
ORDER BY m.order_no DESC, m.at DESC, m.kind, m.amount;

-- name: OrderIDs :many
-- Reads the ids of orders by number, in their order.
SELECT o.order_id FROM pawl.orders AS o WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
ORDER BY CASE WHEN @oldest::boolean THEN o.order_no ELSE -o.order_no END;

-- name: OrdersSearch :many
-- Finds orders by terms, each as it is, in lower and in upper case, as many as most for each thing that can match: first those
-- whose id begins with one, by id, after one, also of a number the one whose id is that of the newest order with it at its end;
-- then those with this customer, reference of a provider, charge of a dispute, or value of metadata, the newest before a number
-- first. Each part uses an index of its own. The greatest character ends the range of ids, and is in the place of the ids of
-- the others, which earlier tells from the first: their ids match, too.
WITH sought AS MATERIALIZED (
  SELECT DISTINCT t.term, s.spelled, CASE WHEN t.term ~ '^[0-9]+$' THEN nullif(rtrim(n.order_id, '0123456789'), '') || t.term END AS numbered
  FROM unnest(@terms::text[]) AS t(term), unnest(ARRAY[t.term, lower(t.term), upper(t.term)]) AS s(spelled)
  LEFT JOIN (SELECT o.order_id::text AS order_id FROM pawl.orders AS o ORDER BY o.order_no DESC LIMIT 1) AS n ON true
)
SELECT s.term::text AS term, f.order_no, f.matched, f.key, f.order_id::text AS order_id, coalesce(f.place > 2 AND (
    SELECT bool_or(starts_with(o.order_id, i.spelled) OR o.order_id = i.numbered) FROM pawl.orders AS o, sought AS i WHERE o.order_no = f.order_no), false)::boolean AS earlier
FROM sought AS s, LATERAL (
  (SELECT o.order_no, 1 AS place, CASE WHEN o.order_id = s.spelled THEN 'orderId' ELSE 'orderIdPrefix' END AS matched, ''::text AS key,
     o.order_id::text COLLATE "C" AS order_id FROM pawl.orders AS o
   WHERE o.order_id >= s.spelled AND o.order_id > @after_id::text AND o.order_id < s.spelled || chr(1114111) ORDER BY o.order_id LIMIT @most::integer)
  UNION ALL
  (SELECT n.order_no, 2, 'word', 'orderId', n.order_id FROM pawl.orders AS n WHERE n.order_id = s.numbered AND n.order_id > @after_id::text)
  UNION ALL
  (SELECT o.order_no, 3, 'customerId', '', chr(1114111) FROM pawl.orders AS o
   WHERE o.customer_id IS NOT NULL AND (o.customer_id, o.order_no) > (s.spelled, 0) AND (o.customer_id, o.order_no) < (s.spelled, @before::bigint)
   ORDER BY o.customer_id DESC, o.order_no DESC LIMIT @most::integer)
  UNION ALL
  (SELECT c.order_no, 4, 'chargeReference', '', chr(1114111) FROM pawl.charges AS c
   WHERE c.reference IS NOT NULL AND (c.reference, c.order_no) > (s.spelled, 0) AND (c.reference, c.order_no) < (s.spelled, @before::bigint)
   ORDER BY c.reference DESC, c.order_no DESC LIMIT @most::integer)
  UNION ALL
  (SELECT r.order_no, 5, 'reservationReference', '', chr(1114111) FROM pawl.reservations AS r
   WHERE r.line = 1 AND r.reference IS NOT NULL AND (r.reference, r.order_no) > (s.spelled, 0) AND (r.reference, r.order_no) < (s.spelled, @before::bigint)
   ORDER BY r.reference DESC, r.order_no DESC LIMIT @most::integer)
  UNION ALL
  (SELECT u.order_no, 6, 'refundReference', '', chr(1114111) FROM pawl.charge_operations AS u
   WHERE u.reference IS NOT NULL AND (u.reference, u.order_no) > (s.spelled, 0) AND (u.reference, u.order_no) < (s.spelled, @before::bigint)
   ORDER BY u.reference DESC, u.order_no DESC LIMIT @most::integer)
  UNION ALL
  (SELECT d.order_no, 7, 'disputeReference', '', chr(1114111) FROM pawl.disputes AS d
   WHERE (d.reference, d.order_no) > (s.spelled, 0) AND (d.reference, d.order_no) < (s.spelled, @before::bigint)
   ORDER BY d.reference DESC, d.order_no DESC LIMIT @most::integer)
  UNION ALL
  (SELECT g.order_no, 8, 'disputeCharge', '', chr(1114111) FROM pawl.disputes AS g
   WHERE g.charge IS NOT NULL AND (g.charge, g.order_no) > (s.spelled, 0) AND (g.charge, g.order_no) < (s.spelled, @before::bigint)
   ORDER BY g.charge DESC, g.order_no DESC LIMIT @most::integer)
  UNION ALL
  (SELECT m.order_no, 9, 'metadata', m.key, chr(1114111) FROM pawl.orders_by_metadata(s.spelled, @before::bigint, @most::integer) AS m)
) AS f
ORDER BY f.order_id, f.order_no DESC, f.place, f.key;

-- name: OrdersSearchParts :one
-- Looks inside the newest orders before a number, as many as looks: for a part of an id, a customer, a reference or a value of
-- metadata under one of the keys with all words in it, whatever the case of its letters from A to Z, or for an amount, of any
-- currency if it is empty; without a term, only for that. No index has parts, and one that had would slow admissions down.
-- places says where each order has it, separated by chr(31). since is when the oldest one was created, last its number.
-- coalesce keeps the planner from the indexes of references, which begin with those.
WITH sought AS MATERIALIZED (
  SELECT nullif(lower(g.term COLLATE "C"), '') AS term, nullif(g.amount, '')::numeric AS amount, g.currency,
    nullif(ARRAY(SELECT '%' || lower(w.word COLLATE "C") || '%' FROM unnest(@words::text[]) AS w(word)), '{}') AS words
  FROM (SELECT @term::text AS term, @amount::text AS amount, @currency::text AS currency) AS g
), newest AS MATERIALIZED (
  SELECT o.order_no, o.created_at, nullif(concat_ws(chr(31),
    CASE WHEN o.amount = p.amount AND p.currency IN ('', o.currency) THEN 'amount' END,
    CASE WHEN strpos(lower(o.order_id), p.term) > 0 THEN 'orderId' END, CASE WHEN strpos(lower(o.customer_id), p.term) > 0 THEN 'customerId' END,
    CASE WHEN o.metadata IS NOT NULL THEN (
      SELECT string_agg('metadata.' || k.key, chr(31)) FROM unnest(@keys::text[]) AS k(key) WHERE lower((o.metadata ->> k.key) COLLATE "C") LIKE ALL (p.words)) END), '') AS place
  FROM sought AS p, pawl.orders AS o
  WHERE o.order_no < @before::bigint ORDER BY o.order_no DESC LIMIT @looks::integer
), span AS MATERIALIZED (
  SELECT min(n.order_no) AS first, max(n.order_no) AS last, min(n.created_at) AS since, count(*) AS looked FROM newest AS n
), referred AS (
  SELECT c.order_no, 'chargeReference' AS place FROM pawl.charges AS c
  WHERE (SELECT p.term FROM sought AS p) <> '' AND c.order_no >= (SELECT s.first FROM span AS s) AND c.order_no <= (SELECT s.last FROM span AS s)
    AND strpos(lower(coalesce(c.reference, '')), (SELECT p.term FROM sought AS p)) > 0
  UNION ALL
  SELECT r.order_no, 'reservationReference' FROM pawl.reservations AS r
  WHERE (SELECT p.term FROM sought AS p) <> '' AND r.order_no >= (SELECT s.first FROM span AS s) AND r.order_no <= (SELECT s.last FROM span AS s)
    AND r.line = 1 AND strpos(lower(coalesce(r.reference, '')), (SELECT p.term FROM sought AS p)) > 0
  UNION ALL
  SELECT u.order_no, u.kind || 'Reference' FROM pawl.charge_operations AS u
  WHERE (SELECT p.term FROM sought AS p) <> '' AND u.order_no >= (SELECT s.first FROM span AS s) AND u.order_no <= (SELECT s.last FROM span AS s)
    AND strpos(lower(coalesce(u.reference, '')), (SELECT p.term FROM sought AS p)) > 0
  UNION ALL
  SELECT d.order_no, 'disputeReference' FROM pawl.disputes AS d
  WHERE d.order_no >= (SELECT s.first FROM span AS s) AND d.order_no <= (SELECT s.last FROM span AS s)
    AND strpos(lower(concat_ws(' ', d.reference, d.charge)), (SELECT p.term FROM sought AS p)) > 0
), found AS (
  SELECT f.order_no, string_agg(DISTINCT f.place, chr(31)) AS place FROM (
    SELECT n.order_no, n.place FROM newest AS n WHERE n.place IS NOT NULL UNION ALL SELECT r.order_no, r.place FROM referred AS r) AS f
  GROUP BY f.order_no ORDER BY f.order_no DESC LIMIT @most::integer
)
SELECT ARRAY(SELECT f.order_no FROM found AS f ORDER BY f.order_no DESC)::bigint[] AS found,
  ARRAY(SELECT f.place FROM found AS f ORDER BY f.order_no DESC)::text[] AS places,
  s.looked::integer AS looked, coalesce(s.first, 0)::bigint AS last, coalesce(s.since, now())::timestamptz AS since
FROM span AS s;

-- name: SearchKeys :many
-- Returns the metadata keys that orders_by_metadata looks at.
SELECT d.description::text AS key FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_description AS d ON d.objoid = i.indexrelid AND d.classoid = 'pg_class'::regclass AND d.objsubid = 0
WHERE i.indrelid = 'pawl.orders'::regclass AND i.indisvalid AND starts_with(c.relname::text, 'orders_metadata_') ORDER BY key;

-- name: OrderCurrencies :many
SELECT o.order_id, o.currency FROM pawl.orders AS o WHERE o.order_id = ANY((SELECT @order_ids::text[])::text[]);
