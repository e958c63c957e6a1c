-- The books for a comparison with those of a provider.

-- name: ProviderClock :one
-- Orders that ended before now no longer change, unless they are retried.
SELECT now()::timestamptz AS at;

-- name: ProviderKeys :many
-- Lists the keys that were sent to providers, and what the books say about each. settled: the order had ended before
-- the provider's books were read, and no late undo has changed it since. If the order switched to a policy whose
-- ledger did the step, the key counts as absent: the provider did not do it. counted: a charge is in the figures of money.
-- voided: what was given up of an authorization that is not captured as a whole; empty: it is no such; asked: what was
-- asked of it may not be there yet. lost: in disputes of a charge that stands; empty: nothing.
SELECT k.order_no, k.step, k.generation, ''::text AS operation_id, k.policy, k.route, o.order_id, o.status, o.amount, o.currency,
  (o.in_doubt_since IS NOT NULL)::boolean AS in_doubt, coalesce(o.hold, '') AS hold,
  coalesce(o.finished_at <= @before::timestamptz AND o.ended_as IS NOT NULL AND NOT EXISTS (
    SELECT FROM pawl.late_undos AS u WHERE u.order_no = k.order_no
      AND (u.finished_at IS NULL OR u.finished_at > @before)), false)::boolean AS settled,
  CASE k.step
    WHEN 'charge' THEN CASE WHEN c.order_no IS NULL THEN 'absent' WHEN c.refunded_at IS NULL THEN 'stands' ELSE 'undone' END
    WHEN 'reserve' THEN CASE WHEN r.order_no IS NULL THEN 'absent' WHEN r.released_at IS NULL THEN 'stands' ELSE 'undone' END
    ELSE CASE WHEN f.order_no IS NULL THEN 'absent' ELSE 'stands' END END::text AS effect,
  coalesce(c.reference, r.reference, f.reference, '')::text AS reference, coalesce(NOT c.in_doubt, c.order_no IS NOT NULL)::boolean AS counted,
  CASE WHEN c.capture IS NOT NULL AND c.captured_at IS NULL AND c.refunded_at IS NULL THEN coalesce((
    SELECT CASE WHEN bool_and(coalesce(w.finished_at <= @before, false)) IS NOT FALSE THEN
      coalesce(sum(CASE WHEN w.kind = 'void' THEN w.amount ELSE w.voided END::numeric) FILTER (WHERE w.state = 'done'), 0) END
    FROM pawl.charge_operations AS w WHERE w.order_no = c.order_no AND w.generation = c.generation)::text, 'asked') ELSE '' END::text AS voided,
  coalesce(CASE WHEN o.disputes > 0 AND c.order_no IS NOT NULL AND c.refunded_at IS NULL THEN (
    SELECT sum(d.amount::numeric) FROM pawl.disputes AS d WHERE d.order_no = o.order_no AND d.state = 'lost') END::text, '')::text AS lost
FROM (
  SELECT a.order_no, a.step, a.generation, coalesce(max(a.policy), 0)::integer AS policy, coalesce(max(a.route), '')::text AS route FROM pawl.step_calls AS a
  WHERE a.order_no BETWEEN @first AND @last AND a.operation = 'do' GROUP BY a.order_no, a.step, a.generation
) AS k
JOIN (SELECT * FROM pawl.orders AS p WHERE p.order_no BETWEEN @first AND @last) AS o ON o.order_no = k.order_no
LEFT JOIN (SELECT * FROM pawl.charges AS d WHERE d.order_no BETWEEN @first AND @last AND d.executor <> '') AS c
  ON k.step = 'charge' AND c.order_no = k.order_no AND c.generation = k.generation
LEFT JOIN (SELECT * FROM pawl.reservations AS s WHERE s.order_no BETWEEN @first AND @last AND s.executor <> '' AND s.line = 1) AS r
  ON k.step = 'reserve' AND r.order_no = k.order_no AND r.generation = k.generation
LEFT JOIN (SELECT * FROM pawl.confirmations AS g WHERE g.order_no BETWEEN @first AND @last AND g.executor <> '') AS f
  ON k.step = 'confirm' AND f.order_no = k.order_no AND f.generation = k.generation
ORDER BY k.order_no, k.generation, k.step;

-- name: ProviderChargeOperations :many
-- The same for the keys of charge operations. One is settled when a call for it was answered as done or failed. The
-- provider did not do a void after the authorization had ended.
SELECT f.order_no, (f.kind || ' ' || f.number)::text AS step, f.generation, coalesce(f.request_id, '')::text AS operation_id,
  k.policy, coalesce(o.route, '')::text AS route, o.order_id, o.status, f.amount, f.currency::text AS currency,
  (f.state = 'in_doubt')::boolean AS in_doubt, ''::text AS hold,
  coalesce(f.finished_at <= @before::timestamptz AND f.state IN ('done', 'failed'), false)::boolean AS settled,
  CASE WHEN f.state = 'done' AND f.code IS DISTINCT FROM 'authorization_expired' THEN 'stands' ELSE 'absent' END::text AS effect, coalesce(f.reference, '')::text AS reference,
  true AS counted, ''::text AS voided, ''::text AS lost
FROM (
  SELECT a.order_no, a.generation, a.charge_operation, coalesce(max(a.policy), 0)::integer AS policy FROM pawl.step_calls AS a
  WHERE a.order_no BETWEEN @first AND @last AND a.operation IN ('refund', 'capture', 'void') GROUP BY a.order_no, a.generation, a.charge_operation
) AS k
JOIN (SELECT * FROM pawl.orders AS p WHERE p.order_no BETWEEN @first AND @last) AS o ON o.order_no = k.order_no
JOIN (SELECT * FROM pawl.charge_operations AS r WHERE r.order_no BETWEEN @first AND @last) AS f
  ON f.order_no = k.order_no AND f.generation = k.generation AND f.number = k.charge_operation
ORDER BY f.order_no, f.generation, f.number;
