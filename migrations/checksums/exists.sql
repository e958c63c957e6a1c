-- Whether checksums are kept: not before the migration that makes their table.
SELECT to_regclass('pawl.migration_checksums') IS NOT NULL
