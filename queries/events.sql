-- The feed of events: how they are numbered and read (see migrations/00005_events_and_webhooks.sql).

-- name: EventRelayHold :one
-- Takes or renews the lease of the relay. If the timeline or the database has changed, it begins a new epoch. No row:
-- another replica has the lease, or the positions are those of another cluster, whose transaction ids count from
-- another number.
WITH here AS MATERIALIZED (
  SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8) || '/' || (
    SELECT a.datid::text FROM pg_stat_activity AS a WHERE a.pid = pg_backend_pid()) AS history
), held AS (
  UPDATE pawl.event_relay AS r SET
    owner = @owner::uuid, fence = r.fence + (r.owner IS DISTINCT FROM @owner::uuid)::integer,
    due_at = clock_timestamp() + make_interval(secs => @lease_seconds::float8),
    history = h.history,
    epoch = CASE WHEN r.history = h.history THEN r.epoch ELSE greatest(r.epoch + 1, (extract(epoch FROM now()) / 60)::integer) END
  FROM here AS h
  WHERE (r.owner = @owner::uuid OR r.due_at IS NULL OR r.due_at <= now()
      OR r.due_at > now() + 2 * make_interval(secs => @lease_seconds::float8)) -- the clock was set back since it was written
    AND NOT EXISTS (SELECT FROM pawl.installation AS i WHERE i.system_identifier <> pawl.system_identifier())
    AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  RETURNING r.fence, r.epoch
), begun AS (
  INSERT INTO pawl.event_epochs (epoch, first_event_no)
  SELECT h.epoch, coalesce((SELECT max(b.last_event_no) FROM pawl.event_batches AS b), 0) + 1 FROM held AS h
  WHERE NOT EXISTS (SELECT FROM pawl.event_epochs AS e WHERE e.epoch = h.epoch)
)
SELECT h.fence, h.epoch FROM held AS h;

-- name: EventRelayRelease :execrows
-- Releases the lease for another replica.
UPDATE pawl.event_relay AS r SET due_at = now() WHERE r.owner = @owner::uuid AND r.fence = @fence;

-- name: EventFeed :one
-- Returns the extent of the feed: the numbers of the events that are kept, and the epochs with their first events.
SELECT coalesce((SELECT f.first_event_no FROM pawl.event_batches AS f ORDER BY f.first_event_no LIMIT 1), 1)::bigint AS first_event_no,
  coalesce((SELECT l.last_event_no FROM pawl.event_batches AS l ORDER BY l.first_event_no DESC LIMIT 1), 0)::bigint AS last_event_no,
  ARRAY(SELECT e.epoch FROM pawl.event_epochs AS e ORDER BY e.epoch)::integer[] AS epochs,
  ARRAY(SELECT e.first_event_no FROM pawl.event_epochs AS e ORDER BY e.epoch)::bigint[] AS epoch_starts;

-- name: EventRelayState :one
-- Returns the owner of the relay, and how long the oldest event without a number has waited.
SELECT r.owner, coalesce(b.last_event_no, 0)::bigint AS last_event_no,
  coalesce(extract(epoch FROM now() - least(
    (SELECT t.at FROM pawl.transitions AS t WHERE t.position >= coalesce(b.position_to, 0) AND NOT EXISTS (
      SELECT FROM pawl.early_events AS y WHERE y.position = t.position AND y.order_no = t.order_no AND y.item = '' AND y.seq = t.seq)
      ORDER BY t.position LIMIT 1),
    (SELECT s.at FROM pawl.stock_movements AS s WHERE s.position >= coalesce(b.position_to, 0) AND NOT EXISTS (
      SELECT FROM pawl.early_events AS y WHERE y.position = s.position AND y.order_no = 0 AND y.item = s.item AND y.seq = s.version)
      ORDER BY s.position LIMIT 1))), 0)::float8 AS lag
FROM pawl.event_relay AS r
LEFT JOIN (SELECT l.last_event_no, l.position_to FROM pawl.event_batches AS l ORDER BY l.first_event_no DESC LIMIT 1) AS b ON true;

-- name: EventsUnnumbered :one
-- Returns the newest position, up to one, of a committed row without a number, or 0.
SELECT coalesce(greatest(
  (SELECT t.position FROM pawl.transitions AS t WHERE t.position >= b.position AND t.position <= @up_to AND NOT EXISTS (
    SELECT FROM pawl.early_events AS y WHERE y.position = t.position AND y.order_no = t.order_no AND y.item = '' AND y.seq = t.seq)
    ORDER BY t.position DESC LIMIT 1),
  (SELECT s.position FROM pawl.stock_movements AS s WHERE s.position >= b.position AND s.position <= @up_to AND NOT EXISTS (
    SELECT FROM pawl.early_events AS y WHERE y.position = s.position AND y.order_no = 0 AND y.item = s.item AND y.seq = s.version)
    ORDER BY s.position DESC LIMIT 1)), 0)::bigint AS position
FROM (SELECT coalesce((SELECT l.position_to FROM pawl.event_batches AS l ORDER BY l.first_event_no DESC LIMIT 1), 0) AS position) AS b;

-- name: EventsWanted :execrows
-- Records that there are listeners: for a while, events are numbered soon.
UPDATE pawl.event_relay AS r SET wanted_until = now() + make_interval(secs => @seconds::float8)
WHERE (r.wanted_until IS NULL OR r.wanted_until < now() + make_interval(secs => @seconds::float8) / 2)
  AND (SELECT set_config('lock_timeout', '500ms', true)) <> '';

-- name: EventBatchAdd :one
-- Numbers the next events below the horizon: fewer than a thousand transitions and as many stock movements, up to the
-- end of a transaction, or all events of a larger one. Writes nothing if there are none, or if the lease, the
-- timeline or the last number has changed. The limits are literals, by which the planner sees that there is little to
-- do. Without them it would compile the statement (JIT), for seconds.
--
-- span: at most a thousand rows from the first one, so that a plan that sorts the span stays cheap. OFFSET is a
-- sub-select to hide the number from the planner, which would sort here otherwise.
--
-- finish: the end of the batch. The last transaction is left out if it may have more rows than were read, unless it
-- is also the first: then the batch is that whole transaction.
--
-- early: for the first row of each order in the batch, the rows directly before it whose position is not below the
-- end.
WITH origin AS MATERIALIZED (
  SELECT coalesce(b.last_event_no, 0) AS last_event_no, coalesce(b.position_to, 0) AS position,
    r.position_offset + pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS horizon
  FROM pawl.event_relay AS r
  LEFT JOIN (SELECT l.last_event_no, l.position_to FROM pawl.event_batches AS l ORDER BY l.first_event_no DESC LIMIT 1) AS b ON true
  LIMIT 1
), next AS MATERIALIZED ( -- the first row without a number
  SELECT least(
    (SELECT t.position FROM pawl.transitions AS t WHERE t.position >= s.position AND NOT EXISTS (
      SELECT FROM pawl.early_events AS y WHERE y.position = t.position AND y.order_no = t.order_no AND y.item = '' AND y.seq = t.seq)
      ORDER BY t.position LIMIT 1),
    (SELECT m.position FROM pawl.stock_movements AS m WHERE m.position >= s.position AND NOT EXISTS (
      SELECT FROM pawl.early_events AS y WHERE y.position = m.position AND y.order_no = 0 AND y.item = m.item AND y.seq = m.version)
      ORDER BY m.position LIMIT 1)) AS position
  FROM origin AS s
), span AS MATERIALIZED (
  SELECT n.position AS first, least(s.horizon, n.position + 300,
    (SELECT greatest(t.position, n.position + 1) FROM pawl.transitions AS t
      WHERE t.position >= n.position AND t.position < n.position + 300 ORDER BY t.position LIMIT 1 OFFSET (SELECT 999)),
    (SELECT greatest(m.position, n.position + 1) FROM pawl.stock_movements AS m
      WHERE m.position >= n.position AND m.position < n.position + 300 ORDER BY m.position LIMIT 1 OFFSET (SELECT 999))) AS position
  FROM origin AS s, next AS n
), moves AS MATERIALIZED (
  SELECT t.order_no, t.seq, t.position FROM pawl.transitions AS t
  WHERE t.position >= (SELECT s.first FROM span AS s) AND t.position < (SELECT s.position FROM span AS s) AND NOT EXISTS (
    SELECT FROM pawl.early_events AS y
    WHERE y.position >= (SELECT s.first FROM span AS s) AND y.position = t.position AND y.order_no = t.order_no AND y.item = '' AND y.seq = t.seq)
  ORDER BY t.position LIMIT 1000
), movements AS MATERIALIZED (
  SELECT m.item, m.version, m.position FROM pawl.stock_movements AS m
  WHERE m.position >= (SELECT s.first FROM span AS s) AND m.position < (SELECT s.position FROM span AS s) AND NOT EXISTS (
    SELECT FROM pawl.early_events AS y
    WHERE y.position >= (SELECT s.first FROM span AS s) AND y.position = m.position AND y.order_no = 0 AND y.item = m.item AND y.seq = m.version)
  ORDER BY m.position LIMIT 1000
), finish AS MATERIALIZED (
  SELECT CASE WHEN d.last > d.first THEN d.last ELSE d.first + 1 END AS position, d.last <= d.first AS whole
  FROM (
    SELECT s.first, least(s.position,
      CASE WHEN (SELECT count(*) FROM moves) = 1000 THEN (SELECT max(v.position) FROM moves AS v) END,
      CASE WHEN (SELECT count(*) FROM movements) = 1000 THEN (SELECT max(v.position) FROM movements AS v) END) AS last
    FROM span AS s WHERE s.first < s.position
  ) AS d
), found AS MATERIALIZED (
  SELECT w.order_no, w.item, w.seq, w.position, lag(w.seq) OVER (PARTITION BY w.order_no, w.item ORDER BY w.seq) AS before
  FROM (
    SELECT v.order_no, ''::text COLLATE "C" AS item, v.seq::bigint AS seq, v.position FROM moves AS v WHERE NOT (SELECT f.whole FROM finish AS f)
    UNION ALL
    SELECT 0, m.item, m.version, m.position FROM movements AS m WHERE NOT (SELECT f.whole FROM finish AS f)
    UNION ALL
    SELECT t.order_no, '', t.seq, t.position FROM pawl.transitions AS t
      WHERE t.position = (SELECT f.position - 1 FROM finish AS f WHERE f.whole) AND NOT EXISTS (
      SELECT FROM pawl.early_events AS y
      WHERE y.position >= (SELECT s.first FROM span AS s) AND y.position = t.position AND y.order_no = t.order_no AND y.item = '' AND y.seq = t.seq)
    UNION ALL
    SELECT 0, m.item, m.version, m.position FROM pawl.stock_movements AS m
      WHERE m.position = (SELECT f.position - 1 FROM finish AS f WHERE f.whole) AND NOT EXISTS (
      SELECT FROM pawl.early_events AS y
      WHERE y.position >= (SELECT s.first FROM span AS s) AND y.position = m.position AND y.order_no = 0 AND y.item = m.item AND y.seq = m.version)
  ) AS w
  WHERE w.position < (SELECT f.position FROM finish AS f)
), early AS MATERIALIZED (
  SELECT p.order_no, p.item, p.seq, p.position FROM found AS w CROSS JOIN LATERAL (
    SELECT t.order_no, ''::text COLLATE "C" AS item, t.seq::bigint AS seq, t.position FROM pawl.transitions AS t
    WHERE w.item = '' AND t.order_no = w.order_no AND t.seq < w.seq AND t.seq > coalesce((
      SELECT u.seq FROM pawl.transitions AS u WHERE u.order_no = w.order_no AND u.seq < w.seq AND u.position < (SELECT f.position FROM finish AS f)
      ORDER BY u.seq DESC LIMIT 1), 0)
    UNION ALL
    SELECT 0, m.item, m.version, m.position FROM pawl.stock_movements AS m
    WHERE w.item <> '' AND m.item = w.item AND m.version < w.seq AND m.version > coalesce((
      SELECT u.version FROM pawl.stock_movements AS u WHERE u.item = w.item AND u.version < w.seq
        AND u.position < (SELECT f.position FROM finish AS f)
      ORDER BY u.version DESC LIMIT 1), 0)
  ) AS p
  WHERE w.seq > 1 AND w.before IS DISTINCT FROM w.seq - 1 AND (w.item <> '' OR ( -- one look-up decides nearly all of them
    SELECT u.position FROM pawl.transitions AS u WHERE u.order_no = w.order_no AND u.seq < w.seq
      ORDER BY u.seq DESC LIMIT 1) >= (SELECT f.position FROM finish AS f))
), held AS MATERIALIZED ( -- locked first: without the lease, nothing is written
  SELECT r.epoch FROM pawl.event_relay AS r
  WHERE r.singleton AND r.owner = @owner::uuid AND r.fence = @fence AND EXISTS (SELECT FROM found)
    AND split_part(r.history, '/', 1) = left(pg_walfile_name(pg_current_wal_lsn()), 8) AND (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  FOR NO KEY UPDATE
), batch AS (
  INSERT INTO pawl.event_batches AS b (first_event_no, last_event_no, position_from, position_to, epoch, whole)
  SELECT s.last_event_no + 1, s.last_event_no + n.events, s.position, f.position, h.epoch, f.whole
  FROM held AS h, origin AS s, finish AS f, (SELECT (SELECT count(*) FROM found) + (SELECT count(*) FROM early) AS events) AS n
  ON CONFLICT (first_event_no) DO NOTHING -- they have numbers already
  RETURNING b.first_event_no, b.last_event_no
), kept AS (
  INSERT INTO pawl.early_events (first_event_no, position, order_no, item, seq)
  SELECT b.first_event_no, e.position, e.order_no, e.item, e.seq FROM batch AS b, early AS e
)
SELECT coalesce((SELECT b.last_event_no - b.first_event_no + 1 FROM batch AS b LIMIT 1), 0)::bigint AS events,
  coalesce((SELECT f.position < s.horizon FROM finish AS f), false)::boolean AS more, s.horizon::bigint AS horizon,
  (pg_snapshot_xmin(pg_current_snapshot()) <> pg_snapshot_xmax(pg_current_snapshot()))::boolean AS held_back, -- by an open transaction
  coalesce(r.wanted_until > now(), false)::boolean AS wanted,
  coalesce(r.owner = @owner::uuid AND r.fence = @fence
    AND split_part(r.history, '/', 1) = left(pg_walfile_name(pg_current_wal_lsn()), 8), false)::boolean AS ours
FROM origin AS s, pawl.event_relay AS r WHERE r.singleton;

-- name: EventBatchesFrom :many
-- Returns the batch of an event and the later ones.
SELECT b.* FROM pawl.event_batches AS b
WHERE b.first_event_no >= coalesce((SELECT max(c.first_event_no) FROM pawl.event_batches AS c WHERE c.first_event_no <= @event_no), 0)
ORDER BY b.first_event_no LIMIT @most;

-- name: EventBatchesOfOrder :many
-- Returns the batches with events of an order after a number. A row is in the batch of its position or, if it was
-- early, in that of a later row of the order.
WITH positions AS MATERIALIZED (
  SELECT DISTINCT t.position FROM pawl.orders AS o JOIN pawl.transitions AS t ON t.order_no = o.order_no WHERE o.order_id = @order_id
), batches AS MATERIALIZED (
  SELECT DISTINCT b.first_event_no FROM positions AS p CROSS JOIN LATERAL (
    SELECT c.first_event_no, c.position_from FROM pawl.event_batches AS c WHERE c.position_to > p.position ORDER BY c.position_to LIMIT 1
  ) AS b WHERE b.position_from <= p.position
)
SELECT b.* FROM pawl.event_batches AS b
WHERE b.first_event_no = ANY(ARRAY(SELECT c.first_event_no FROM batches AS c)) AND b.last_event_no > @after
ORDER BY b.first_event_no LIMIT @most;

-- name: EventsOfBatch :many
-- Returns the events of a batch after a number.
SELECT e.event_no, e.epoch, e.order_no, e.item::text AS stock_item, e.seq, e.at::timestamptz AS at, coalesce(e.from_status, '')::text AS from_status,
  e.to_status::text AS to_status, coalesce(e.verb, '')::text AS verb, coalesce(e.actor, '')::text AS actor,
  coalesce(e.on_behalf_of, '')::text AS on_behalf_of, coalesce(left(e.reason, 2000), '')::text AS reason, e.change, e.on_hand,
  coalesce(o.order_id, '')::text AS order_id, coalesce(o.amount, '')::text AS amount, coalesce(o.currency, '')::text AS currency,
  coalesce(o.item, '')::text AS item, coalesce(o.quantity, 0)::integer AS quantity, o.lines, coalesce(o.customer_id, '')::text AS customer_id,
  CASE WHEN e.to_status = 'completed' THEN coalesce(o.route, '') ELSE '' END::text AS route, -- until then it may change
  coalesce(f.kind, '')::text AS operation_kind, coalesce(f.number, 0)::integer AS operation, coalesce(f.amount, '')::text AS operation_amount, f.lines AS operation_lines,
  coalesce(f.in_ledger, false)::boolean AS in_ledger
FROM pawl.events AS e
LEFT JOIN LATERAL ( -- one at a time: how many there will be is not known to the planner, which would read all orders
  SELECT w.order_id::text, w.amount::text, w.currency::text, w.item::text, w.quantity::integer, w.lines, w.customer_id::text, w.route
  FROM pawl.orders AS w WHERE w.order_no = e.order_no LIMIT 1
) AS o ON true
LEFT JOIN LATERAL (
  SELECT r.kind::text AS kind, r.number, r.amount::text AS amount, r.lines, r.executor IS NULL AS in_ledger FROM pawl.charge_operations AS r
  WHERE e.verb ~ '^(refund|capture|void)' AND r.order_no = e.order_no AND r.number > 0
    AND CASE WHEN e.request_id IS NOT NULL THEN r.request_id = e.request_id
      ELSE r.number = substring(e.reason FROM '^(?:refund|capture|void) ([0-9]+)')::integer END LIMIT 1
) AS f ON true
WHERE e.first_event_no = @first_event_no AND e.event_no > @after
ORDER BY e.event_no LIMIT @most;

-- name: EventsByKey :many
-- Returns events by their rows, with the numbers that the caller has for them. Each row is found by its key.
SELECT k.event_no::bigint AS event_no, k.epoch::integer AS epoch, k.order_no::bigint AS order_no, k.item::text AS stock_item, k.seq::bigint AS seq,
  e.at::timestamptz AS at, coalesce(e.from_status, '')::text AS from_status,
  e.to_status::text AS to_status, coalesce(e.verb, '')::text AS verb, coalesce(e.actor, '')::text AS actor,
  coalesce(e.on_behalf_of, '')::text AS on_behalf_of, coalesce(left(e.reason, 2000), '')::text AS reason, e.change, e.on_hand,
  coalesce(o.order_id, '')::text AS order_id, coalesce(o.amount, '')::text AS amount, coalesce(o.currency, '')::text AS currency,
  coalesce(o.item, '')::text AS item, coalesce(o.quantity, 0)::integer AS quantity, o.lines, coalesce(o.customer_id, '')::text AS customer_id,
  CASE WHEN e.to_status = 'completed' THEN coalesce(o.route, '') ELSE '' END::text AS route, -- until then it may change
  coalesce(f.kind, '')::text AS operation_kind, coalesce(f.number, 0)::integer AS operation, coalesce(f.amount, '')::text AS operation_amount, f.lines AS operation_lines,
  coalesce(f.in_ledger, false)::boolean AS in_ledger
FROM ROWS FROM (unnest(@event_nos::bigint[]), unnest(@epochs::integer[]), unnest(@order_nos::bigint[]),
  unnest(@items::text[]), unnest(@seqs::bigint[]))
  AS k(event_no, epoch, order_no, item, seq)
CROSS JOIN LATERAL (
  (SELECT t.at, t.from_status, t.to_status, t.verb, t.actor, t.on_behalf_of, t.reason, t.request_id, NULL::bigint AS change, NULL::bigint AS on_hand
   FROM pawl.transitions AS t WHERE k.item = '' AND t.order_no = k.order_no AND t.seq = k.seq LIMIT 1)
  UNION ALL
  (SELECT s.at, NULL, s.kind, NULL, s.actor, s.on_behalf_of, s.reason, s.request_id, s.change, s.on_hand
   FROM pawl.stock_movements AS s WHERE k.item <> '' AND s.item = k.item AND s.version = k.seq LIMIT 1)
) AS e
LEFT JOIN LATERAL (
  SELECT w.order_id::text, w.amount::text, w.currency::text, w.item::text, w.quantity::integer, w.lines, w.customer_id::text, w.route
  FROM pawl.orders AS w WHERE w.order_no = k.order_no LIMIT 1
) AS o ON true
LEFT JOIN LATERAL (
  SELECT r.kind::text AS kind, r.number, r.amount::text AS amount, r.lines, r.executor IS NULL AS in_ledger FROM pawl.charge_operations AS r
  WHERE e.verb ~ '^(refund|capture|void)' AND r.order_no = k.order_no AND r.number > 0
    AND CASE WHEN e.request_id IS NOT NULL THEN r.request_id = e.request_id
      ELSE r.number = substring(e.reason FROM '^(?:refund|capture|void) ([0-9]+)')::integer END LIMIT 1
) AS f ON true;

-- name: EventBatchesPurge :execrows
-- Deletes some of the oldest batches, but never the newest, nor one with events for which an enabled endpoint has no
-- deliveries yet. The rows themselves stay in the history.
WITH old AS MATERIALIZED (
  SELECT b.first_event_no, b.position_to FROM pawl.event_batches AS b
  WHERE b.at < now() - make_interval(secs => @retention_seconds::float8) AND NOT EXISTS (
      SELECT FROM pawl.webhook_endpoints AS e WHERE e.state = 'enabled' AND e.event_no < b.last_event_no)
    AND b.first_event_no < (SELECT max(n.first_event_no) FROM pawl.event_batches AS n)
  ORDER BY b.first_event_no LIMIT @most
), early AS ( -- they count until the batch of their position is gone
  DELETE FROM pawl.early_events AS y WHERE y.position < (SELECT max(o.position_to) FROM old AS o)
)
DELETE FROM pawl.event_batches AS b USING old AS o WHERE b.first_event_no = o.first_event_no;
