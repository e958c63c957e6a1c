-- name: InventoryGet :one
SELECT i.* FROM pawl.inventory AS i WHERE i.item = @item;

-- name: InventoryTracked :one
-- Reports whether the stock of any item is tracked.
SELECT EXISTS (SELECT FROM pawl.inventory AS i WHERE i.tracked)::boolean AS tracked;

-- name: InventoryList :many
SELECT i.* FROM pawl.inventory AS i
WHERE i.item > @after ORDER BY i.item LIMIT @most;

-- name: InventoryUnlocked :many
-- Returns the items whose rows no other transaction has locked or is inserting.
SELECT i.item FROM pawl.inventory AS i WHERE i.item = ANY(@names::text[]) FOR NO KEY UPDATE SKIP LOCKED;

-- name: InventoryMove :many
-- Changes the stock of an item by some units, and records it. No row: a request of this actor with this id was
-- recorded before; less than the reserved units or more than the limit would be left; or the version differs. Version
-- 0 is for an item that does not exist, and matches no row; null matches any. The row lock orders this with
-- concurrent sales.
WITH moved AS (
  INSERT INTO pawl.inventory AS i (item, on_hand, tracked)
  SELECT @item::text, greatest(@change::bigint, 0), true
  WHERE (SELECT set_config('lock_timeout', '500ms', true)) <> ''
    AND (@change::bigint BETWEEN 0 AND 1000000000000 AND coalesce(sqlc.narg('if_version')::bigint, 0) = 0
      OR EXISTS (SELECT 1 FROM pawl.inventory AS j WHERE j.item = @item::text))
    AND NOT EXISTS (SELECT 1 FROM pawl.stock_movements AS s WHERE s.item = @item::text
      AND s.request_id = @request_id::text AND s.actor = @actor::text AND s.kind <> 'restock')
  ON CONFLICT (item) DO UPDATE SET on_hand = i.on_hand + @change::bigint, tracked = true, version = i.version + 1
    WHERE i.on_hand + @change::bigint BETWEEN i.reserved AND 1000000000000
      AND (sqlc.narg('if_version')::bigint IS NULL OR i.version = sqlc.narg('if_version')::bigint)
  RETURNING i.*
), recorded AS (
  INSERT INTO pawl.stock_movements (item, version, kind, change, on_hand, sold, actor, on_behalf_of, reason, request_id)
  SELECT m.item, m.version, @kind::text, @change::bigint, m.on_hand, m.sold,
    @actor::text, sqlc.narg('on_behalf_of')::text, sqlc.narg('reason')::text, @request_id::text
  FROM moved AS m
)
SELECT m.* FROM moved AS m;

-- name: StockMovementByRequest :one
-- Returns what a request of this actor with this id did to the stock, if it was seen before. Durable, as OrdersByID:
-- the caller is told that it was done.
SELECT s.* FROM pawl.stock_movements AS s
WHERE s.item = @item AND s.request_id = @request_id::text AND s.actor = @actor::text AND s.kind <> 'restock'
  AND (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL;

-- name: StockMovementsOf :many
SELECT s.* FROM pawl.stock_movements AS s
WHERE s.item = @item AND s.version > @after AND s.version < @before ORDER BY s.version LIMIT @most;

-- name: StockMovementsOfNewest :many
SELECT s.* FROM pawl.stock_movements AS s
WHERE s.item = @item AND s.version > @after AND s.version < @before ORDER BY s.version DESC LIMIT @most;

-- name: InventoryLook :many
-- Returns what is left of those items whose stock is tracked.
SELECT i.item, (i.on_hand - i.reserved)::bigint AS available FROM pawl.inventory AS i
WHERE i.item = ANY((SELECT @names::text[])::text[]) AND i.tracked;
