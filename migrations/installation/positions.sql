-- Makes the positions of new events begin after all existing ones: in another cluster, transactions count from another number.
-- Nothing else may write meanwhile. The relay then finds another history, and begins a new epoch, also if an older state of the
-- same files was restored, which nothing else shows.
DO $$
DECLARE
  highest bigint;
  added bigint;
BEGIN
  SELECT greatest((SELECT max(t.position) FROM pawl.transitions AS t), (SELECT max(m.position) FROM pawl.stock_movements AS m),
    (SELECT max(b.position_to) FROM pawl.event_batches AS b), 0) INTO highest;
  SELECT greatest(r.position_offset, highest + 1 - txid_current()) FROM pawl.event_relay AS r INTO added;
  EXECUTE format('ALTER TABLE pawl.transitions ALTER COLUMN position SET DEFAULT txid_current() + %s', added);
  EXECUTE format('ALTER TABLE pawl.stock_movements ALTER COLUMN position SET DEFAULT txid_current() + %s', added);
  UPDATE pawl.event_relay AS r SET position_offset = added, history = '';
END $$
