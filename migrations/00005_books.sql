-- +goose Up

-- What people, reports and checks may read: views that stay as they are while
-- the tables below change. They speak of order_id; a filter on it uses an index.
CREATE SCHEMA books;

CREATE VIEW books.orders AS
SELECT o.order_id, o.status, o.amount, o.currency, o.item, o.quantity, o.generation, o.fence, o.seq,
       o.due_at, o.owner, o.hold, o.hold_reason, o.stop_requested, o.outcome,
       o.failure_step, o.failure_code, o.failure_detail, o.metadata, o.created_at, o.finished_at
FROM orders o;

CREATE VIEW books.transitions AS
SELECT o.order_id, t.seq, t.from_status, t.to_status, t.at, t.fence, t.verb,
       coalesce(t.actor, 'pawl') AS actor, t.reason, t.request_id
FROM orders o JOIN transitions t ON t.order_no = o.order_no;

CREATE VIEW books.charges AS
SELECT o.order_id, c.generation, c.amount, c.currency, c.created_at, c.refunded_at
FROM orders o JOIN charges c ON c.order_no = o.order_no;

CREATE VIEW books.refunds AS
SELECT o.order_id, r.generation, r.amount, r.currency, r.created_at
FROM orders o JOIN refunds r ON r.order_no = o.order_no;

-- state: held (counts in inventory.reserved), sold (its order is completed), released.
CREATE VIEW books.reservations AS
SELECT o.order_id, r.generation, r.item, r.quantity,
       CASE WHEN r.released_at IS NOT NULL THEN 'released'
            WHEN o.status = 'completed' THEN 'sold' ELSE 'held' END AS state,
       r.created_at, r.released_at
FROM orders o JOIN reservations r ON r.order_no = o.order_no;

CREATE VIEW books.inventory AS
SELECT i.item, i.on_hand, i.reserved, i.tracked,
       CASE WHEN i.tracked THEN i.on_hand - i.reserved END AS available
FROM inventory i;

-- The two views of a single table would take writes and pass them on.
-- +goose StatementBegin
CREATE FUNCTION books.refuse_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'books.% is for reading only', TG_TABLE_NAME USING ERRCODE = 'object_not_in_prerequisite_state';
END $$;
-- +goose StatementEnd

CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.orders
FOR EACH ROW EXECUTE FUNCTION books.refuse_write();
CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.inventory
FOR EACH ROW EXECUTE FUNCTION books.refuse_write();

-- +goose Down
DROP SCHEMA books CASCADE;
