SELECT format('DROP INDEX CONCURRENTLY IF EXISTS pawl.%I', 'orders_metadata_' || left(md5($1::text), 12))
