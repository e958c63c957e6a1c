-- Erasures of customers.

-- name: CustomerErase :one
-- Erases the next orders of a customer, for the request with this id. erasure: its number; 0: nothing was done, because
-- the customer has no orders, or open ones. Durable, as OrdersByID, because a repeated request writes nothing.
SELECT coalesce(r.erasure, 0)::integer AS erasure, coalesce(r.finished, false)::boolean AS finished, coalesce(r.reused, false)::boolean AS reused,
  r.open::text[] AS open
FROM pawl.erase_customer(@customer_id::text, @actor::text, sqlc.narg('on_behalf_of')::text, @reason::text, @request_id::text, @most::integer) AS r
WHERE (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL;

-- name: Erasures :many
-- Returns the erasures before a number, newest first.
SELECT e.number, e.orders, e.requested_at, e.finished_at, e.actor, e.on_behalf_of, e.reason, e.request_id, e.pseudonym,
  coalesce(e.sent::text, '')::text AS sent
FROM pawl.erasures AS e WHERE e.number < @before ORDER BY e.number DESC LIMIT @most;
