-- name: DemoBooks :one
-- Returns totals of the demo's books that must match its provider, in one snapshot. It reads all rows; there are not
-- many.
SELECT o.unfinished, c.charges, r.reservations, k.confirmations, f.refunds, (c.charged - f.refunded)::text AS kept
FROM (SELECT count(*) AS unfinished FROM pawl.orders AS p WHERE p.finished_at IS NULL) AS o,
  (SELECT count(*) AS charges, coalesce(sum(a.amount::numeric), 0) AS charged FROM pawl.charges AS a
   WHERE a.refunded_at IS NULL AND a.currency = @currency) AS c,
  (SELECT count(*) AS reservations FROM pawl.reservations AS b WHERE b.released_at IS NULL AND b.line = 1) AS r,
  (SELECT count(*) AS confirmations FROM pawl.confirmations AS d) AS k,
  (SELECT count(*) AS refunds, coalesce(sum(e.amount::numeric), 0) AS refunded FROM pawl.charge_operations AS e
   WHERE e.number > 0 AND e.kind = 'refund' AND e.state = 'done' AND e.currency = @currency) AS f;
