-- Forgotten orders. The statements that admit orders leave them out.

-- name: OrdersMarkForgotten :one
-- Marks the next orders that can be forgotten. after_last: no later order is old enough.
SELECT coalesce(m.last, 0)::bigint AS last, (m.last IS NULL)::boolean AS after_last, coalesce(m.marked, 0)::integer AS marked,
  coalesce(m.open_for, -1)::float8 AS open_for, coalesce(m.open_archive, false)::boolean AS open_archive
FROM pawl.mark_forgotten(@after::bigint, @looks::integer, make_interval(secs => @older_seconds::float8), @archive::boolean) AS m;

-- name: OrdersRemoveForgotten :one
-- Removes the orders that an earlier statement marked. archived: the id of the batch; null: it is one of the service.
SELECT coalesce(r.removed, 0)::integer AS removed, coalesce(r.waiting, false)::boolean AS waiting FROM pawl.remove_forgotten(sqlc.narg('archived')::uuid) AS r;

-- name: OrdersForgotten :many
-- Returns those of some ids whose orders were forgotten in these batches, with what is left of them. erased: the customer
-- in the input is a pseudonym.
WITH i AS MATERIALIZED (
  SELECT n.order_id, pawl.order_id_hash(n.order_id) AS id_hash FROM unnest(@order_ids::text[]) AS n(order_id)
)
SELECT i.order_id::text AS order_id, s.status, s.currency, s.placed_on::text AS placed_on, f.created_at::timestamptz AS created_at,
  f.seq::integer AS seq, f.generation::integer AS generation, coalesce(f.refunded::text, '')::text AS refunded,
  coalesce(f.voided::text, '')::text AS voided, f.input::bytea AS input, f.erased::boolean AS erased
FROM i JOIN pawl.forgotten_orders AS f ON f.id_hash = i.id_hash JOIN pawl.forgotten_sums AS s ON s.sum_no = f.sum_no
WHERE f.batch_no = ANY((SELECT @batch_nos::bigint[])::bigint[]) AND NOT EXISTS (SELECT FROM pawl.orders AS o WHERE o.order_id = i.order_id);

-- name: InputHash :one
-- Returns the hash of a request, as it is stored with a forgotten order.
SELECT pawl.input_hash(@order_id::text, (@amount::text)::numeric, @item::text, @quantity::integer, nullif(@lines::text, '')::json, @customer_id::text,
  ARRAY[@payment_method::text], nullif(@start_at::timestamptz, '0001-01-01 00:00:00+00'), nullif(@complete_by::timestamptz, '0001-01-01 00:00:00+00'),
  nullif(@ttl_seconds::float8, 0), @concurrency_key::text, @submitted_by::text)::bytea AS input;

-- name: ForgottenBatchOpen :one
-- Returns the batch that an archive has marked and not removed yet. No row: there is none.
SELECT b.batch_no, b.id, pawl.numbers_in(b.order_nos)::bigint[] AS order_nos FROM pawl.forgotten_batches AS b WHERE b.removed_at IS NULL AND b.archive;

-- name: ArchiveLock :one
-- Locks out other archives until the transaction ends. held: no other one has the lock. A transaction that has it may
-- take it again.
SELECT pg_try_advisory_xact_lock(hashtextextended('pawl archive', 0))::boolean AS held;

-- name: ForgottenBatchesAfter :many
-- Returns the batches after one that is known. If that is not there, an older state of the database was restored: then
-- all.
SELECT b.batch_no, b.id, b.id_hashes FROM pawl.forgotten_batches AS b
WHERE b.batch_no > coalesce((SELECT k.batch_no FROM pawl.forgotten_batches AS k WHERE k.batch_no = @batch_no AND k.id = @known::uuid), 0)
ORDER BY b.batch_no LIMIT @most;
