-- +goose Up

-- An order as the service reads it: its row, with what stands and what was undone of its generation.
CREATE VIEW pawl.full_orders AS
SELECT o.*, c.created_at AS charged_at, c.refunded_at, r.created_at AS reserved_at, r.released_at,
  c.reference AS charge_reference, r.reference AS reserve_reference, c.in_doubt AS charge_in_doubt, r.in_doubt AS reserve_in_doubt
FROM pawl.orders AS o
LEFT JOIN pawl.charges AS c ON c.order_no = o.order_no AND c.generation = o.generation
LEFT JOIN pawl.reservations AS r ON r.order_no = o.order_no AND r.generation = o.generation;

-- The same columns where no effect is read: a statement that writes orders adds them to the rows it returns.
CREATE VIEW pawl.no_effects AS
SELECT NULL::timestamptz AS charged_at, NULL::timestamptz AS refunded_at, NULL::timestamptz AS reserved_at, NULL::timestamptz AS released_at,
  NULL::text AS charge_reference, NULL::text AS reserve_reference, NULL::boolean AS charge_in_doubt, NULL::boolean AS reserve_in_doubt;

-- +goose Down
DROP VIEW pawl.no_effects, pawl.full_orders;
