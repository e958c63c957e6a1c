-- Idempotency keys, which identify repeated requests. The statements that admit orders store the keys of new ones.

-- name: IdempotencyKeyKeep :many
-- Stores the key of a request for an existing order, and returns the fingerprint that is stored: that of this
-- request, unless the key belongs to another one. No row: another request is storing the key at this moment, or a
-- crash has lost the order. Durable, as OrdersByID. (The condition on set_config is always true. It sets
-- lock_timeout.)
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
-- Returns the fingerprints of these keys, by principal. Durable, as OrdersByID.
SELECT k.key, k.principal, k.fingerprint FROM pawl.idempotency_keys AS k
WHERE k.key = ANY((SELECT @keys::text[])::text[])
  AND (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL;

-- name: IdempotencyKeysPurge :execrows
-- Deletes some of the expired keys. Replicas that do so at the same time skip each other's rows. The rows are locked,
-- so their ctid does not change. A join, planned for few rows, would compare each with all keys.
DELETE FROM pawl.idempotency_keys AS k WHERE k.ctid = ANY(ARRAY(
  SELECT o.ctid FROM pawl.idempotency_keys AS o
  WHERE o.created_at < now() - make_interval(days => 30) ORDER BY o.created_at LIMIT @most FOR UPDATE SKIP LOCKED
));
