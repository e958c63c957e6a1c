-- +goose Up
-- What an undo says is to be taken back, by the provider's own name for it. The first one
-- fixes it for all: their bodies must be the same.
ALTER TABLE pawl.step_calls ADD COLUMN undo_reference text;

-- What a late report calls the effect. Where another answer came before it, it is kept
-- nowhere else.
ALTER TABLE pawl.late_undos ADD COLUMN reference text;

CREATE OR REPLACE VIEW books.late_undos AS
SELECT o.order_id::text, u.step, u.generation, u.reason, u.claims, u.due_at, u.created_at, u.finished_at, u.code, u.detail,
       u.reference
FROM pawl.orders o JOIN pawl.late_undos u ON u.order_no = o.order_no;

-- +goose Down
DROP VIEW books.late_undos;
CREATE VIEW books.late_undos AS
SELECT o.order_id::text, u.step, u.generation, u.reason, u.claims, u.due_at, u.created_at, u.finished_at, u.code, u.detail
FROM pawl.orders o JOIN pawl.late_undos u ON u.order_no = o.order_no;
ALTER TABLE pawl.late_undos DROP COLUMN reference;
ALTER TABLE pawl.step_calls DROP COLUMN undo_reference;
