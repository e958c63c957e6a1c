-- Disputes of charges: facts that come in. They move nothing, but raise the seq of their order, which shows them.

-- name: DisputeRecord :many
-- Records what has become of a dispute, if the seq of its order has not changed. The same state of the same dispute is
-- recorded once: a second row is rejected by the primary key. A condition on set_config is always true.
WITH touched AS (
  UPDATE pawl.orders AS o SET seq = o.seq + 1, disputes = coalesce(o.disputes, 0) + 1
  WHERE o.order_no = @order_no AND o.seq = @seq AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  RETURNING o.*
), recorded AS (
  INSERT INTO pawl.disputes (order_no, reference, state, amount, currency, reason, charge, at)
  SELECT k.order_no, @reference::text, @state::text, sqlc.arg('amount')::pawl.money_amount, k.currency, sqlc.narg('reason')::text,
    sqlc.narg('charge')::text, coalesce(sqlc.narg('at')::timestamptz, now())
  FROM touched AS k
), history AS (
  INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence, verb, actor, on_behalf_of, reason, request_id, fingerprint)
  SELECT k.order_no, k.seq, k.status, k.status, k.fence, @verb::text, @actor::text, sqlc.narg('on_behalf_of')::text, sqlc.narg('reason')::text,
    sqlc.narg('request_id')::text, sqlc.narg('fingerprint')::bytea FROM touched AS k
)
SELECT sqlc.embed(written_orders) FROM (SELECT w.*, e.* FROM touched AS w, pawl.no_effects AS e) AS written_orders;

-- name: OrdersOfCharge :many
-- Returns the orders whose charge has a reference at a provider.
SELECT DISTINCT o.order_id, o.policy, o.currency FROM pawl.charges AS c JOIN pawl.orders AS o ON o.order_no = c.order_no
WHERE c.reference IS NOT NULL AND c.reference = @reference::text AND c.executor = @executor::text LIMIT 2;

-- name: ChargesUnderWay :one
-- Reports whether an order that was placed before a time is being charged at a provider, or waits while it is. Nobody else
-- knows the reference of such a charge.
SELECT (EXISTS (SELECT FROM pawl.orders AS o
    WHERE o.due_at IS NOT NULL AND o.status = 'charging' AND o.policy IS NOT NULL AND o.created_at < @before::timestamptz)
  OR EXISTS (SELECT FROM pawl.orders AS o
    WHERE o.hold IS NOT NULL AND o.status = 'charging' AND o.policy IS NOT NULL AND o.created_at < @before::timestamptz))::boolean;

-- name: DisputesOpen :many
-- Counts the disputes that were neither won nor lost, up to a number, and adds them up, by currency.
SELECT open.currency, count(*) AS disputes, sum(open.amount)::text AS amount FROM (
  SELECT d.currency, d.amount FROM pawl.disputes AS d WHERE d.state = 'opened' AND NOT EXISTS (
    SELECT 1 FROM pawl.disputes AS e WHERE e.order_no = d.order_no AND e.reference = d.reference AND e.state IN ('won', 'lost')) LIMIT @most) AS open
GROUP BY open.currency ORDER BY open.currency;
