-- What somebody who knows PostgreSQL would write for this contract by hand: narrow
-- keys for the child tables, one index per question asked, room on the page for HOT
-- updates, no foreign keys and no triggers on the hot path.
CREATE TABLE orders (
  order_no   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  created_at timestamptz NOT NULL DEFAULT now(),
  status     text NOT NULL CHECK (status IN ('charging', 'reserving', 'confirming', 'completed', 'releasing', 'refunding', 'failed')),
  order_id   text NOT NULL UNIQUE,
  item       text NOT NULL,
  quantity   integer NOT NULL DEFAULT 1 CHECK (quantity >= 1),
  amount     numeric NOT NULL CHECK (amount >= 0),
  process    bigint -- that drives it, where a provider does the steps
) WITH (fillfactor = 50);

CREATE TABLE transitions (
  order_no    bigint NOT NULL,
  seq         integer NOT NULL,
  at          timestamptz NOT NULL DEFAULT now(),
  from_status text NOT NULL,
  to_status   text NOT NULL,
  PRIMARY KEY (order_no, seq)
);

CREATE TABLE charges (
  order_no    bigint PRIMARY KEY,
  created_at  timestamptz NOT NULL DEFAULT now(),
  refunded_at timestamptz,
  amount      numeric NOT NULL,
  reference   text
);

CREATE TABLE reservations (
  order_no    bigint NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now(),
  released_at timestamptz,
  line        smallint NOT NULL DEFAULT 1,
  item        text NOT NULL,
  quantity    integer NOT NULL,
  reference   text,
  PRIMARY KEY (order_no, line)
);

-- Of orders with lines, whose item is ''.
CREATE TABLE order_lines (
  order_no bigint NOT NULL,
  line     smallint NOT NULL,
  item     text NOT NULL,
  quantity integer NOT NULL,
  PRIMARY KEY (order_no, line)
);

CREATE TABLE inventory (
  item     text PRIMARY KEY,
  on_hand  bigint NOT NULL DEFAULT 0,
  reserved bigint NOT NULL DEFAULT 0,
  tracked  boolean NOT NULL DEFAULT false,
  CHECK (NOT tracked OR reserved <= on_hand)
) WITH (fillfactor = 50);

-- Where a provider does the steps.
CREATE TABLE confirmations (
  order_no   bigint PRIMARY KEY,
  created_at timestamptz NOT NULL DEFAULT now(),
  reference  text
);

CREATE TABLE calls (
  order_no    bigint NOT NULL,
  call        integer NOT NULL, -- the seq of the move that began it
  started_at  timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz,
  done        boolean,
  step        text NOT NULL,
  reference   text,
  PRIMARY KEY (order_no, call)
) WITH (fillfactor = 50);

CREATE TABLE processes (
  process bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  seen_at timestamptz NOT NULL DEFAULT now()
);
