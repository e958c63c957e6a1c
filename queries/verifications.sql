-- Verifications of the books. What they check is in verify.sql.

-- name: VerificationStart :one
-- Stores the beginning of a verification, unless another one is under way, and returns its number, or 0. Two that begin
-- at the same moment do no harm. With beside, it begins in any case.
WITH started AS (
  INSERT INTO pawl.verifications AS v (started_by) SELECT @started_by::text
  WHERE @beside::boolean OR NOT EXISTS (
    SELECT 1 FROM pawl.verifications AS w WHERE w.finished_at IS NULL AND w.seen_at > now() - interval '1 minute')
  RETURNING v.number
)
SELECT coalesce((SELECT s.number FROM started AS s), 0)::bigint AS number;

-- name: VerificationProgress :exec
UPDATE pawl.verifications AS v SET seen_at = now(), done = @done, total = @total
WHERE v.number = @number::bigint AND v.finished_at IS NULL;

-- name: VerificationFinish :exec
-- Stores the end of a verification: without a report, it could not read everything. The newest hundred are kept, and the
-- newest comparison with each provider.
WITH this AS (
  SELECT @number::bigint AS number
), old AS (
  DELETE FROM pawl.verifications AS o WHERE o.number <= (SELECT t.number FROM this AS t) - 100
    AND NOT EXISTS (SELECT FROM pawl.newest_comparisons AS c WHERE c.number = o.number)
)
UPDATE pawl.verifications AS v SET seen_at = now(), finished_at = now(), done = @done, total = @total,
  wrong = CASE WHEN sqlc.narg('report')::text IS NOT NULL THEN @wrong::text[] END, report = sqlc.narg('report')::json,
  compared = CASE WHEN sqlc.narg('report')::text IS NOT NULL THEN sqlc.narg('compared')::text[] END, differ = sqlc.narg('differ')::text[],
  others = sqlc.narg('others')::bigint[], failure = sqlc.narg('failure')::text
WHERE v.number = (SELECT t.number FROM this AS t) AND v.finished_at IS NULL;

-- name: Verifications :many
-- Returns verifications, newest first, without their reports.
SELECT v.number, v.started_at, v.started_by, v.finished_at, v.done, v.total, coalesce(v.wrong, '{}')::text[] AS wrong,
  (v.report IS NOT NULL)::boolean AS reported, coalesce(v.compared, '{}')::text[] AS compared, coalesce(v.failure, '')::text AS failure,
  coalesce((SELECT sum(n) FROM unnest(v.others) AS n), 0)::bigint AS others,
  (v.finished_at IS NULL AND v.seen_at > now() - interval '1 minute')::boolean AS running
FROM pawl.verifications AS v WHERE v.number < @before::bigint ORDER BY v.number DESC LIMIT @most;

-- name: VerificationReport :one
-- Returns a report, or the newest one with number 0.
SELECT v.number, v.started_by, v.finished_at, v.report FROM pawl.verifications AS v
WHERE v.report IS NOT NULL AND (@number::bigint = 0 OR v.number = @number::bigint)
ORDER BY v.number DESC LIMIT 1;

-- name: VerificationVerdict :one
-- Returns what the newest report and the newest comparisons say. Number 0: there is no report. failure: it could not
-- compare with all providers. others: what is not Pawl's at the providers.
SELECT coalesce(v.number, 0)::bigint AS number, coalesce(v.finished_at, now())::timestamptz AS finished_at, coalesce(v.wrong, '{}')::text[] AS wrong,
  coalesce(v.failure, '')::text AS failure, (c.compared > 0)::boolean AS compared, coalesce(c.compared_at, now())::timestamptz AS compared_at,
  coalesce(c.differs_at, now())::timestamptz AS differs_at, coalesce(c.providers, '{}')::text[] AS providers,
  coalesce(c.others, 0)::bigint AS others
FROM (SELECT 1) AS one
LEFT JOIN LATERAL (SELECT w.number, w.finished_at, w.wrong, w.failure FROM pawl.verifications AS w WHERE w.report IS NOT NULL ORDER BY w.number DESC LIMIT 1) AS v ON true
CROSS JOIN (
  SELECT count(*) AS compared, max(w.finished_at) AS compared_at, max(w.finished_at) FILTER (WHERE p.provider = ANY(w.differ)) AS differs_at,
    array_agg(p.provider ORDER BY p.provider) FILTER (WHERE p.provider = ANY(w.differ)) AS providers,
    sum(w.others[array_position(w.compared, p.provider)]) AS others
  FROM pawl.newest_comparisons AS n JOIN pawl.verifications AS w ON w.number = n.number CROSS JOIN LATERAL unnest(n.providers) AS p(provider)) AS c;

-- name: VerificationProviders :many
-- Returns with which providers the books were compared.
SELECT DISTINCT p.provider::text AS provider FROM pawl.newest_comparisons AS c CROSS JOIN LATERAL unnest(c.providers) AS p(provider) ORDER BY 1;

-- name: VerificationComparisons :many
-- Returns the newest comparison with each provider, of its report only the checks and steps.
SELECT v.number, v.started_by, v.finished_at, c.providers::text[] AS providers,
  json_build_object('checks', v.report -> 'checks', 'steps', v.report -> 'steps', 'compared', v.compared, 'differ', v.differ)::json AS report
FROM pawl.newest_comparisons AS c JOIN pawl.verifications AS v ON v.number = c.number ORDER BY v.number DESC;

-- name: OrdersChangedSince :many
-- Returns those of some orders whose history has gone on since a time.
SELECT o.order_id FROM pawl.orders AS o WHERE o.order_id = ANY((SELECT @order_ids::text[])::text[])
  AND (SELECT t.at FROM pawl.transitions AS t WHERE t.order_no = o.order_no ORDER BY t.seq DESC LIMIT 1) > @since::timestamptz;
