-- Records what is applied and was not recorded. Of replicas that migrate at the same time the
-- first one counts; the others compare their files with what it recorded.
INSERT INTO pawl.migration_checksums (version, sha256)
SELECT n.version, n.sha256 FROM ROWS FROM (unnest($1::bigint[]), unnest($2::text[])) AS n(version, sha256)
WHERE EXISTS (SELECT FROM public.goose_db_version AS g WHERE g.version_id = n.version AND g.is_applied)
ORDER BY n.version
ON CONFLICT (version) DO NOTHING
