-- +goose Up

-- Verifications of the books. One that is under way raises seen_at; if it stops doing so, its process has ended.
CREATE TABLE pawl.verifications (
  started_at  timestamptz NOT NULL DEFAULT now(),
  seen_at     timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz,
  number      bigint GENERATED ALWAYS AS IDENTITY,
  done        bigint NOT NULL DEFAULT 0, -- orders and items
  total       bigint NOT NULL DEFAULT 0,
  started_by  text NOT NULL,
  wrong       text[],                    -- the checks that failed
  compared    text[],                    -- with which providers, such as charge=https://pay.example; NULL: with none
  differ      text[],                    -- those of them whose books differ
  others      bigint[],                  -- of each of compared: how many effects there are not Pawl's
  report      json,                      -- NULL: not finished, or it could not read everything
  failure     text,                      -- why it could not read everything
  CONSTRAINT verifications_pkey PRIMARY KEY (number)
);

-- The comparisons with providers that are the newest with some, and with which. A comparison of a step covers each of its
-- routes.
CREATE VIEW pawl.newest_comparisons AS
SELECT v.number, array_agg(p.provider ORDER BY p.provider) AS providers
FROM pawl.verifications AS v CROSS JOIN unnest(v.compared) AS p(provider)
WHERE NOT EXISTS (SELECT FROM pawl.verifications AS n
  WHERE n.number > v.number AND (p.provider = ANY(n.compared) OR regexp_replace(p.provider, '^charge/[^=]*=', 'charge=') = ANY(n.compared)))
GROUP BY v.number;

-- Views for people, reports and checks. They stay the same while the tables below change. They use order_id; a filter
-- on it uses an index.
CREATE SCHEMA books;

-- refunded: by an undo or on request. kept: captured, and neither refunded nor lost in a dispute; an authorization
-- captures nothing. Summed over all orders and books.forgotten, these are the totals of `pawl verify`.
CREATE VIEW books.orders AS
SELECT o.order_id::text, o.status::text, o.amount::numeric, o.currency::text, nullif(o.item, '')::text AS item, CASE WHEN o.lines IS NULL THEN o.quantity END::integer AS quantity,
       o.generation, o.fence, o.seq, o.due_at::timestamptz, o.owner, o.hold::text, o.hold_reason, o.stop_requested::text,
       o.outcome::text, o.failure_step::text, o.failure_code, o.failure_detail, o.metadata,
       o.created_at::timestamptz, o.finished_at::timestamptz,
       o.policy, o.customer_id, coalesce(o.calls, 0) AS calls, coalesce(o.retries, 0) AS retries, o.in_doubt_since,
       o.start_at, o.complete_by, o.reserved_until, o.approval_until, o.approved_at, o.concurrency_key, o.submitted_by,
       o.amount * 0 + coalesce((SELECT sum(m.undone + m.refunded) FROM pawl.order_money m WHERE m.order_no = o.order_no), 0) AS refunded,
       o.amount * 0 + coalesce((SELECT sum(m.charged - m.undone - m.refunded - m.voided - m.authorized - m.lost)
         FROM pawl.order_money m WHERE m.order_no = o.order_no), 0) AS kept, o.lines, o.route
FROM pawl.orders o;

CREATE VIEW books.transitions AS
SELECT o.order_id::text, t.seq, t.from_status, t.to_status, t.at, t.fence, t.verb,
       coalesce(t.actor, 'system') AS actor, t.reason, t.request_id,
       CASE WHEN t.payment_method IS NOT NULL THEN 'changed' END AS payment_method, t.on_behalf_of
FROM pawl.orders o JOIN pawl.transitions t ON t.order_no = o.order_no;

CREATE VIEW books.charges AS
SELECT o.order_id::text, c.generation, c.amount::numeric, c.currency, c.created_at, c.refunded_at,
       coalesce(c.executor, 'ledger') AS executor, c.reference, coalesce(c.in_doubt, false) AS in_doubt,
       CASE WHEN c.capture IS NOT NULL THEN c.captured_at ELSE c.created_at END AS captured_at,
       (SELECT max(a.route) FROM pawl.step_calls a WHERE a.order_no = c.order_no AND a.generation = c.generation
          AND a.step = 'charge' AND a.operation = 'do') AS route, coalesce(c.capture, 'immediately') AS capture, c.capture_by
FROM pawl.orders o JOIN pawl.charges c ON c.order_no = o.order_no;

CREATE VIEW books.refunds AS
SELECT o.order_id::text, r.generation, r.amount::numeric, r.currency, r.created_at, r.reference,
  r.number AS refund, r.state::text, r.restock::integer, coalesce(r.executor, 'ledger') AS executor, r.reason, r.request_id,
  r.claims, r.due_at, r.sent_at, CASE WHEN r.number = 0 THEN r.created_at ELSE r.finished_at END AS finished_at, r.code, r.detail, r.lines
FROM pawl.orders o JOIN pawl.charge_operations r ON r.order_no = o.order_no AND r.kind = 'refund';

-- Captures and voids of charges that only authorized. voided: what a final capture gives up besides.
CREATE VIEW books.captures AS
SELECT o.order_id::text, c.generation, c.number, c.kind::text, c.amount::numeric, c.voided::numeric, c.currency, c.created_at, c.reference,
  c.state::text, c.executor, c.reason, c.request_id, c.claims, c.due_at, c.sent_at, c.finished_at, c.code, c.detail
FROM pawl.orders o JOIN pawl.charge_operations c ON c.order_no = o.order_no AND c.kind <> 'refund';

-- What was reported about disputes, as it came. A dispute without a row that says won or lost is open.
CREATE VIEW books.disputes AS
SELECT o.order_id::text, d.reference, d.state::text, d.amount::numeric, d.currency, d.reason, d.at, d.recorded_at, d.charge
FROM pawl.orders o JOIN pawl.disputes d ON d.order_no = o.order_no;

-- state: held (counts in inventory.reserved), sold (its order is completed), released.
CREATE VIEW books.reservations AS
SELECT o.order_id::text, r.generation, r.item, r.quantity::integer,
       CASE WHEN r.released_at IS NOT NULL THEN 'released'
            WHEN o.status = 'completed' THEN 'sold' ELSE 'held' END AS state,
       r.created_at, r.released_at,
       coalesce(r.executor, 'ledger') AS executor, r.reference, coalesce(r.in_doubt, false) AS in_doubt, r.line
FROM pawl.orders o JOIN pawl.reservations r ON r.order_no = o.order_no;

CREATE VIEW books.inventory AS
SELECT i.item, i.on_hand::bigint, i.reserved::bigint, i.tracked,
       CASE WHEN i.tracked THEN i.on_hand - i.reserved END AS available, i.sold::bigint, i.version
FROM pawl.inventory i;

CREATE VIEW books.stock_movements AS
SELECT m.item, m.version, m.kind, m.change, m.on_hand::bigint, m.sold::bigint, m.at,
       m.actor, m.reason, m.request_id, m.on_behalf_of
FROM pawl.stock_movements m;

CREATE VIEW books.step_calls AS
SELECT o.order_id::text, a.step::text, a.generation, a.call, a.operation::text, a.fence, a.policy, a.started_at, a.finished_at,
       a.outcome::text, a.code, a.detail, a.reference, coalesce(a.fenced, false) AS fenced, a.charge_operation, a.route
FROM pawl.orders o JOIN pawl.step_calls a ON a.order_no = o.order_no;

CREATE VIEW books.late_undos AS
SELECT o.order_id::text, u.step, u.generation, u.reason, u.claims, u.due_at, u.created_at, u.finished_at, u.code, u.detail,
       u.reference
FROM pawl.orders o JOIN pawl.late_undos u ON u.order_no = o.order_no;

-- The events of the feed. Filter by first_event_no: otherwise the whole feed is read.
CREATE VIEW books.event_batches AS
SELECT b.first_event_no, b.last_event_no, b.epoch, b.at FROM pawl.event_batches b;

CREATE VIEW books.events AS
SELECT e.event_no, e.epoch || '.' || e.event_no AS cursor,
  (SELECT o.order_id FROM pawl.orders o WHERE o.order_no = e.order_no)::text AS order_id, nullif(e.item, '') AS stock_item, e.seq, e.at,
  e.from_status, CASE WHEN e.item = '' THEN e.to_status END AS to_status, CASE WHEN e.item = '' THEN e.verb ELSE e.to_status END AS verb,
  coalesce(e.actor, 'system') AS actor, e.on_behalf_of, e.reason, e.request_id, e.change, e.on_hand, e.first_event_no
FROM pawl.events e;

CREATE VIEW books.webhook_endpoints AS
SELECT e.endpoint_no, e.url, e.description, e.types, e.state, e.disabled_reason, e.disabled_at,
       e.failures, e.failing_since, e.paused_until, e.event_no, e.created_at, e.created_by
FROM pawl.webhook_endpoints e WHERE e.state <> 'deleted';

CREATE VIEW books.webhook_deliveries AS
SELECT d.endpoint_no, d.delivery_no, d.event_no, d.event_id, d.type, d.subject, d.state, d.attempts,
       d.created_at, d.due_at, d.attempted_at, d.finished_at, d.log
FROM pawl.webhook_deliveries d;

-- Who did what, from all histories.
CREATE VIEW books.access_log AS
SELECT l.at, l.event, l.actor, NULL::text AS on_behalf_of, l.address, l.operation, l.subject, l.detail, l.times FROM pawl.access_log l
UNION ALL
SELECT p.created_at, 'policy_stored', p.created_by, NULL, NULL, NULL, p.version::text, NULL, 1 FROM pawl.policies p
UNION ALL
SELECT a.at, 'policy_activated', a.actor, a.on_behalf_of, NULL, NULL, a.version::text, a.reason, 1 FROM pawl.policy_activations a
UNION ALL
SELECT t.at, t.verb, t.actor, t.on_behalf_of, NULL, NULL, o.order_id::text, t.reason, 1
FROM pawl.orders o JOIN pawl.transitions t ON t.order_no = o.order_no
WHERE t.verb IN ('cancel', 'retry', 'pause', 'resume', 'approve', 'reject', 'step-result', 'refund', 'capture', 'void', 'dispute_opened', 'dispute_won', 'dispute_lost') AND t.actor <> 'system'
UNION ALL
SELECT m.at, 'stock_' || m.kind, m.actor, m.on_behalf_of, NULL, NULL, m.item, m.reason, 1 FROM pawl.stock_movements m WHERE m.kind <> 'restock'
UNION ALL
SELECT c.at, CASE WHEN c.delivery_no IS NULL THEN 'webhook_endpoint_' ELSE 'webhook_delivery_' END || c.verb, c.actor,
  c.on_behalf_of, NULL, NULL, concat('whe_', c.endpoint_no, ' delivery ' || c.delivery_no), c.reason, 1
FROM pawl.webhook_changes c;

-- Without this, views of a single table would accept writes.
-- +goose StatementBegin
CREATE FUNCTION books.refuse_write() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'books.% is for reading only', TG_TABLE_NAME USING ERRCODE = 'object_not_in_prerequisite_state';
END $$;
-- +goose StatementEnd

CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.orders FOR EACH ROW EXECUTE FUNCTION books.refuse_write();
CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.inventory FOR EACH ROW EXECUTE FUNCTION books.refuse_write();
CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.stock_movements FOR EACH ROW EXECUTE FUNCTION books.refuse_write();
CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.event_batches FOR EACH ROW EXECUTE FUNCTION books.refuse_write();
CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.webhook_endpoints FOR EACH ROW EXECUTE FUNCTION books.refuse_write();
CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.webhook_deliveries FOR EACH ROW EXECUTE FUNCTION books.refuse_write();

-- +goose Down
DROP SCHEMA books CASCADE;
DROP VIEW pawl.newest_comparisons;
DROP TABLE pawl.verifications;
