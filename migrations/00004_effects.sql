-- +goose Up

-- What the steps did. Rows come only from the statement that moved their order,
-- so there is no foreign key (it would cost a third of the speed); `pawl verify`
-- looks for orphans. Keys are (order, generation): a step of one generation can't
-- happen twice; the partial indexes let one live effect per order exist at all.

CREATE TABLE pawl.charges (
  order_no    bigint NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now(),
  refunded_at timestamptz,
  generation  integer NOT NULL,
  currency    text COLLATE "C" NOT NULL,
  amount      pawl.money_amount NOT NULL,
  CONSTRAINT charges_pkey PRIMARY KEY (order_no, generation)
);
CREATE UNIQUE INDEX charges_live ON pawl.charges (order_no) WHERE refunded_at IS NULL;

CREATE TABLE pawl.refunds (
  order_no   bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  generation integer NOT NULL,
  currency   text COLLATE "C" NOT NULL,
  amount     pawl.money_amount NOT NULL,
  CONSTRAINT refunds_pkey PRIMARY KEY (order_no, generation)
);

CREATE TABLE pawl.reservations (
  order_no    bigint NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now(),
  released_at timestamptz,
  generation  integer NOT NULL,
  quantity    pawl.item_quantity NOT NULL,
  item        text COLLATE "C" NOT NULL,
  CONSTRAINT reservations_pkey PRIMARY KEY (order_no, generation)
);
CREATE UNIQUE INDEX reservations_live ON pawl.reservations (order_no) WHERE released_at IS NULL;
CREATE INDEX reservations_item ON pawl.reservations (item, order_no);

-- One row per item that was ever reserved or given stock. Until it is given stock
-- an item is untracked and never runs out. Reserving raises reserved; confirming
-- is the sale, on_hand and reserved both fall; what is left to sell is
-- on_hand - reserved. Units sold are counted whether the item is tracked or not.
CREATE DOMAIN pawl.stock_count AS bigint CONSTRAINT stock_count CHECK (VALUE >= 0);
CREATE TABLE pawl.inventory (
  on_hand    pawl.stock_count NOT NULL DEFAULT 0,
  reserved   pawl.stock_count NOT NULL DEFAULT 0,
  sold       pawl.stock_count NOT NULL DEFAULT 0,
  version    bigint NOT NULL DEFAULT 1,   -- raised by every sale and every stock movement
  tracked    boolean NOT NULL DEFAULT false,
  item       text COLLATE "C" PRIMARY KEY,
  CONSTRAINT inventory_not_oversold CHECK (NOT tracked OR reserved <= on_hand)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- Empty pages, for the reason given at orders.
ALTER TABLE pawl.charges SET (vacuum_truncate = false, fillfactor = 10);
ALTER TABLE pawl.reservations SET (vacuum_truncate = false, fillfactor = 10);
ALTER TABLE pawl.inventory SET (vacuum_truncate = false, fillfactor = 10);
INSERT INTO pawl.charges (order_no, generation, currency, amount)
SELECT page, 0, repeat('x', 900), 0 FROM generate_series(1, 128) AS page;
INSERT INTO pawl.reservations (order_no, generation, quantity, item)
SELECT page, 0, 1, repeat('x', 900) FROM generate_series(1, 128) AS page;
INSERT INTO pawl.inventory (item) SELECT rpad(page::text, 900, 'x') FROM generate_series(1, 128) AS page;
DELETE FROM pawl.charges;
DELETE FROM pawl.reservations;
DELETE FROM pawl.inventory;
ALTER TABLE pawl.charges RESET (fillfactor);
ALTER TABLE pawl.reservations RESET (fillfactor);
ALTER TABLE pawl.inventory SET (fillfactor = 50);

-- +goose Down
DROP TABLE pawl.inventory;
DROP DOMAIN pawl.stock_count;
DROP TABLE pawl.reservations;
DROP TABLE pawl.refunds;
DROP TABLE pawl.charges;
