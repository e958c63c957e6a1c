-- Forgets what was taken back since: its file may be changed, and applied anew. goose records
-- a version before record.sql does, so no other replica's fresh record is lost here.
DELETE FROM pawl.migration_checksums AS c
WHERE c.version = ANY($1::bigint[])
  AND NOT EXISTS (SELECT FROM public.goose_db_version AS g WHERE g.version_id = c.version AND g.is_applied)
