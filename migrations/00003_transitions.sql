-- +goose Up

-- The history, and the event that goes out: one row per write of an order,
-- written by the write itself. A row whose from and to are the same kept the
-- status (a take-over, a hold, a request to stop). An order that starts at once
-- begins with pending to charging; one admitted to wait begins with null to
-- pending.
CREATE TABLE pawl.transitions (
  order_no    bigint NOT NULL,
  at          timestamptz NOT NULL DEFAULT now(),
  fence       bigint NOT NULL,
  position    bigint NOT NULL DEFAULT txid_current(), -- of the event in the feed, roughly: its transaction (00018_events.sql)
  previous_no bigint,    -- of the first row: the order that its replica admitted before, so that one that is gone is missed
  seq         integer NOT NULL,
  id_hash     integer,   -- of the first row: hashtext(order_id), so that a renamed order is found
  from_status text COLLATE "C",
  to_status   text COLLATE "C" NOT NULL,
  verb        text,      -- what was done, where the status does not say it
  actor       text,      -- the principal that asked for it; null: the service by itself
  reason      text,
  request_id  text,      -- the caller's, or its Idempotency-Key, so that a repeated request is known

  -- What a retry with another payment method replaced, '' where there was none: what was sent under the keys of an earlier
  -- generation is sent again as it was. It is shown to nobody.
  payment_method text,

  on_behalf_of text,     -- for whom the actor says that it asked
  fingerprint  bytea,    -- of the request with that id: another one with the same id is refused
  CONSTRAINT transitions_pkey PRIMARY KEY (order_no, seq)
);
CREATE INDEX transitions_position ON pawl.transitions (position);
CREATE INDEX transitions_request ON pawl.transitions (request_id, actor) WHERE request_id IS NOT NULL; -- what a bulk request did

-- +goose Down
DROP TABLE pawl.transitions;
