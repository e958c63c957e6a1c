-- The keys by which requests that come again are known. Those of new orders are kept by the statements that admit orders.

-- name: IdempotencyKeyKeep :many
-- Keeps the key of a request about an order that is stored, and returns the fingerprint that it stands for: that of the
-- request, unless it was used for another one. No row comes back when another request keeps it at this moment, or a crash took the order. Durable, as
-- OrdersByID.
WITH kept AS (
  INSERT INTO pawl.idempotency_keys AS i (principal, key, fingerprint)
  SELECT @principal::text, @key::text, @fingerprint::bytea FROM pawl.orders AS o
  WHERE o.order_no = @order_no AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  ON CONFLICT (key, principal) DO NOTHING
  RETURNING i.fingerprint
)
SELECT k.fingerprint FROM kept AS k
UNION ALL
SELECT k.fingerprint FROM pawl.idempotency_keys AS k
WHERE k.key = @key AND k.principal = @principal AND (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL;

-- name: IdempotencyKeysOf :many
-- Who has used these keys, and what for. Durable, as OrdersByID.
SELECT k.key, k.principal, k.fingerprint FROM pawl.idempotency_keys AS k
WHERE k.key = ANY((SELECT @keys::text[])::text[])
  AND (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL;

-- name: IdempotencyKeysPurge :execrows
-- Removes some of the keys that have expired. Replicas that do it at the same time pass over each other's rows.
-- They are locked, so they stay where they are. A join with them, planned for fewer, compares each with all keys.
DELETE FROM pawl.idempotency_keys AS k WHERE k.ctid = ANY(ARRAY(
  SELECT o.ctid FROM pawl.idempotency_keys AS o
  WHERE o.created_at < now() - make_interval(days => 30) ORDER BY o.created_at LIMIT @most FOR UPDATE SKIP LOCKED
));
