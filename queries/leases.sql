-- A lease is orders.due_at: until then the owner drives the order, and after that any replica may claim it. A claim
-- raises the fence, so the previous owner can no longer write to the order. All times are by the clock of the
-- database.

-- name: LeasesDue :many
-- Finds orders to claim. The floor keeps the scan away from the dead entries that ended orders leave in the index. It
-- uses now() and not clock_timestamp(), because only a stable value limits an index scan.
SELECT o.order_no, o.due_at::timestamptz AS due_at, o.policy, o.owner FROM pawl.orders AS o
WHERE o.due_at > @floor::timestamptz AND o.due_at <= now()
ORDER BY o.due_at LIMIT @most;

-- name: LeasesDueFloor :one
-- Returns the floor of the next scan: slightly before now.
SELECT (now() - interval '5 seconds')::timestamptz AS floor;

-- name: LeasesShorten :many
-- Shortens leases and waits that are longer than possible, because they were written before the clock of the database
-- was set back. Each is set to the longest one of its hold: a living driver renews its lease, and the order of a dead
-- one is found when the lease ends. Like a renewal, this is idempotent, and has no seq and no history. Start times
-- are left alone: requests set them. The margin of a minute is for replicas with longer leases. Each hold is searched
-- separately: it is in the index, so only rows that are too long are read.
WITH longest AS (
  SELECT x.hold, make_interval(secs => x.seconds) AS wait, make_interval(secs => x.seconds, mins => 1) AS too_long
  FROM ROWS FROM (unnest(@holds::text[]), unnest(@seconds::float8[])) AS x(hold, seconds) -- '': no hold, the order is driven
), ahead AS MATERIALIZED (
  SELECT f.order_no FROM longest AS l CROSS JOIN LATERAL (
    SELECT o.order_no FROM pawl.orders AS o
    WHERE o.due_at > now() + l.too_long AND o.hold = l.hold AND (o.policy IS NULL OR o.policy = ANY(@policies::integer[]))
    ORDER BY o.due_at LIMIT @most) AS f
  UNION ALL
  SELECT f.order_no FROM longest AS l CROSS JOIN LATERAL (
    SELECT o.order_no FROM pawl.orders AS o
    WHERE o.due_at > now() + l.too_long AND o.hold IS NULL AND l.hold = '' AND (o.policy IS NULL OR o.policy = ANY(@policies::integer[]))
    ORDER BY o.due_at LIMIT @most) AS f
), locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY(ARRAY(SELECT a.order_no FROM ahead AS a))
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pawl.orders AS o SET due_at = now() + l.wait,
  approval_until = CASE WHEN o.hold = 'approval' THEN least(o.approval_until, now() + l.wait) ELSE o.approval_until END
FROM longest AS l
WHERE o.order_no = ANY(ARRAY(SELECT k.order_no FROM locked AS k)) AND l.hold = coalesce(o.hold, '') AND o.due_at > now() + l.too_long
RETURNING o.order_no;

-- name: SideCallsShorten :execrows
-- Like LeasesShorten, for the claims and pauses of late undos and charge operations.
WITH undos AS (
  UPDATE pawl.late_undos AS u SET due_at = now() + make_interval(secs => @longest_seconds::float8)
  WHERE u.finished_at IS NULL AND u.due_at > now() + make_interval(secs => @longest_seconds::float8)
)
UPDATE pawl.charge_operations AS f SET due_at = now() + make_interval(secs => @longest_seconds::float8)
WHERE f.due_at > now() + make_interval(secs => @longest_seconds::float8);

-- name: ReservationsShorten :execrows
-- Like LeasesShorten, for the deadlines of reservations. It reads all deadlines, so it is only used when the clock
-- may have been set back.
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY(ARRAY(
      SELECT d.order_no FROM pawl.orders AS d
      WHERE (d.complete_by IS NOT NULL OR d.reserved_until IS NOT NULL) AND d.ended_as IS NULL AND least(d.complete_by, d.reserved_until) > now()
        AND d.reserved_until > now() + make_interval(secs => d.reservation_ttl)
      ORDER BY least(d.complete_by, d.reserved_until) LIMIT @most))
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pawl.orders AS o SET reserved_until = now() + make_interval(secs => o.reservation_ttl)
WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l)) AND o.reserved_until > now() + make_interval(secs => o.reservation_ttl);

-- name: LeasesClaim :many
-- Claims those of the given orders that are due. An order that was taken over three times without a move is put on
-- hold instead: it may be what kills its drivers. Waking an order whose hold has ended does not count as a take-over.
WITH due AS MATERIALIZED (
  SELECT o.order_no, o.hold FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[]) AND o.due_at <= now()
    AND (o.policy IS NULL OR o.policy = ANY(@policies::integer[])) -- only policies that this process has
  ORDER BY o.order_no
  FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
  UPDATE pawl.orders AS o SET
    fence = o.fence + 1, seq = o.seq + 1,
    take_overs = CASE WHEN o.hold IS NULL THEN least(o.take_overs + 1, 100) ELSE o.take_overs END,
    -- Its driver died or gave up during a call, or no callback came: the lost answer counts as a retry. Without an owner,
    -- no call was under way: it was released, or a person had it retried.
    retries = CASE WHEN (o.hold IS NULL AND o.owner IS NOT NULL OR o.hold = 'callback') AND o.in_doubt_since IS NOT NULL THEN coalesce(o.retries, 0) + 1 ELSE o.retries END,
    hold = CASE WHEN o.take_overs >= 3 AND o.hold IS NULL THEN 'attention' END,
    hold_reason = CASE WHEN o.take_overs >= 3 AND o.hold IS NULL THEN 'taken over three times without a move' END,
    owner = CASE WHEN o.take_overs < 3 OR o.hold IS NOT NULL THEN @owner::uuid END,
    due_at = CASE WHEN o.take_overs < 3 OR o.hold IS NOT NULL THEN clock_timestamp() + make_interval(secs => @lease_seconds::float8) END
  WHERE o.order_no = ANY(ARRAY(SELECT d.order_no FROM due AS d)) AND o.due_at <= now()
  RETURNING o.*
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, reason)
  SELECT c.order_no, c.seq, c.status, c.status, c.fence,
    CASE WHEN c.hold IS NOT NULL THEN 'hold' WHEN d.hold IS NOT NULL THEN 'wake' ELSE 'take_over' END, c.hold_reason
  FROM claimed AS c JOIN due AS d ON d.order_no = c.order_no
)
SELECT sqlc.embed(written_orders) FROM (SELECT w.*, e.* FROM claimed AS w, pawl.no_effects AS e) AS written_orders;

-- name: LeasesRenew :many
-- Renews leases. This has no seq and no history, because it is idempotent. It never shortens a lease, such as one
-- that covers a call.
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pawl.orders AS o SET due_at = greatest(o.due_at, clock_timestamp() + make_interval(secs => @lease_seconds::float8))
WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l)) AND o.owner = @owner::uuid
RETURNING o.order_no;

-- name: LeasesRelease :many
-- Releases orders: they are due at once, for the next replica. A release is not a failed drive, so it lowers
-- take_overs again.
WITH locked AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
  UPDATE pawl.orders AS o SET due_at = now(), owner = NULL, seq = o.seq + 1, take_overs = greatest(o.take_overs - 1, 0)
  WHERE o.order_no = ANY(ARRAY(SELECT l.order_no FROM locked AS l)) AND o.owner = @owner::uuid
  RETURNING o.order_no, o.fence, o.seq, o.status
)
INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb)
SELECT m.order_no, m.seq, m.status, m.status, m.fence, 'release_lease' FROM moved AS m
RETURNING order_no;

-- name: LeasesTake :many
-- Claims orders on hold before the hold ends, because what they waited for has happened.
WITH held AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[]) AND o.hold = @hold::text
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), taken AS (
  UPDATE pawl.orders AS o SET
    fence = o.fence + 1, seq = o.seq + 1, owner = @owner::uuid, hold = NULL, hold_reason = NULL,
    due_at = clock_timestamp() + make_interval(secs => @lease_seconds::float8)
  WHERE o.order_no = ANY(ARRAY(SELECT h.order_no FROM held AS h)) AND o.hold = @hold::text
  RETURNING o.*
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb)
  SELECT t.order_no, t.seq, t.status, t.status, t.fence, 'wake' FROM taken AS t
)
SELECT sqlc.embed(written_orders) FROM (SELECT w.*, e.* FROM taken AS w, pawl.no_effects AS e) AS written_orders;
