-- +goose Up

-- The outcome goes first: a list of an item's failed orders would read all its canceled
-- ones otherwise. Orders that end so are few, so the index is made within the transaction.
DROP INDEX pawl.orders_ended_item;
CREATE INDEX orders_ended_item ON pawl.orders (ended_as, item, order_no) WHERE ended_as IN ('failed', 'canceled');

-- +goose Down
DROP INDEX pawl.orders_ended_item;
CREATE INDEX orders_ended_item ON pawl.orders (item, order_no) WHERE ended_as IN ('failed', 'canceled');
