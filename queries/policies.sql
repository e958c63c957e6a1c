-- name: PolicyStore :many
-- Stores a policy unless it is there, and activates a new one, and any one while none has
-- ever been active. No row: somebody stores it at this
-- moment; asked again, it is found. The NOT EXISTS saves a number each time a stored one
-- is found; those who store the same at one moment may still leave a gap.
WITH given AS (
  SELECT g.source, sha256(convert_to(g.source, 'UTF8')) AS hash FROM (SELECT @source::text AS source) AS g
), stored AS (
  INSERT INTO pawl.policies (hash, source)
  SELECT g.hash, g.source FROM given AS g
  WHERE NOT EXISTS (SELECT FROM pawl.policies AS p WHERE p.hash = g.hash)
  ON CONFLICT (hash) DO NOTHING
  RETURNING policies.version
), found AS (
  SELECT s.version, true AS created FROM stored AS s
  UNION ALL
  SELECT p.version, false FROM pawl.policies AS p JOIN given AS g ON g.hash = p.hash
), activated AS (
  INSERT INTO pawl.policy_activations (version, actor)
  SELECT f.version, @actor::text FROM found AS f
  WHERE f.created OR NOT EXISTS (SELECT FROM pawl.policy_activations)
  RETURNING policy_activations.version
)
SELECT f.version::integer AS version, f.created::boolean AS created,
  EXISTS (SELECT FROM activated)::boolean AS activated
FROM found AS f;

-- name: PolicyActivate :exec
-- Makes a version the active one, and leaves the history alone where it is already.
INSERT INTO pawl.policy_activations (version, actor)
SELECT p.version, @actor::text FROM pawl.policies AS p
WHERE p.version = @version
  AND p.version IS DISTINCT FROM (SELECT a.version FROM pawl.policy_activations AS a ORDER BY a.activation_no DESC LIMIT 1);

-- name: PolicyActive :one
-- The active version; no row when there has never been one.
SELECT a.version FROM pawl.policy_activations AS a ORDER BY a.activation_no DESC LIMIT 1;

-- name: PolicyGet :one
SELECT p.source FROM pawl.policies AS p WHERE p.version = @version;

-- name: PoliciesUnknown :many
-- The versions that are not among those given. A lower version can come to light after
-- a higher one, so the highest version seen says nothing about those below it.
SELECT p.version, p.source FROM pawl.policies AS p
WHERE p.version <> ALL(coalesce(@known::integer[], '{}')) ORDER BY p.version;

-- name: PoliciesList :many
-- All versions, each with when it was last made the active one.
SELECT p.version, p.created_at, p.source, a.at AS activated_at, a.actor,
  coalesce(a.activation_no = max(a.activation_no) OVER (), false)::boolean AS active
FROM pawl.policies AS p
LEFT JOIN pawl.policy_activations AS a
  ON a.activation_no = (SELECT max(x.activation_no) FROM pawl.policy_activations AS x WHERE x.version = p.version)
ORDER BY p.version;

-- name: PoliciesOfLate :many
-- The versions that are active, or were less than 31 days ago: an order waits for an event for 30 days at most.
SELECT DISTINCT a.version FROM (
  SELECT p.version, lead(p.at) OVER (ORDER BY p.activation_no) AS until FROM pawl.policy_activations AS p) AS a
WHERE a.until IS NULL OR a.until > now() - interval '31 days';
