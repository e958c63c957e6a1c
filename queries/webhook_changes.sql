-- Requests of people about webhook endpoints. The statement that makes a change also writes its row of
-- webhook_changes. No row: the request is a repetition, or its subject does not exist, or was changed meanwhile.
--
-- A statement that writes deliveries compares the seq of the endpoint's current row, which it locks, with the seq in
-- its snapshot. If they differ, another statement has written deliveries that the snapshot lacks, so it does nothing.

-- name: WebhookEndpointCreate :one
WITH made AS (
  INSERT INTO pawl.webhook_endpoints AS e (url, description, types, secret, event_no, created_by)
  SELECT @url::text, sqlc.narg('description')::text, @types::text[], @secret::text, @event_no::bigint, @actor::text
  WHERE (SELECT count(*) FROM pawl.webhook_endpoints AS f WHERE f.state <> 'deleted') < @most::integer
    AND NOT EXISTS (SELECT FROM pawl.webhook_changes AS c WHERE c.request_id = @request_id::text AND c.actor = @actor::text)
  RETURNING e.*
), asked AS (
  INSERT INTO pawl.webhook_changes (verb, endpoint_no, actor, on_behalf_of, reason, request_id, fingerprint)
  SELECT 'created', m.endpoint_no, @actor::text, sqlc.narg('on_behalf_of')::text, sqlc.narg('reason')::text, @request_id::text, @fingerprint::bytea
  FROM made AS m
)
SELECT m.* FROM made AS m;

-- name: WebhookEndpointChange :one
-- Changes an endpoint that is as it was read: its settings (changed), its secret (secret_rotated; the previous one
-- also signs for a while), or its state (disabled, deleted, enabled). enabled continues where the endpoint stopped,
-- with all retries due at once; with from_now, it skips all unfinished deliveries. Only this verb writes deliveries,
-- so only it compares seq. The others compare version, because seq rises with every delivery. The failures were those of the
-- previous URL.
WITH endpoint AS MATERIALIZED (
  SELECT e.endpoint_no FROM pawl.webhook_endpoints AS e
  WHERE e.endpoint_no = @endpoint_no AND e.state <> 'deleted'
    AND CASE WHEN @verb::text = 'enabled' THEN e.seq = (SELECT s.seq FROM pawl.webhook_endpoints AS s WHERE s.endpoint_no = @endpoint_no)
      ELSE e.version = @version END
    AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  FOR UPDATE
), unfinished AS MATERIALIZED (
  SELECT d.endpoint_no, d.delivery_no FROM endpoint AS e JOIN pawl.webhook_deliveries AS d ON d.endpoint_no = e.endpoint_no
  WHERE @verb::text = 'enabled' AND d.finished_at IS NULL AND (@from_now::boolean OR d.due_at > now())
), asked AS (
  INSERT INTO pawl.webhook_changes (verb, endpoint_no, deliveries, actor, on_behalf_of, reason, request_id, fingerprint)
  SELECT @verb::text, e.endpoint_no, CASE WHEN @from_now::boolean THEN (SELECT count(*) FROM unfinished) END,
    @actor::text, sqlc.narg('on_behalf_of')::text, sqlc.narg('reason')::text, @request_id::text, @fingerprint::bytea
  FROM endpoint AS e
  ON CONFLICT (request_id, actor) DO NOTHING
  RETURNING webhook_changes.endpoint_no
), sent AS (
  UPDATE pawl.webhook_deliveries AS d SET due_at = CASE WHEN NOT @from_now::boolean THEN now() END,
    state = CASE WHEN @from_now::boolean THEN 'skipped' ELSE d.state END, finished_at = CASE WHEN @from_now::boolean THEN now() END
  FROM asked AS a
  WHERE d.endpoint_no = a.endpoint_no AND d.delivery_no = ANY(ARRAY(SELECT u.delivery_no FROM unfinished AS u))
)
UPDATE pawl.webhook_endpoints AS e SET version = e.version + 1, seq = e.seq + 1,
  url = coalesce(sqlc.narg('url')::text, e.url), types = coalesce(sqlc.narg('types')::text[], e.types),
  description = CASE WHEN @verb::text = 'changed' THEN sqlc.narg('description')::text ELSE e.description END,
  secret = coalesce(sqlc.narg('secret')::text, e.secret),
  previous_secret = CASE WHEN @verb::text <> 'secret_rotated' THEN e.previous_secret WHEN @overlap_seconds::float8 > 0 THEN e.secret END,
  previous_secret_until = CASE WHEN @verb::text <> 'secret_rotated' THEN e.previous_secret_until
    WHEN @overlap_seconds::float8 > 0 THEN now() + make_interval(secs => @overlap_seconds::float8) END,
  state = CASE WHEN @verb::text IN ('enabled', 'disabled', 'deleted') THEN @verb::text ELSE e.state END,
  paused_until = CASE WHEN @verb::text NOT IN ('enabled', 'disabled', 'deleted') AND coalesce(sqlc.narg('url')::text, e.url) = e.url THEN e.paused_until END,
  disabled_at = CASE WHEN @verb::text = 'disabled' THEN now() WHEN @verb::text NOT IN ('enabled', 'deleted') THEN e.disabled_at END,
  disabled_reason = CASE WHEN @verb::text = 'disabled' THEN concat_ws(': ', 'by ' || @actor::text, sqlc.narg('reason')::text)
    WHEN @verb::text NOT IN ('enabled', 'deleted') THEN e.disabled_reason END,
  failures = CASE WHEN @verb::text <> 'enabled' AND coalesce(sqlc.narg('url')::text, e.url) = e.url THEN e.failures ELSE 0 END,
  failing_since = CASE WHEN @verb::text <> 'enabled' AND coalesce(sqlc.narg('url')::text, e.url) = e.url THEN e.failing_since END,
  last_failure = CASE WHEN @verb::text <> 'enabled' AND coalesce(sqlc.narg('url')::text, e.url) = e.url THEN e.last_failure END,
  event_no = greatest(e.event_no, CASE WHEN @from_now::boolean THEN @event_no::bigint END)
FROM asked AS a WHERE e.endpoint_no = a.endpoint_no
RETURNING e.*;

-- name: WebhookChangeByRequest :one
-- Returns what a request of this actor with this id did, if it was seen before, and whether the endpoint still has
-- the secret that it made. Durable, as OrdersByID: the caller is told that it was done.
SELECT c.*, (c.verb IN ('created', 'secret_rotated') AND NOT EXISTS (
  SELECT FROM pawl.webhook_changes AS later
  WHERE later.endpoint_no = c.endpoint_no AND later.change_no > c.change_no AND later.verb = 'secret_rotated'))::boolean AS made_the_secret
FROM pawl.webhook_changes AS c
WHERE c.request_id = @request_id AND c.actor = @actor AND (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL;

-- name: WebhookChangesOfDelivery :many
-- Returns the requests of people about one delivery, oldest first.
SELECT c.at, c.verb, c.actor, c.on_behalf_of, c.reason FROM pawl.webhook_changes AS c
WHERE c.endpoint_no = @endpoint_no AND c.delivery_no = @delivery_no::bigint ORDER BY c.change_no LIMIT 100;

-- name: WebhookEndpointGet :one
SELECT e.* FROM pawl.webhook_endpoints AS e WHERE e.endpoint_no = @endpoint_no AND e.state <> 'deleted';

-- name: WebhookEndpointsList :many
SELECT e.* FROM pawl.webhook_endpoints AS e WHERE e.state <> 'deleted' ORDER BY e.endpoint_no;

-- name: WebhookBacklogs :many
-- Counts for endpoints what is not delivered yet: stored deliveries, and by what their types are made of the events of the
-- feed that have none yet, up to a limit each.
SELECT e.endpoint_no, e.types, b.stored::boolean AS stored, b.stock::boolean AS stock, b.from_status::text AS from_status, b.to_status::text AS to_status,
  b.verb::text AS verb, b.actor::text AS actor, b.events::bigint AS events
FROM pawl.webhook_endpoints AS e CROSS JOIN LATERAL (
  SELECT true AS stored, false AS stock, '' AS from_status, '' AS to_status, '' AS verb, '' AS actor, count(*) AS events
  FROM (SELECT FROM pawl.webhook_deliveries AS d WHERE d.endpoint_no = e.endpoint_no AND d.finished_at IS NULL LIMIT @most) AS unfinished
  UNION ALL
  SELECT false, n.item <> '', coalesce(n.from_status, ''), n.to_status,
    CASE WHEN coalesce(n.verb, '') = 'refund' AND (SELECT r.executor IS NULL FROM pawl.charge_operations AS r
      WHERE r.order_no = n.order_no AND r.request_id = n.request_id LIMIT 1) THEN 'refund_done' -- by the ledger, at once
      ELSE coalesce(n.verb, '') END,
    left(coalesce(n.actor, ''), 1), count(*)
  FROM (SELECT v.* FROM pawl.events AS v
    WHERE v.first_event_no >= coalesce((SELECT max(c.first_event_no) FROM pawl.event_batches AS c WHERE c.first_event_no <= e.event_no + 1), 0)
      AND v.event_no > e.event_no LIMIT @most) AS n
  GROUP BY 2, 3, 4, 5, 6
) AS b
WHERE e.endpoint_no = ANY((SELECT @endpoint_nos::integer[])::integer[]);

-- name: WebhookDeliveriesResend :one
-- Sends deliveries again as if they were new: one of them (resent), or the oldest of those that were exhausted since
-- a time, up to a limit (recovered). Each is due at once, unless an earlier one of its subject is unfinished. Later
-- ones wait for it again. Returns their number.
WITH endpoint AS MATERIALIZED (
  SELECT e.endpoint_no FROM pawl.webhook_endpoints AS e
  WHERE e.endpoint_no = @endpoint_no AND e.seq = (SELECT s.seq FROM pawl.webhook_endpoints AS s WHERE s.endpoint_no = @endpoint_no)
    AND e.state <> 'deleted' AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  FOR UPDATE
), chosen AS MATERIALIZED (
  SELECT d.delivery_no, d.subject FROM pawl.webhook_deliveries AS d
  WHERE d.endpoint_no = @endpoint_no AND d.delivery_no = sqlc.narg('delivery_no')::bigint
  UNION ALL
  (SELECT d.delivery_no, d.subject FROM pawl.webhook_deliveries AS d
  WHERE sqlc.narg('delivery_no')::bigint IS NULL AND d.endpoint_no = @endpoint_no AND d.state = 'exhausted' AND d.attempted_at >= @since::timestamptz
  ORDER BY d.delivery_no LIMIT @most)
), asked AS (
  INSERT INTO pawl.webhook_changes (verb, endpoint_no, delivery_no, deliveries, actor, on_behalf_of, reason, request_id, fingerprint)
  SELECT CASE WHEN sqlc.narg('delivery_no')::bigint IS NULL THEN 'recovered' ELSE 'resent' END, e.endpoint_no, sqlc.narg('delivery_no')::bigint,
    CASE WHEN sqlc.narg('delivery_no')::bigint IS NULL THEN (SELECT count(*) FROM chosen) END,
    @actor::text, sqlc.narg('on_behalf_of')::text, sqlc.narg('reason')::text, @request_id::text, @fingerprint::bytea
  FROM endpoint AS e WHERE sqlc.narg('delivery_no')::bigint IS NULL OR EXISTS (SELECT FROM chosen)
  ON CONFLICT (request_id, actor) DO NOTHING
  RETURNING webhook_changes.endpoint_no
), noted AS (
  UPDATE pawl.webhook_endpoints AS e SET seq = e.seq + 1 FROM asked AS a WHERE e.endpoint_no = a.endpoint_no
), waiting AS (
  UPDATE pawl.webhook_deliveries AS d SET due_at = NULL
  FROM asked AS a, chosen AS c
  WHERE d.endpoint_no = a.endpoint_no AND d.subject = c.subject AND d.delivery_no > c.delivery_no AND d.finished_at IS NULL AND d.due_at IS NOT NULL
), again AS (
  UPDATE pawl.webhook_deliveries AS d SET state = 'pending', attempts = 0, finished_at = NULL,
    due_at = CASE WHEN coalesce((SELECT false FROM pawl.webhook_deliveries AS w
      WHERE w.endpoint_no = @endpoint_no AND w.subject = d.subject AND w.finished_at IS NULL
        AND w.delivery_no < d.delivery_no LIMIT 1), true) THEN now() END
  FROM asked AS a
  WHERE d.endpoint_no = a.endpoint_no AND d.delivery_no = ANY(ARRAY(SELECT c.delivery_no FROM chosen AS c))
)
SELECT (SELECT count(*) FROM chosen)::integer AS deliveries FROM asked AS a;

-- name: WebhookDeliverySkip :one
-- Gives up one delivery for good, so that later ones continue.
WITH endpoint AS MATERIALIZED (
  SELECT e.endpoint_no FROM pawl.webhook_endpoints AS e
  WHERE e.endpoint_no = @endpoint_no AND e.seq = (SELECT s.seq FROM pawl.webhook_endpoints AS s WHERE s.endpoint_no = @endpoint_no)
    AND e.state <> 'deleted' AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  FOR UPDATE
), asked AS (
  INSERT INTO pawl.webhook_changes (verb, endpoint_no, delivery_no, actor, on_behalf_of, reason, request_id, fingerprint)
  SELECT 'skipped', d.endpoint_no, d.delivery_no, @actor::text, sqlc.narg('on_behalf_of')::text,
    sqlc.narg('reason')::text, @request_id::text, @fingerprint::bytea
  FROM endpoint AS e JOIN pawl.webhook_deliveries AS d ON d.endpoint_no = e.endpoint_no AND d.delivery_no = @delivery_no AND d.finished_at IS NULL
  ON CONFLICT (request_id, actor) DO NOTHING
  RETURNING webhook_changes.endpoint_no, webhook_changes.delivery_no
), noted AS (
  UPDATE pawl.webhook_endpoints AS e SET seq = e.seq + 1 FROM asked AS a WHERE e.endpoint_no = a.endpoint_no
), skipped AS (
  UPDATE pawl.webhook_deliveries AS d SET state = 'skipped', due_at = NULL, finished_at = now()
  FROM asked AS a
  WHERE d.endpoint_no = a.endpoint_no AND d.delivery_no = a.delivery_no
  RETURNING d.delivery_no, d.subject
), woken AS (
  UPDATE pawl.webhook_deliveries AS d SET due_at = now()
  WHERE d.endpoint_no = @endpoint_no AND d.state = 'pending' AND d.due_at IS NULL AND d.delivery_no = (
    SELECT n.delivery_no FROM pawl.webhook_deliveries AS n
    WHERE n.endpoint_no = @endpoint_no AND n.subject = (SELECT s.subject FROM skipped AS s) AND n.finished_at IS NULL
      AND n.delivery_no <> @delivery_no
    ORDER BY n.delivery_no LIMIT 1)
)
SELECT s.delivery_no FROM skipped AS s;
