-- +goose Up

-- Every change of on_hand but sales, which their orders show: on_hand is the sum of the changes
-- less what was sold since the first of them. A row is written by the statement that
-- changes the stock, and is named by the version of the item that it made.
CREATE TABLE pawl.stock_movements (
  version    bigint NOT NULL,
  at         timestamptz NOT NULL DEFAULT now(),
  change     bigint NOT NULL,        -- in units: on_hand after it less on_hand before it
  on_hand    pawl.stock_count NOT NULL,   -- after it
  sold       pawl.stock_count NOT NULL,   -- units of the item that were sold before it
  position   bigint NOT NULL DEFAULT txid_current(), -- as that of a transition
  item       text COLLATE "C" NOT NULL,
  kind       text COLLATE "C" NOT NULL,
  actor      text COLLATE "C" NOT NULL, -- the principal that asked for it
  on_behalf_of text,                 -- for whom it says that it asked
  reason     text,
  request_id text NOT NULL,          -- the caller's, or one of ours: what is asked again is done once; of a restock, the refund
  CONSTRAINT stock_movements_pkey PRIMARY KEY (item, version),
  CONSTRAINT stock_movements_kind CHECK (kind IN ('set', 'adjustment', 'restock'))
);
-- A restock is once because its refund is. No caller's id stands in its way, nor in that of another caller.
CREATE UNIQUE INDEX stock_movements_request ON pawl.stock_movements (item, request_id, actor) WHERE kind <> 'restock';

CREATE INDEX stock_movements_position ON pawl.stock_movements (position);

CREATE VIEW books.stock_movements AS
SELECT m.item, m.version, m.kind, m.change, m.on_hand::bigint, m.sold::bigint, m.at,
       m.actor, m.reason, m.request_id, m.on_behalf_of
FROM pawl.stock_movements m;
CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.stock_movements
FOR EACH ROW EXECUTE FUNCTION books.refuse_write();

CREATE OR REPLACE VIEW books.inventory AS
SELECT i.item, i.on_hand::bigint, i.reserved::bigint, i.tracked,
       CASE WHEN i.tracked THEN i.on_hand - i.reserved END AS available, i.sold::bigint, i.version
FROM pawl.inventory i;

-- Books are kept: what was written stays. The one door is a setting, for whoever moves old
-- orders to an archive: SET LOCAL pawl.archive = 'on'. It opens no way to rewrite history.
-- +goose StatementBegin
CREATE FUNCTION pawl.refuse_removal() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME USING ERRCODE = 'object_not_in_prerequisite_state';
  ELSIF coalesce(current_setting('pawl.archive', true), '') <> 'on' THEN
    RAISE EXCEPTION 'rows of % are never removed', TG_TABLE_NAME USING ERRCODE = 'object_not_in_prerequisite_state',
      HINT = 'The setting pawl.archive allows it to an archive.';
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON pawl.transitions FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON pawl.stock_movements FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
-- Another id of the installation is another key for every call: what is in doubt would be done a second time.
CREATE TRIGGER kept BEFORE UPDATE OF id OR DELETE OR TRUNCATE ON pawl.installation FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.orders FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.charges FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.refunds FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.reservations FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.confirmations FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.step_calls FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.step_answers FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.late_undos FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.inventory FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- +goose Down
DROP VIEW books.stock_movements, books.inventory;
DROP TABLE pawl.stock_movements;
DROP TRIGGER kept ON pawl.transitions;
DROP TRIGGER kept ON pawl.installation;
DROP TRIGGER kept ON pawl.orders;
DROP TRIGGER kept ON pawl.charges;
DROP TRIGGER kept ON pawl.refunds;
DROP TRIGGER kept ON pawl.reservations;
DROP TRIGGER kept ON pawl.confirmations;
DROP TRIGGER kept ON pawl.step_calls;
DROP TRIGGER kept ON pawl.step_answers;
DROP TRIGGER kept ON pawl.late_undos;
DROP TRIGGER kept ON pawl.inventory;
DROP FUNCTION pawl.refuse_removal();

CREATE VIEW books.inventory AS
SELECT i.item, i.on_hand::bigint, i.reserved::bigint, i.tracked,
       CASE WHEN i.tracked THEN i.on_hand - i.reserved END AS available
FROM pawl.inventory i;
CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.inventory
FOR EACH ROW EXECUTE FUNCTION books.refuse_write();
