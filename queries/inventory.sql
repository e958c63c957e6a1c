-- name: InventoryGet :one
-- Durable, as OrdersByID: for whoever is told that his stock is set by a statement whose answer was lost.
SELECT i.* FROM inventory AS i WHERE i.item = @item
  AND (NOT @durable::boolean OR (SELECT pg_logical_emit_message(true, 'pawl', '')) IS NOT NULL);

-- name: InventoryList :many
SELECT i.* FROM inventory AS i
WHERE i.item > @after ORDER BY i.item LIMIT @most;

-- name: InventorySet :many
-- Sets the stock on the shelf, sold units already gone from it. No row comes back when
-- less than what is reserved was asked for, or when the version is another: 0 is that of
-- an item that is not there, which no row has. The row lock orders this with the
-- reservations under way.
INSERT INTO inventory AS i (item, on_hand, tracked)
SELECT @item::text, @on_hand::bigint, true
WHERE (SELECT set_config('lock_timeout', '500ms', true)) <> ''
  AND (@if_version::bigint = 0
    OR EXISTS (SELECT 1 FROM inventory AS j WHERE j.item = @item::text))
ON CONFLICT (item) DO UPDATE SET on_hand = excluded.on_hand, tracked = true, version = i.version + 1
  WHERE i.reserved <= excluded.on_hand
    AND i.version = @if_version::bigint
RETURNING i.*;
