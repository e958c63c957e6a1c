-- +goose Up

-- What people have asked of webhook endpoints and their deliveries. A request that comes again is known by its row, and not
-- done again. Of two changes of one endpoint, the later one has the larger number.
CREATE TABLE pawl.webhook_changes (
  change_no    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  delivery_no  bigint,                 -- null: it is about the whole endpoint
  at           timestamptz NOT NULL DEFAULT now(),
  endpoint_no  integer NOT NULL,
  deliveries   integer,                -- how many were recovered, or left out when it was enabled from now on
  verb         text COLLATE "C" NOT NULL,
  actor        text COLLATE "C" NOT NULL, -- the principal that asked for it
  on_behalf_of text,                   -- for whom it says that it asked
  reason       text,
  request_id   text COLLATE "C" NOT NULL, -- the caller's, or one of ours
  fingerprint  bytea NOT NULL,         -- a hash of what was asked
  CONSTRAINT webhook_changes_verb CHECK (verb IN ('created', 'changed', 'deleted', 'secret_rotated', 'enabled', 'disabled', 'resent', 'skipped', 'recovered')),
  CONSTRAINT webhook_changes_delivery CHECK ((delivery_no IS NOT NULL) = (verb IN ('resent', 'skipped')))
);
CREATE UNIQUE INDEX webhook_changes_request ON pawl.webhook_changes (request_id, actor);
CREATE INDEX webhook_changes_delivery ON pawl.webhook_changes (endpoint_no, delivery_no);
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON pawl.webhook_changes FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- What was sent about an order or an item, and what people have left out.
CREATE INDEX webhook_deliveries_subject ON pawl.webhook_deliveries (endpoint_no, subject, delivery_no);
CREATE INDEX webhook_deliveries_skipped ON pawl.webhook_deliveries (endpoint_no, delivery_no) WHERE state = 'skipped';

CREATE OR REPLACE VIEW books.access_log AS
SELECT l.at, l.event, l.actor, NULL::text AS on_behalf_of, l.address, l.operation, l.subject, l.detail, l.times FROM pawl.access_log l
UNION ALL
SELECT p.created_at, 'policy_stored', p.created_by, NULL, NULL, NULL, p.version::text, NULL, 1 FROM pawl.policies p
UNION ALL
SELECT a.at, 'policy_activated', a.actor, a.on_behalf_of, NULL, NULL, a.version::text, a.reason, 1 FROM pawl.policy_activations a
UNION ALL
SELECT t.at, t.verb, t.actor, t.on_behalf_of, NULL, NULL, o.order_id::text, t.reason, 1
FROM pawl.orders o JOIN pawl.transitions t ON t.order_no = o.order_no
WHERE t.verb IN ('cancel', 'retry', 'pause', 'resume', 'approve', 'reject', 'step-result', 'refund') AND t.actor <> 'system'
UNION ALL
SELECT m.at, 'stock_' || m.kind, m.actor, m.on_behalf_of, NULL, NULL, m.item, m.reason, 1 FROM pawl.stock_movements m WHERE m.kind <> 'restock'
UNION ALL
SELECT c.at, CASE WHEN c.delivery_no IS NULL THEN 'webhook_endpoint_' ELSE 'webhook_delivery_' END || c.verb, c.actor, c.on_behalf_of, NULL, NULL, concat('whe_', c.endpoint_no, ' delivery ' || c.delivery_no), c.reason, 1
FROM pawl.webhook_changes c;

-- +goose Down
CREATE OR REPLACE VIEW books.access_log AS
SELECT l.at, l.event, l.actor, NULL::text AS on_behalf_of, l.address, l.operation, l.subject, l.detail, l.times FROM pawl.access_log l
UNION ALL
SELECT p.created_at, 'policy_stored', p.created_by, NULL, NULL, NULL, p.version::text, NULL, 1 FROM pawl.policies p
UNION ALL
SELECT a.at, 'policy_activated', a.actor, a.on_behalf_of, NULL, NULL, a.version::text, a.reason, 1 FROM pawl.policy_activations a
UNION ALL
SELECT t.at, t.verb, t.actor, t.on_behalf_of, NULL, NULL, o.order_id::text, t.reason, 1
FROM pawl.orders o JOIN pawl.transitions t ON t.order_no = o.order_no
WHERE t.verb IN ('cancel', 'retry', 'pause', 'resume', 'approve', 'reject', 'step-result', 'refund') AND t.actor <> 'system'
UNION ALL
SELECT m.at, 'stock_' || m.kind, m.actor, m.on_behalf_of, NULL, NULL, m.item, m.reason, 1 FROM pawl.stock_movements m WHERE m.kind <> 'restock';
DROP INDEX pawl.webhook_deliveries_subject;
DROP INDEX pawl.webhook_deliveries_skipped;
DROP TABLE pawl.webhook_changes;
