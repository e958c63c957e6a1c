-- Webhook endpoints and their deliveries. A statement that writes deliveries writes their endpoint first, which locks
-- it, and compares its seq with the one that was read: the stored deliveries of a subject decide which one is due,
-- and a statement that waited for the lock would still see the old ones. Without a row, the caller reads again.

-- name: WebhookEndpointsLook :many
-- Returns all endpoints, for the polling of a replica: with the time of the database, the end of the feed, and when
-- the next delivery becomes due.
SELECT sqlc.embed(e), now()::timestamptz AS at,
  coalesce((SELECT b.last_event_no FROM pawl.event_batches AS b ORDER BY b.first_event_no DESC LIMIT 1), 0)::bigint AS last_event_no,
  (SELECT d.due_at FROM pawl.webhook_deliveries AS d
   WHERE d.endpoint_no = e.endpoint_no AND d.due_at > now() ORDER BY d.due_at LIMIT 1) AS next_due_at
FROM pawl.webhook_endpoints AS e ORDER BY e.endpoint_no;

-- name: WebhookEndpointClaim :exec
-- Claims one endpoint whose lease has ended. One at a time, so that replicas share them.
UPDATE pawl.webhook_endpoints AS e SET owner = @owner::uuid, fence = e.fence + 1,
  due_at = clock_timestamp() + make_interval(secs => @lease_seconds::float8)
WHERE e.endpoint_no = (
  SELECT f.endpoint_no FROM pawl.webhook_endpoints AS f WHERE f.due_at <= now() ORDER BY f.due_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
) AND e.due_at <= now();

-- name: WebhookEndpointsRenew :exec
UPDATE pawl.webhook_endpoints AS e SET due_at = clock_timestamp() + make_interval(secs => @lease_seconds::float8)
WHERE e.owner = @owner::uuid AND e.endpoint_no = ANY(@endpoint_nos::integer[]);

-- name: WebhookEndpointsShortenLeases :exec
-- Shortens leases that were written before the clock of the database was set back. Living owners renew them.
UPDATE pawl.webhook_endpoints AS e SET due_at = now() + make_interval(secs => @lease_seconds::float8)
WHERE e.due_at > now() + 2 * make_interval(secs => @lease_seconds::float8);

-- name: WebhookEndpointsRelease :exec
-- Releases endpoints: they are due at once.
UPDATE pawl.webhook_endpoints AS e SET due_at = now(), owner = NULL WHERE e.owner = @owner::uuid;

-- name: WebhookDeliveriesAdd :many
-- Stores the deliveries of the next events, and moves the endpoint past these. A delivery is due at once if its
-- subject has no earlier unfinished one, neither stored nor in this batch (firsts). Returns the due ones, or one row
-- with delivery_no 0 if there are none. No row: the endpoint has changed.
WITH endpoint AS (
  UPDATE pawl.webhook_endpoints AS e SET seq = e.seq + 1, event_no = @event_no, delivery_no = e.delivery_no + cardinality(@event_nos::bigint[])
  WHERE e.endpoint_no = @endpoint_no AND e.owner = @owner::uuid AND e.fence = @fence AND e.seq = @seq AND e.state = 'enabled'
  RETURNING e.endpoint_no, e.delivery_no - cardinality(@event_nos::bigint[]) AS before
), added AS (
  INSERT INTO pawl.webhook_deliveries (endpoint_no, delivery_no, event_no, seq, event_id, type, subject, due_at)
  SELECT e.endpoint_no, e.before + x.n, x.event_no, x.seq, x.event_id, x.type, x.subject,
    CASE WHEN x.first AND coalesce((SELECT false FROM pawl.webhook_deliveries AS w
      WHERE w.endpoint_no = e.endpoint_no AND w.subject = x.subject AND w.finished_at IS NULL LIMIT 1), true) THEN now() END
  FROM endpoint AS e, ROWS FROM (unnest(@event_nos::bigint[]), unnest(@seqs::bigint[]), unnest(@event_ids::text[]), unnest(@types::text[]),
    unnest(@subjects::text[]), unnest(@firsts::boolean[])) WITH ORDINALITY AS x(event_no, seq, event_id, type, subject, first, n)
  RETURNING webhook_deliveries.*
)
SELECT e.before::bigint AS before, coalesce(a.delivery_no, 0)::bigint AS delivery_no
FROM endpoint AS e LEFT JOIN added AS a ON a.due_at IS NOT NULL;

-- name: WebhookDeliveriesDue :many
-- Returns the due deliveries from the floor on. The floor keeps the scan away from the dead entries that finished
-- ones leave in the index.
SELECT d.delivery_no, d.event_no, d.seq, d.attempts, d.due_at::timestamptz AS due_at, d.type, d.event_id, d.subject, d.body
FROM pawl.webhook_deliveries AS d
WHERE d.endpoint_no = @endpoint_no AND d.due_at > @floor::timestamptz AND d.due_at <= now()
ORDER BY d.due_at, d.delivery_no LIMIT @most;

-- name: WebhookDeliveriesAhead :one
-- Counts the deliveries that wait for their first attempt, or for one that does, up to a limit. Those that wait for a
-- failed one do not count: they would delay deliveries that wait for nothing.
SELECT count(*) FROM (
  SELECT w.delivery_no FROM pawl.webhook_deliveries AS d CROSS JOIN LATERAL (
    SELECT n.delivery_no FROM pawl.webhook_deliveries AS n
    WHERE n.endpoint_no = d.endpoint_no AND n.subject = d.subject AND n.finished_at IS NULL LIMIT @most
  ) AS w
  WHERE d.endpoint_no = @endpoint_no AND d.due_at <= now() AND d.attempts = 0 LIMIT @most
) AS waiting;

-- name: WebhookDeliveriesRecord :many
-- Records the results of attempts. A finished delivery makes the next one of its subject due. Returns the deliveries
-- that became due, or one row with delivery_no 0 if there are none. No row: the endpoint belongs to another process,
-- or has changed.
WITH results AS MATERIALIZED (
  SELECT x.delivery_no, x.attempts, x.state, x.delay, x.entry
  FROM ROWS FROM (unnest(@delivery_nos::bigint[]), unnest(@attempts::smallint[]), unnest(@states::text[]),
    unnest(@delays::float8[]), unnest(@entries::text[]))
    AS x(delivery_no, attempts, state, delay, entry)
), endpoint AS (
  UPDATE pawl.webhook_endpoints AS e SET seq = e.seq + 1, failures = @failures::integer,
    failing_since = CASE WHEN @failures::integer > 0 THEN coalesce(CASE WHEN NOT @succeeded::boolean THEN e.failing_since END, now()) END,
    last_failure = CASE WHEN @failures::integer > 0 THEN coalesce(
      (SELECT r.entry::jsonb FROM results AS r WHERE r.state IN ('pending', 'exhausted') LIMIT 1), e.last_failure) END,
    paused_until = greatest(CASE WHEN e.paused_until > now() THEN e.paused_until END,
      CASE WHEN @pause_seconds::float8 > 0 THEN now() + make_interval(secs => @pause_seconds::float8) END)
  WHERE e.endpoint_no = @endpoint_no AND e.owner = @owner::uuid AND e.fence = @fence AND e.seq = @seq
  RETURNING e.endpoint_no, e.failing_since
), recorded AS (
  UPDATE pawl.webhook_deliveries AS d SET
    state = r.state, attempts = d.attempts + 1, attempted_at = now(),
    due_at = CASE WHEN r.state = 'pending' AND d.due_at IS NOT NULL THEN now() + make_interval(secs => r.delay) END,
      -- null: a person has resent an earlier one
    finished_at = CASE WHEN r.state IN ('delivered', 'skipped') THEN now() END,
    log = (CASE WHEN jsonb_array_length(d.log) >= 20 THEN d.log - 0 ELSE d.log END) || r.entry::jsonb
  FROM endpoint AS e, results AS r
  WHERE d.endpoint_no = e.endpoint_no AND d.delivery_no = ANY((SELECT @delivery_nos::bigint[])::bigint[]) AND r.delivery_no = d.delivery_no
    AND d.state = 'pending' AND d.attempts = r.attempts
  RETURNING d.endpoint_no, d.delivery_no, d.subject, d.finished_at
), finished AS MATERIALIZED (
  SELECT r.endpoint_no, r.delivery_no, r.subject FROM recorded AS r WHERE r.finished_at IS NOT NULL
), behind AS MATERIALIZED (
  SELECT (SELECT n.delivery_no FROM pawl.webhook_deliveries AS n
    WHERE n.endpoint_no = f.endpoint_no AND n.subject = f.subject AND n.finished_at IS NULL
      AND n.delivery_no <> ALL(ARRAY(SELECT g.delivery_no FROM finished AS g))
    ORDER BY n.delivery_no LIMIT 1) AS delivery_no
  FROM finished AS f
), woken AS (
  UPDATE pawl.webhook_deliveries AS d SET due_at = now()
  WHERE d.endpoint_no = @endpoint_no AND d.delivery_no = ANY(ARRAY(SELECT n.delivery_no FROM behind AS n))
    AND d.state = 'pending' AND d.due_at IS NULL
  RETURNING d.*
)
SELECT coalesce(e.failing_since < now() - make_interval(secs => @disabled_after::float8), false)::boolean AS failing_long,
  coalesce(w.delivery_no, 0)::bigint AS delivery_no, w.event_no, w.seq, coalesce(w.attempts, 0)::smallint AS attempts,
  coalesce(w.type, '')::text AS type, coalesce(w.event_id, '')::text AS event_id, coalesce(w.subject, '')::text AS subject, w.body
FROM endpoint AS e LEFT JOIN woken AS w ON true;

-- name: WebhookDeliveriesPullForward :one
-- Makes retries due now: of deliveries whose attempts have all failed since the endpoint went down. A delivery that
-- had failed before is rejected for its content, and keeps its pauses. Also of deliveries that wait longer than the
-- pause after so many attempts: the clock of the database was set back. The pause of an endpoint ends in the same
-- way.
WITH endpoint AS (
  UPDATE pawl.webhook_endpoints AS e SET seq = e.seq + 1,
    paused_until = CASE WHEN e.paused_until <= now() + make_interval(secs => @longest_pause::float8) THEN e.paused_until END
  WHERE e.endpoint_no = @endpoint_no AND e.owner = @owner::uuid AND e.fence = @fence AND e.seq = @seq
  RETURNING e.endpoint_no
), pulled AS (
  UPDATE pawl.webhook_deliveries AS d SET due_at = now()
  FROM endpoint AS e
  WHERE d.endpoint_no = e.endpoint_no AND d.endpoint_no = @endpoint_no AND d.due_at > now() AND (
    (d.log -> -(d.attempts::integer) ->> 'at')::timestamptz >= sqlc.narg('down_since')::timestamptz - make_interval(secs => @attempt_seconds::float8)
    OR d.due_at > now() + make_interval(secs => (@longest_pauses::float8[])[least(d.attempts + 1, cardinality(@longest_pauses::float8[]))]))
  RETURNING d.delivery_no
)
SELECT (SELECT count(*) FROM pulled)::integer AS pulled FROM endpoint AS e;

-- name: WebhookEndpointDisable :one
-- Disables an endpoint, and informs all other enabled ones. The locks come first, always in the same order.
WITH locked AS MATERIALIZED (
  SELECT e.endpoint_no FROM pawl.webhook_endpoints AS e WHERE e.state = 'enabled' ORDER BY e.endpoint_no FOR NO KEY UPDATE
), disabled AS (
  UPDATE pawl.webhook_endpoints AS e SET state = 'disabled', disabled_at = now(), disabled_reason = @reason::text, paused_until = NULL,
    seq = e.seq + 1, version = e.version + 1
  WHERE e.endpoint_no = @endpoint_no AND e.endpoint_no = ANY(ARRAY(SELECT l.endpoint_no FROM locked AS l)) AND e.state = 'enabled'
    AND e.owner = @owner::uuid AND e.fence = @fence AND e.version = @version -- else a person has changed or enabled it since
  RETURNING e.endpoint_no
), others AS (
  UPDATE pawl.webhook_endpoints AS e SET seq = e.seq + 1, delivery_no = e.delivery_no + 1
  WHERE e.endpoint_no = ANY(ARRAY(SELECT l.endpoint_no FROM locked AS l)) AND e.state = 'enabled'
    AND e.endpoint_no <> (SELECT d.endpoint_no FROM disabled AS d)
  RETURNING e.endpoint_no, e.delivery_no
), told AS (
  INSERT INTO pawl.webhook_deliveries (endpoint_no, delivery_no, event_id, type, subject, body, due_at)
  SELECT o.endpoint_no, o.delivery_no, @event_id::text, @type::text, @event_id::text, @body::text, now() FROM others AS o
), logged AS (
  INSERT INTO pawl.access_log (event, actor, subject, detail)
  SELECT 'webhook_endpoint_disabled', 'system', 'whe_' || d.endpoint_no, @reason::text FROM disabled AS d
)
SELECT d.endpoint_no, (SELECT count(*) FROM others)::integer AS told FROM disabled AS d;

-- name: WebhookDeliveriesPurge :one
-- Deletes finished deliveries older than an age, among some from a number on; of a deleted endpoint, all. Returns
-- where to continue, or 0 at the end.
WITH looked_at AS MATERIALIZED (
  SELECT d.delivery_no, d.created_at, d.finished_at FROM pawl.webhook_deliveries AS d
  WHERE d.endpoint_no = @endpoint_no AND d.delivery_no > @after
  ORDER BY d.delivery_no LIMIT @most
), removed AS (
  DELETE FROM pawl.webhook_deliveries AS d
  WHERE d.endpoint_no = @endpoint_no AND d.delivery_no = ANY(ARRAY(SELECT s.delivery_no FROM looked_at AS s))
    AND (d.finished_at < now() - make_interval(secs => @age_seconds::float8) OR @whole::boolean)
)
SELECT coalesce(max(s.delivery_no) FILTER (WHERE s.created_at < now() - make_interval(secs => @age_seconds::float8)
  OR @whole::boolean), 0)::bigint AS next
FROM looked_at AS s;

-- name: WebhookEndpointRemove :exec
-- Removes a deleted endpoint, once it has no deliveries.
DELETE FROM pawl.webhook_endpoints AS e
WHERE e.endpoint_no = @endpoint_no AND e.state = 'deleted' AND e.owner = @owner::uuid AND e.fence = @fence
  AND coalesce((SELECT false FROM pawl.webhook_deliveries AS d WHERE d.endpoint_no = @endpoint_no LIMIT 1), true);

-- name: WebhookEndpointsState :many
-- Returns the state of endpoints for metrics. Exhausted deliveries are counted up to a limit.
SELECT e.endpoint_no, e.state, e.event_no,
  coalesce(extract(epoch FROM now() - CASE WHEN e.state = 'enabled' THEN e.failing_since END), 0)::float8 AS failing_seconds,
  (SELECT count(*) FROM (SELECT d.delivery_no FROM pawl.webhook_deliveries AS d
    WHERE d.endpoint_no = e.endpoint_no AND d.state = 'exhausted' LIMIT @most) AS x)::bigint AS exhausted,
  coalesce(extract(epoch FROM now() - (SELECT min(d.due_at) FROM pawl.webhook_deliveries AS d
    WHERE e.state = 'enabled' AND d.endpoint_no = e.endpoint_no AND d.due_at IS NOT NULL)), 0)::float8 AS waiting_seconds
FROM pawl.webhook_endpoints AS e WHERE e.state <> 'deleted' ORDER BY e.endpoint_no;
