-- A lease is orders.due_at: until then the owner drives the order, from then on
-- anybody may pick it up. A claim raises the fence, so whoever had the order before
-- can no longer write to it. All times are the database's.

-- name: LeasesDue :many
-- Finds orders to claim. The floor keeps the scan away from the dead entries that
-- finished orders leave in the index; now() and not clock_timestamp(), because only a
-- stable value bounds an index scan.
SELECT o.order_no, o.due_at::timestamptz AS due_at FROM orders AS o
WHERE o.due_at > @floor::timestamptz AND o.due_at <= now()
ORDER BY o.due_at LIMIT @most;

-- name: LeasesDueFloor :one
-- Where the next scan may start: a little before now, on the database's clock.
SELECT (now() - interval '5 seconds')::timestamptz AS floor;

-- name: LeasesClaim :many
-- Takes up those of the given orders that are due. An order taken over three times
-- without a move is held: whatever it does to its driver, it does it no more.
WITH due AS MATERIALIZED (
  SELECT o.order_no FROM orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[]) AND o.due_at <= now()
  ORDER BY o.order_no
  FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
  UPDATE orders AS o SET
    fence = o.fence + 1, seq = o.seq + 1,
    take_overs = least(o.take_overs + 1, 100),
    hold = CASE WHEN o.take_overs >= 3 THEN 'attention' END,
    hold_reason = CASE WHEN o.take_overs >= 3 THEN 'taken over three times without a move' END,
    owner = CASE WHEN o.take_overs >= 3 THEN NULL ELSE @owner::uuid END,
    due_at = CASE WHEN o.take_overs >= 3 THEN NULL ELSE clock_timestamp() + make_interval(secs => @lease_seconds::float8) END
  WHERE o.order_no = ANY(ARRAY(SELECT d.order_no FROM due AS d)) AND o.due_at <= now()
  RETURNING o.*
), history AS (
  INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb, reason)
  SELECT c.order_no, c.seq, c.status, c.status, c.fence,
    CASE WHEN c.hold IS NULL THEN 'take_over' ELSE 'hold' END, c.hold_reason FROM claimed AS c
)
SELECT sqlc.embed(orders) FROM claimed AS orders;

-- name: LeasesRenew :many
-- The one write without seq and history: it is idempotent.
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE orders AS o SET due_at = clock_timestamp() + make_interval(secs => @lease_seconds::float8)
WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l)) AND o.owner = @owner::uuid
RETURNING o.order_no;

-- name: LeasesRelease :many
-- Hands orders back, due at once: the next replica that looks takes them over. To hand
-- back is no failure of its driver, so it takes the claim it came with off the count.
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE orders AS o SET due_at = now(), owner = NULL, seq = o.seq + 1, take_overs = greatest(o.take_overs - 1, 0)
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l)) AND o.owner = @owner::uuid
  RETURNING o.order_no, o.fence, o.seq, o.status
)
INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb)
SELECT m.order_no, m.seq, m.status, m.status, m.fence, 'release_lease' FROM moved AS m
RETURNING order_no;
