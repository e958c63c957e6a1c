-- +goose Up

-- What people, reports and checks may read: views that stay as they are while
-- the tables below change. They speak of order_id; a filter on it uses an index.
CREATE SCHEMA books;

CREATE VIEW books.orders AS
SELECT o.order_id::text, o.status::text, o.amount::numeric, o.currency::text, o.item::text, o.quantity::integer,
       o.generation, o.fence, o.seq, o.due_at::timestamptz, o.owner, o.hold::text, o.hold_reason, o.stop_requested::text,
       o.outcome::text, o.failure_step::text, o.failure_code, o.failure_detail, o.metadata,
       o.created_at::timestamptz, o.finished_at::timestamptz
FROM pawl.orders o;

CREATE VIEW books.transitions AS
SELECT o.order_id::text, t.seq, t.from_status, t.to_status, t.at, t.fence, t.verb,
       coalesce(t.actor, 'system') AS actor, t.reason, t.request_id,
       CASE WHEN t.payment_method IS NOT NULL THEN 'changed' END AS payment_method, t.on_behalf_of
FROM pawl.orders o JOIN pawl.transitions t ON t.order_no = o.order_no;

CREATE VIEW books.charges AS
SELECT o.order_id::text, c.generation, c.amount::numeric, c.currency, c.created_at, c.refunded_at
FROM pawl.orders o JOIN pawl.charges c ON c.order_no = o.order_no;

CREATE VIEW books.refunds AS
SELECT o.order_id::text, r.generation, r.amount::numeric, r.currency, r.created_at
FROM pawl.orders o JOIN pawl.refunds r ON r.order_no = o.order_no;

-- state: held (counts in inventory.reserved), sold (its order is completed), released.
CREATE VIEW books.reservations AS
SELECT o.order_id::text, r.generation, r.item, r.quantity::integer,
       CASE WHEN r.released_at IS NOT NULL THEN 'released'
            WHEN o.status = 'completed' THEN 'sold' ELSE 'held' END AS state,
       r.created_at, r.released_at
FROM pawl.orders o JOIN pawl.reservations r ON r.order_no = o.order_no;

CREATE VIEW books.inventory AS
SELECT i.item, i.on_hand::bigint, i.reserved::bigint, i.tracked,
       CASE WHEN i.tracked THEN i.on_hand - i.reserved END AS available
FROM pawl.inventory i;

-- The two views of a single table would take writes and pass them on.
-- +goose StatementBegin
CREATE FUNCTION books.refuse_write() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
