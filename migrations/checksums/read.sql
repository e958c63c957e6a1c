-- What was recorded of each of these versions ('' for nothing), and whether it is applied.
SELECT n.version, coalesce(c.sha256, ''),
  EXISTS (SELECT FROM public.goose_db_version AS g WHERE g.version_id = n.version AND g.is_applied)
FROM unnest($1::bigint[]) AS n(version) LEFT JOIN pawl.migration_checksums AS c ON c.version = n.version
