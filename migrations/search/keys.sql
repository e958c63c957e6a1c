-- The metadata keys that can be searched: the comments of the indexes of pawl.orders_by_metadata. One that is not valid
-- was not finished.
SELECT obj_description(i.indexrelid, 'pg_class') AS key
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = 'pawl.orders'::regclass AND i.indisvalid AND starts_with(c.relname, 'orders_metadata_')
  AND obj_description(i.indexrelid, 'pg_class') IS NOT NULL
ORDER BY 1
