-- Concurrency permits of orders that share a key. The orders that have one are counted: those that have started and
-- not ended, even if they are in doubt or held for a person. A grant compares and sets the version of the key, so
-- that of two grants with the same count only one succeeds. The end of an order only makes room, and changes no
-- version.

-- name: ConcurrencyRead :many
-- Returns how many orders of a key are in progress, and the next ones in order of arrival.
WITH key_row AS (
  INSERT INTO pawl.concurrency_keys AS k (key) VALUES (@key) ON CONFLICT (key) DO NOTHING RETURNING k.version
)
SELECT o.order_no, coalesce(o.policy, 0)::integer AS policy,
  coalesce((SELECT k.version FROM pawl.concurrency_keys AS k WHERE k.key = @key), (SELECT r.version FROM key_row AS r), 0)::bigint AS version,
  (SELECT count(*) FROM pawl.orders AS u WHERE u.concurrency_key = @key AND u.ended_as IS NULL
    AND (u.status <> 'pending' OR u.permit_at IS NOT NULL)) AS under_way
FROM pawl.orders AS o
WHERE o.concurrency_key = @key AND o.ended_as IS NULL AND o.hold = 'queued'
ORDER BY o.concurrency_key, o.order_no LIMIT @most;

-- name: ConcurrencyGrant :many
-- Gives permits to orders that were next when the version was read.
WITH seen AS (
  UPDATE pawl.concurrency_keys AS k SET version = k.version + 1 WHERE k.key = @key AND k.version = @version
  RETURNING k.key
), held AS MATERIALIZED (
  SELECT o.order_no FROM pawl.orders AS o
  WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[]) AND o.hold = 'queued'
  ORDER BY o.order_no FOR NO KEY UPDATE SKIP LOCKED
), granted AS (
  UPDATE pawl.orders AS o SET
    fence = o.fence + 1, seq = o.seq + 1, owner = @owner::uuid, hold = NULL, hold_reason = NULL, permit_at = now(),
    due_at = clock_timestamp() + make_interval(secs => @lease_seconds::float8)
  WHERE o.order_no = ANY(ARRAY(SELECT h.order_no FROM held AS h WHERE EXISTS (SELECT 1 FROM seen AS s))) AND o.hold = 'queued'
  RETURNING o.*
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb)
  SELECT g.order_no, g.seq, g.status, g.status, g.fence, 'permit' FROM granted AS g
)
SELECT sqlc.embed(written_orders) FROM (SELECT w.*, e.* FROM granted AS w, pawl.no_effects AS e) AS written_orders;

-- name: ConcurrencyKeysQueued :many
-- Returns keys that orders wait for, for the sweep. If they are many, different ones each time.
SELECT k.key FROM (
  SELECT DISTINCT o.concurrency_key::text AS key FROM pawl.orders AS o WHERE o.hold = 'queued' AND o.concurrency_key IS NOT NULL
) AS k ORDER BY random() LIMIT @most;
