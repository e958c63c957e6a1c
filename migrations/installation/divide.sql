-- Keeps one half of the orders that this database and a copy of it have: the cell that the installation has now. Orders
-- of the other half that have not ended are held here for good, under a raised fence, so that no replica drives them.
-- They get no row of history, because their next one is in the other cell, with the same seq. Their charge operations,
-- late undos and questions about authorizations are not sent from here. One half of the free units of each tracked item
-- stays.
DO $$
DECLARE
  of integer;
  number integer;
  other text;
BEGIN
  SELECT split_part(i.cell, '/', 1)::integer, split_part(i.cell, '/', 2)::integer FROM pawl.installation AS i INTO number, of;
  other := format('%s/%s', number # 1, of);
  CREATE TEMPORARY TABLE others ON COMMIT DROP AS
    SELECT o.order_no FROM pawl.orders AS o WHERE get_byte(sha256(convert_to(o.order_id, 'UTF8')), 0) * of / 256 <> number;
  ALTER TABLE others ADD PRIMARY KEY (order_no);
  ANALYZE others;

  ALTER TABLE pawl.orders DISABLE TRIGGER orders_guard_terms; -- a held order has no permit
  UPDATE pawl.orders AS o SET hold = 'paused', hold_reason = 'other_cell: ' || other, due_at = NULL, owner = NULL,
    fence = o.fence + 1, complete_by = NULL, reserved_until = NULL, concurrency_key = NULL
  FROM others AS x WHERE o.order_no = x.order_no AND o.ended_as IS NULL;
  ALTER TABLE pawl.orders ENABLE TRIGGER orders_guard_terms;

  UPDATE pawl.charge_operations AS f SET due_at = NULL, claims = f.claims + 1, code = 'other_cell' FROM others AS x
  WHERE f.order_no = x.order_no AND f.due_at IS NOT NULL;
  UPDATE pawl.charges AS c SET capture_by = NULL, capture_due_at = NULL FROM others AS x
  WHERE c.order_no = x.order_no AND c.capture_by IS NOT NULL;
  UPDATE pawl.late_undos AS u SET finished_at = now(), claims = u.claims + 1, code = 'other_cell' FROM others AS x
  WHERE u.order_no = x.order_no AND u.finished_at IS NULL;

  -- The lower half keeps the odd unit.
  WITH kept AS (
    UPDATE pawl.inventory AS i SET version = i.version + 1,
      on_hand = i.reserved + (i.on_hand - i.reserved + 1 - number % 2) / 2
    WHERE i.tracked AND i.on_hand > i.reserved RETURNING i.item, i.version, i.on_hand, i.reserved, i.sold
  )
  INSERT INTO pawl.stock_movements (item, version, kind, change, on_hand, sold, actor, reason, request_id)
  SELECT k.item, k.version, 'adjustment', k.on_hand - b.on_hand, k.on_hand, k.sold, 'owner', 'the rest is in cell ' || other, 'cell ' || number || '/' || of
  FROM kept AS k JOIN pawl.inventory AS b ON b.item = k.item;

  -- No order is admitted until a replica renews the numbering, which one of the undivided cell can't.
  DELETE FROM pawl.order_numbering;
END $$
