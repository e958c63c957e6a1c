-- name: PolicyStore :many
-- Stores a policy unless it exists, and reports whether it was ever active. No row: it is being stored concurrently,
-- and a second try finds it. The NOT EXISTS avoids using up a number for a policy that exists; concurrent statements
-- may still leave a gap.
WITH given AS (
  SELECT g.source, sha256(convert_to(g.source, 'UTF8')) AS hash FROM (SELECT @source::text AS source) AS g
), stored AS (
  INSERT INTO pawl.policies (hash, source, created_by)
  SELECT g.hash, g.source, @created_by::text FROM given AS g
  WHERE NOT EXISTS (SELECT FROM pawl.policies AS p WHERE p.hash = g.hash AND p.copied_from IS NULL)
  ON CONFLICT (hash) WHERE copied_from IS NULL DO NOTHING
  RETURNING policies.version
), found AS (
  SELECT s.version, true AS created FROM stored AS s
  UNION ALL
  SELECT p.version, false FROM pawl.policies AS p JOIN given AS g ON g.hash = p.hash AND p.copied_from IS NULL
)
SELECT f.version::integer AS version, f.created::boolean AS created,
  EXISTS (SELECT FROM pawl.policy_activations AS a WHERE a.version = f.version)::boolean AS ever_active
FROM found AS f;

-- name: PolicyFind :one
-- Returns the version of a text. No row: it is not stored.
SELECT p.version FROM pawl.policies AS p WHERE p.hash = sha256(convert_to(@source::text, 'UTF8')) AND p.copied_from IS NULL;

-- name: PolicyActivate :execrows
-- Activates a version, if none was activated since the activation with the given number.
INSERT INTO pawl.policy_activations (activation_no, version, actor, on_behalf_of, reason)
SELECT sqlc.arg('after')::bigint + 1, @version::integer, @actor::text, sqlc.narg('on_behalf_of')::text, sqlc.narg('reason')::text
ON CONFLICT (activation_no) DO NOTHING;

-- name: PolicyActive :one
-- Returns the active version and the number of its activation. The version is 0 if it belongs to the installation
-- that this database was copied from. No row: none was ever activated.
SELECT CASE WHEN p.copied_from IS NULL THEN a.version ELSE 0 END::integer AS version, a.activation_no
FROM pawl.policy_activations AS a JOIN pawl.policies AS p ON p.version = a.version ORDER BY a.activation_no DESC LIMIT 1;

-- name: PolicyGet :one
SELECT p.source, (p.copied_from IS NOT NULL)::boolean AS copied FROM pawl.policies AS p WHERE p.version = @version;

-- name: PoliciesUnknown :many
-- Returns the versions that are not among the given ones. A lower version may become visible after a higher one, so
-- the highest known version says nothing about lower ones.
SELECT p.version, p.source, (p.copied_from IS NOT NULL)::boolean AS copied FROM pawl.policies AS p
WHERE p.version <> ALL(coalesce(@known::integer[], '{}')) ORDER BY p.version;

-- name: PoliciesList :many
-- Returns versions below a number, highest first, each with the time of its last activation.
SELECT p.version, p.created_at, p.created_by, a.at AS activated_at, a.actor AS activated_by, a.on_behalf_of, a.reason
FROM pawl.policies AS p
LEFT JOIN pawl.policy_activations AS a
  ON a.activation_no = (SELECT max(x.activation_no) FROM pawl.policy_activations AS x WHERE x.version = p.version)
WHERE p.version < @before::integer
ORDER BY p.version DESC LIMIT @most;

-- name: PoliciesRecentlyActive :many
-- Returns the versions that are active, or were less than 31 days ago: an order waits for an event for at most 30
-- days.
SELECT DISTINCT a.version FROM (
  SELECT p.version, lead(p.at) OVER (ORDER BY p.activation_no) AS until FROM pawl.policy_activations AS p) AS a
JOIN pawl.policies AS p ON p.version = a.version AND p.copied_from IS NULL
WHERE a.until IS NULL OR a.until > now() - interval '31 days';
