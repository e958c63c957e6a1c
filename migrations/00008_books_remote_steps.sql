-- +goose Up

-- The views show what came to the tables; columns are only added, at the end.
CREATE OR REPLACE VIEW books.orders AS
SELECT o.order_id::text, o.status::text, o.amount::numeric, o.currency::text, o.item::text, o.quantity::integer,
       o.generation, o.fence, o.seq, o.due_at::timestamptz, o.owner, o.hold::text, o.hold_reason, o.stop_requested::text,
       o.outcome::text, o.failure_step::text, o.failure_code, o.failure_detail, o.metadata,
       o.created_at::timestamptz, o.finished_at::timestamptz,
       o.policy, o.customer_id, coalesce(o.calls, 0) AS calls, coalesce(o.retries, 0) AS retries, o.in_doubt_since,
       o.start_at, o.complete_by, o.reserved_until, o.approval_until, o.approved_at, o.concurrency_key, o.submitted_by
FROM pawl.orders o;

CREATE OR REPLACE VIEW books.charges AS
SELECT o.order_id::text, c.generation, c.amount::numeric, c.currency, c.created_at, c.refunded_at,
       coalesce(c.executor, 'ledger') AS executor, c.reference, coalesce(c.in_doubt, false) AS in_doubt,
       CASE WHEN c.capture = 'on_confirm' THEN c.captured_at ELSE c.created_at END AS captured_at
FROM pawl.orders o JOIN pawl.charges c ON c.order_no = o.order_no;

CREATE OR REPLACE VIEW books.refunds AS
SELECT o.order_id::text, r.generation, r.amount::numeric, r.currency, r.created_at, r.reference
FROM pawl.orders o JOIN pawl.refunds r ON r.order_no = o.order_no;

CREATE OR REPLACE VIEW books.reservations AS
SELECT o.order_id::text, r.generation, r.item, r.quantity::integer,
       CASE WHEN r.released_at IS NOT NULL THEN 'released'
            WHEN o.status = 'completed' THEN 'sold' ELSE 'held' END AS state,
       r.created_at, r.released_at,
       coalesce(r.executor, 'ledger') AS executor, r.reference, coalesce(r.in_doubt, false) AS in_doubt
FROM pawl.orders o JOIN pawl.reservations r ON r.order_no = o.order_no;

CREATE VIEW books.step_calls AS
SELECT o.order_id::text, a.step, a.generation, a.call, a.operation, a.fence, a.policy, a.started_at, a.finished_at,
       a.outcome, a.code, a.detail, a.reference, coalesce(a.fenced, false) AS fenced
FROM pawl.orders o JOIN pawl.step_calls a ON a.order_no = o.order_no;

CREATE VIEW books.late_undos AS
SELECT o.order_id::text, u.step, u.generation, u.reason, u.claims, u.due_at, u.created_at, u.finished_at, u.code, u.detail
FROM pawl.orders o JOIN pawl.late_undos u ON u.order_no = o.order_no;

-- +goose Down
DROP VIEW books.late_undos, books.step_calls, books.reservations, books.refunds, books.charges, books.orders;

CREATE VIEW books.orders AS
SELECT o.order_id::text, o.status::text, o.amount::numeric, o.currency::text, o.item::text, o.quantity::integer,
       o.generation, o.fence, o.seq, o.due_at::timestamptz, o.owner, o.hold::text, o.hold_reason, o.stop_requested::text,
       o.outcome::text, o.failure_step::text, o.failure_code, o.failure_detail, o.metadata,
       o.created_at::timestamptz, o.finished_at::timestamptz
FROM pawl.orders o;
CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.orders
FOR EACH ROW EXECUTE FUNCTION books.refuse_write();

CREATE VIEW books.charges AS
SELECT o.order_id::text, c.generation, c.amount::numeric, c.currency, c.created_at, c.refunded_at
FROM pawl.orders o JOIN pawl.charges c ON c.order_no = o.order_no;

CREATE VIEW books.refunds AS
SELECT o.order_id::text, r.generation, r.amount::numeric, r.currency, r.created_at
FROM pawl.orders o JOIN pawl.refunds r ON r.order_no = o.order_no;

CREATE VIEW books.reservations AS
SELECT o.order_id::text, r.generation, r.item, r.quantity::integer,
       CASE WHEN r.released_at IS NOT NULL THEN 'released'
            WHEN o.status = 'completed' THEN 'sold' ELSE 'held' END AS state,
       r.created_at, r.released_at
FROM pawl.orders o JOIN pawl.reservations r ON r.order_no = o.order_no;
