-- The statements that make the index of a key, each to be sent by itself: an index that is made while orders are written
-- can't be made in a transaction. What an earlier, interrupted run left is removed first.
SELECT s.text FROM (SELECT 'orders_metadata_' || left(md5($1::text), 12) AS index) AS i CROSS JOIN LATERAL (VALUES
  (1, CASE WHEN EXISTS (SELECT FROM pg_index AS x WHERE x.indexrelid = to_regclass('pawl.' || i.index) AND NOT x.indisvalid)
    THEN format('DROP INDEX CONCURRENTLY pawl.%I', i.index) ELSE '' END),
  (2, format('CREATE INDEX CONCURRENTLY IF NOT EXISTS %I ON pawl.orders ((left(metadata ->> %L, 255) COLLATE "C"), order_no) WHERE metadata ? %2$L',
    i.index, $1::text)),
  (3, format('COMMENT ON INDEX pawl.%I IS %L', i.index, $1::text))
) AS s(number, text) WHERE s.text <> '' ORDER BY s.number
