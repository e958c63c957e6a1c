-- name: OrdersAdmit :many
-- Inserts the orders that do not exist yet, already charging and leased to this process, with their first history
-- row. Rows are inserted in the order of order_id; otherwise two replicas that admit the same orders could deadlock.
-- An order that is not returned existed, or was inserted meanwhile: read it. If it is not stored either, orders must
-- not be numbered now: see OrderNumberingRenew. If another transaction has inserted one of them and does not commit,
-- this one waits for at most 500 ms.
--
-- The commit does not wait for the disk: see order_moves.sql.
--
-- The first history row of an order names the order before it (previous_no): the one before it in the batch, or the
-- last one that this process admitted. So verify can tell a lost order from a number that a rollback skipped. If a
-- crash has lost that order, the row names the last order that this process saw end (ended_no), whose last commit
-- waited for the disk.
--
-- An Idempotency-Key commits with its order. keys is null if no request of the batch has one. An order whose key
-- exists is left out: the order is stored, or the key belongs to another request. All keys are inserted before the
-- first order, sorted by key, so that replicas can't deadlock. The fingerprint covers the order id, so it identifies
-- the order that a key belongs to.
--
-- Forgotten orders are left out with their keys. known is the newest batch of them that the process has learned from,
-- and suspects are the hashes of those ids that may be in the batches suspected: nearly none. If there is a newer batch,
-- all orders are left out, and the process learns from it before it tries again. (The zero uuid: no batch.)
WITH forgotten AS MATERIALIZED (
  SELECT h.id_hash FROM pawl.forgotten_batches AS b CROSS JOIN LATERAL unnest(b.id_hashes) AS h(id_hash)
  WHERE b.batch_no = ANY((SELECT @suspected::bigint[])::bigint[]) AND h.id_hash = ANY((SELECT @suspects::uuid[])::uuid[])
), incoming AS (
  SELECT x.order_id, x.amount, x.currency, x.item, x.quantity, x.metadata, x.submitted_by, x.principal, x.key, x.fingerprint
  FROM ROWS FROM (unnest(@order_ids::text[]), unnest(@amounts::text[]), unnest(@currencies::text[]),
                  unnest(@items::text[]), unnest(@quantities::integer[]), unnest(@metadata::text[]),
                  unnest(@submitted_by::text[]), unnest(@principals::text[]), unnest(@keys::text[]), unnest(@fingerprints::bytea[]))
    AS x(order_id, amount, currency, item, quantity, metadata, submitted_by, principal, key, fingerprint)
  WHERE EXISTS (SELECT FROM pawl.current_numbering AS n WHERE NOT n.relaxed OR set_config('synchronous_commit', 'off', true) <> '')
    AND coalesce((SELECT b.id FROM pawl.forgotten_batches AS b ORDER BY b.batch_no DESC LIMIT 1), '00000000-0000-0000-0000-000000000000') = @known::uuid
    AND (NOT EXISTS (SELECT FROM forgotten) OR pawl.order_id_hash(x.order_id) NOT IN (SELECT f.id_hash FROM forgotten AS f))
), kept AS (
  INSERT INTO pawl.idempotency_keys (principal, key, fingerprint)
  SELECT i.principal, i.key, i.fingerprint FROM incoming AS i
  WHERE i.key <> '' AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  ORDER BY i.key COLLATE "C", i.principal COLLATE "C"
  ON CONFLICT (key, principal) DO NOTHING
  RETURNING idempotency_keys.fingerprint
), admitted AS (
  INSERT INTO pawl.orders (order_id, status, fence, owner, due_at, amount, currency, item, quantity, metadata, submitted_by)
  SELECT i.order_id, 'charging', 1, @owner::uuid, clock_timestamp() + make_interval(secs => @lease_seconds::float8),
    i.amount::numeric, i.currency, i.item, i.quantity, nullif(i.metadata, '')::jsonb, nullif(i.submitted_by, '')
  FROM incoming AS i
  WHERE (coalesce(i.key, '') = '' OR i.fingerprint IN (SELECT k.fingerprint FROM kept AS k))
    AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  ORDER BY i.order_id COLLATE "C"
  ON CONFLICT (order_id) DO NOTHING
  RETURNING orders.order_no, orders.order_id, orders.created_at
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, id_hash, previous_no)
  SELECT a.order_no, 1, 'pending', 'charging', 1, hashtext(a.order_id),
    lag(a.order_no, 1,
      coalesce((SELECT p.order_no FROM pawl.orders AS p WHERE p.order_no = sqlc.narg('previous_no')::bigint),
        sqlc.narg('ended_no')::bigint)) OVER (ORDER BY a.order_no)
  FROM admitted AS a
)
SELECT a.order_no, a.order_id, a.created_at FROM admitted AS a;

-- name: OrdersAdmitOne :many
-- The same for one order without a key, without arrays and sort.
WITH admitted AS (
  INSERT INTO pawl.orders (order_id, status, fence, owner, due_at, amount, currency, item, quantity, metadata, submitted_by)
  SELECT @order_id::text, 'charging', 1, @owner::uuid, clock_timestamp() + make_interval(secs => @lease_seconds::float8),
    (@amount::text)::numeric, @currency::text, @item::text, @quantity::integer, nullif(@metadata::text, '')::jsonb,
    nullif(@submitted_by::text, '')
  WHERE set_config('lock_timeout', '500ms', true) <> ''
    AND EXISTS (SELECT FROM pawl.current_numbering AS n WHERE NOT n.relaxed OR set_config('synchronous_commit', 'off', true) <> '')
    AND coalesce((SELECT b.id FROM pawl.forgotten_batches AS b ORDER BY b.batch_no DESC LIMIT 1), '00000000-0000-0000-0000-000000000000') = @known::uuid
    AND (@suspected::bigint[] IS NULL
      OR (SELECT true FROM pawl.forgotten_batches AS b
        WHERE b.batch_no = ANY((SELECT @suspected::bigint[])::bigint[]) AND pawl.order_id_hash(@order_id::text) = ANY(b.id_hashes) LIMIT 1) IS NULL)
  ON CONFLICT (order_id) DO NOTHING
  RETURNING orders.order_no, orders.order_id, orders.created_at
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, id_hash, previous_no)
  SELECT a.order_no, 1, 'pending', 'charging', 1, hashtext(a.order_id),
    coalesce((SELECT p.order_no FROM pawl.orders AS p WHERE p.order_no = sqlc.narg('previous_no')::bigint), sqlc.narg('ended_no')::bigint)
  FROM admitted AS a
)
SELECT a.order_no, a.order_id, a.created_at FROM admitted AS a;

-- name: OrdersAdmitWithTerms :many
-- The same for orders with lines, a policy, a customer, times, a concurrency key, or a rule that requires approval. An order
-- that has to wait is inserted as pending, with the first hold that applies. The others start at once. With begins,
-- the same statement records the call of their charge. The commit waits for the disk, because a call may have begun, or a
-- caller is told what the order waits for; unless the orders have nothing but lines (waits is false).
WITH forgotten AS MATERIALIZED (
  SELECT h.id_hash FROM pawl.forgotten_batches AS b CROSS JOIN LATERAL unnest(b.id_hashes) AS h(id_hash)
  WHERE b.batch_no = ANY((SELECT @suspected::bigint[])::bigint[]) AND h.id_hash = ANY((SELECT @suspects::uuid[])::uuid[])
), incoming AS (
  SELECT x.*
  FROM ROWS FROM (unnest(@order_ids::text[]), unnest(@amounts::text[]), unnest(@currencies::text[]),
                  unnest(@items::text[]), unnest(@quantities::integer[]), unnest(@metadata::text[]),
                  unnest(@policies::integer[]), unnest(@customer_ids::text[]), unnest(@payment_methods::text[]),
                  unnest(@start_ats::timestamptz[]), unnest(@complete_bys::timestamptz[]), unnest(@complete_seconds::float8[]),
                  unnest(@ttl_seconds::float8[]), unnest(@concurrency_keys::text[]),
                  unnest(@approvals::boolean[]), unnest(@approval_reasons::text[]), unnest(@approval_seconds::float8[]),
                  unnest(@lines::text[]), unnest(@submitted_by::text[]), unnest(@principals::text[]), unnest(@keys::text[]), unnest(@fingerprints::bytea[]),
                  unnest(@routes::text[]))
    AS x(order_id, amount, currency, item, quantity, metadata, policy, customer_id, payment_method,
         start_at, complete_by, complete_seconds, ttl_seconds, concurrency_key, approval, approval_reason, approval_seconds,
         lines, submitted_by, principal, key, fingerprint, route)
  WHERE EXISTS (SELECT FROM pawl.current_numbering AS n
    WHERE @waits::boolean OR NOT n.relaxed OR set_config('synchronous_commit', 'off', true) <> '')
    AND coalesce((SELECT b.id FROM pawl.forgotten_batches AS b ORDER BY b.batch_no DESC LIMIT 1), '00000000-0000-0000-0000-000000000000') = @known::uuid
    AND (NOT EXISTS (SELECT FROM forgotten) OR pawl.order_id_hash(x.order_id) NOT IN (SELECT f.id_hash FROM forgotten AS f))
), judged AS (
  SELECT i.*, CASE WHEN i.start_at > now() THEN 'scheduled' WHEN i.approval THEN 'approval'
    WHEN i.concurrency_key <> '' THEN 'queued' END AS hold
  FROM incoming AS i
), kept AS (
  INSERT INTO pawl.idempotency_keys (principal, key, fingerprint)
  SELECT i.principal, i.key, i.fingerprint FROM incoming AS i
  WHERE i.key <> '' AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  ORDER BY i.key COLLATE "C", i.principal COLLATE "C"
  ON CONFLICT (key, principal) DO NOTHING
  RETURNING idempotency_keys.fingerprint
), admitted AS (
  INSERT INTO pawl.orders (order_id, status, fence, owner, due_at, hold, hold_reason, amount, currency, item, quantity, metadata, submitted_by,
    policy, customer_id, payment_method, start_at, complete_by, reservation_ttl, concurrency_key, approval_until,
    lines, route, calls, retry_window_started_at, in_doubt_since)
  SELECT j.order_id, CASE WHEN j.hold IS NULL THEN 'charging' ELSE 'pending' END,
    CASE WHEN j.hold IS NULL THEN 1 ELSE 0 END, CASE WHEN j.hold IS NULL THEN @owner::uuid END,
    CASE j.hold WHEN 'scheduled' THEN j.start_at WHEN 'queued' THEN NULL
      WHEN 'approval' THEN CASE WHEN j.approval_seconds > 0 THEN now() + make_interval(secs => j.approval_seconds) END
      ELSE clock_timestamp() + make_interval(secs => @lease_seconds::float8) END,
    j.hold, CASE WHEN j.hold = 'approval' THEN nullif(j.approval_reason, '') END, j.amount::numeric, j.currency, j.item, j.quantity, nullif(j.metadata, '')::jsonb, nullif(j.submitted_by, ''),
    nullif(j.policy, 0), nullif(j.customer_id, ''), nullif(j.payment_method, ''), nullif(j.start_at, '0001-01-01 00:00:00+00'),
    coalesce(nullif(j.complete_by, '0001-01-01 00:00:00+00'), now() + make_interval(secs => nullif(j.complete_seconds, 0))),
    nullif(j.ttl_seconds, 0), nullif(j.concurrency_key, ''),
    CASE WHEN j.hold = 'approval' THEN
      CASE WHEN j.approval_seconds > 0 THEN now() + make_interval(secs => j.approval_seconds) ELSE '9999-01-01 00:00:00+00' END END,
    nullif(j.lines, '')::json, nullif(j.route, ''), CASE WHEN j.hold IS NULL AND @begins::boolean THEN 1 END,
    CASE WHEN j.hold IS NULL AND @begins::boolean THEN now() END, CASE WHEN j.hold IS NULL AND @begins::boolean THEN now() END
  FROM judged AS j WHERE (SELECT set_config('lock_timeout', '500ms', true)) <> ''
    AND (coalesce(j.key, '') = '' OR j.fingerprint IN (SELECT k.fingerprint FROM kept AS k))
  ORDER BY j.order_id COLLATE "C"
  ON CONFLICT (order_id) DO NOTHING
  RETURNING orders.*
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, reason, id_hash, previous_no)
  SELECT a.order_no, 1, CASE WHEN a.hold IS NULL THEN 'pending' END, a.status, a.fence, a.hold, a.hold_reason, hashtext(a.order_id),
    lag(a.order_no, 1,
      coalesce((SELECT p.order_no FROM pawl.orders AS p WHERE p.order_no = sqlc.narg('previous_no')::bigint),
        sqlc.narg('ended_no')::bigint)) OVER (ORDER BY a.order_no)
  FROM admitted AS a
), begun AS (
  INSERT INTO pawl.step_calls (order_no, call, fence, generation, policy, step, operation, route)
  SELECT a.order_no, 1, a.fence, 0, a.policy, 'charge', 'do', a.route FROM admitted AS a WHERE a.calls IS NOT NULL
)
SELECT sqlc.embed(written_orders) FROM (SELECT w.*, e.* FROM admitted AS w, pawl.no_effects AS e) AS written_orders;

-- name: OrderNumberingRenew :one
-- Lets orders be admitted again after a crash, a failover or a restart: the next number is beyond all numbers that
-- can have been lost, if those are fewer than skipped. The random part is for a standby that also lacks a renewal.
-- The second of two concurrent renewals waits for the first, and changes nothing. The commit waits for the disk even
-- if the settings do not demand it: after a lost renewal, the next one would give the same numbers. No row: the
-- database has been divided, and this is a replica of the former cell.
WITH here AS (
  SELECT pg_postmaster_start_time() AS server_started_at, pg_relation_filenode(c.oid) AS filenode, c.relpersistence = 'u' AS relaxed, @skipped::bigint AS skipped
  FROM pg_catalog.pg_class AS c, pawl.installation AS i WHERE c.oid = 'pawl.order_numbering'::regclass AND i.cell = @cell::text
), renewed AS (
  INSERT INTO pawl.order_numbering AS n (server_started_at, filenode, relaxed)
  SELECT h.server_started_at, h.filenode, h.relaxed FROM here AS h
  WHERE (SELECT set_config('lock_timeout', '500ms', true)
    || set_config('synchronous_commit', CASE s.setting WHEN 'off' THEN 'local' ELSE s.setting END, true)
    FROM current_setting('synchronous_commit') AS s(setting)) <> ''
  ON CONFLICT (singleton) DO UPDATE SET (server_started_at, filenode, relaxed) = (excluded.server_started_at, excluded.filenode, excluded.relaxed)
    WHERE (n.server_started_at, n.filenode) <> (excluded.server_started_at, excluded.filenode)
  RETURNING n.singleton
), moved AS (
  SELECT setval('pawl.orders_order_no_seq', greatest(nextval('pawl.orders_order_no_seq'), (SELECT max(o.order_no) FROM pawl.orders AS o))
    + h.skipped + (random() * h.skipped)::bigint) AS last_no
  FROM renewed AS r, here AS h
)
SELECT h.relaxed::boolean AS relaxed, ((SELECT m.last_no FROM moved AS m) IS NOT NULL)::boolean AS renewed FROM here AS h;

-- name: OrdersByID :many
-- Orders as they are, with what stands and what was undone of their generation.
--
-- A row can be seen that only this server has: when its commit waited for a synchronous standby and something
-- ended the wait, or the server came back from a crash. What callers are told must not rest on such a row, so a
-- durable read writes a record of its own, in the same transaction, and its commit is waited for as the settings
-- demand. The log is kept in order: a server with the later record has the earlier commit, too. The condition stands by
-- itself, so the record is written even if there is no such order.
SELECT o.* FROM pawl.full_orders AS o
WHERE o.order_id = ANY((SELECT @order_ids::text[])::text[])
  AND (NOT @durable::boolean OR (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL);

-- name: OrdersByNo :many
-- The same by number.
SELECT o.* FROM pawl.full_orders AS o
WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[])
  AND (NOT @durable::boolean OR (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL);

-- name: OrdersWatched :many
-- Returns what callers wait for, of orders that other replicas drive.
SELECT o.order_no, o.owner, o.seq, (o.ended_as IS NOT NULL)::boolean AS final,
  (o.ended_as IS NOT NULL OR coalesce(o.hold IN ('approval', 'paused', 'attention'), false))::boolean AS ended,
  coalesce(o.due_at <= now(), false)::boolean AS due, (o.hold IS NOT NULL)::boolean AS held
FROM pawl.orders AS o WHERE o.order_no = ANY((SELECT @order_nos::bigint[])::bigint[]);

-- name: OrdersLast :one
-- Returns the number of the newest order of any replica, or 0.
SELECT coalesce(max(o.order_no), 0)::bigint AS order_no FROM pawl.orders AS o;
