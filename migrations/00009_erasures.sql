-- +goose Up

-- A customer can be erased: what is stored about a person becomes a pseudonym, the same one in all rows. It is random,
-- and stored nowhere with the customer id. Amounts, times, statuses and ids of orders stay, so the books still prove
-- what happened. One row per request.
CREATE TABLE pawl.erasures (
  number        integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  orders        integer NOT NULL DEFAULT 0,    -- how many were erased
  requested_at  timestamptz NOT NULL DEFAULT now(),
  finished_at   timestamptz,                   -- null: orders of the customer are left
  actor         text COLLATE "C" NOT NULL,     -- the principal that requested it
  on_behalf_of  text,                          -- on whose behalf it says it acts
  reason        text NOT NULL,
  request_id    text COLLATE "C" NOT NULL,     -- the caller's; identifies a repetition
  pseudonym     text COLLATE "C" NOT NULL,
  -- Of the pseudonym and the customer id, so that a request that was interrupted is continued. Once it is finished, two
  -- bytes are left: they show that a repetition names another customer, and one in 65,536 ids has them.
  customer_hash bytea NOT NULL,
  sent          jsonb                          -- to whom data of the customer was sent; null: not finished
);
CREATE UNIQUE INDEX erasures_request ON pawl.erasures (request_id, actor);
CREATE INDEX erasures_pseudonym ON pawl.erasures (pseudonym);
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.erasures FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- Whether this transaction has written the row of an erasure, which only pawl.erase_customer does: it may change texts
-- of the history. With a pseudonym, whether it is that of the row.
CREATE FUNCTION pawl.erases(pseudonym text) RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM pawl.erasures AS e
    WHERE e.xmin = pg_current_xact_id_if_assigned()::xid AND coalesce(e.pseudonym = erases.pseudonym, true))
$$;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pawl.refuse_order_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT coalesce(pawl.erases(NEW.customer_id), false) OR NEW.customer_id IS NULL
    OR (NEW.order_no, NEW.order_id, NEW.created_at, NEW.amount, NEW.currency, NEW.item, NEW.quantity, NEW.submitted_by, NEW.lines::text, NEW.route)
      IS DISTINCT FROM (OLD.order_no, OLD.order_id, OLD.created_at, OLD.amount, OLD.currency, OLD.item, OLD.quantity, OLD.submitted_by, OLD.lines::text, OLD.route)
  THEN
    RAISE EXCEPTION 'order %: what an order is about does not change', OLD.order_id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'orders_guard';
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION pawl.refuse_removal() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    IF TG_TABLE_NAME NOT IN ('transitions', 'disputes', 'stock_movements', 'webhook_changes') OR NOT pawl.erases(NULL) THEN
      RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
  ELSIF TG_OP = 'TRUNCATE' OR TG_TABLE_NAME NOT IN ('orders', 'transitions', 'charges', 'reservations', 'confirmations', 'charge_operations',
      'disputes', 'step_calls', 'step_answers', 'late_undos')
    OR NOT EXISTS (SELECT FROM pawl.forgotten_batches AS b
      WHERE b.batch_no = (SELECT max(n.batch_no) FROM pawl.forgotten_batches AS n) AND b.removed_at IS NOT NULL AND b.xmin = pg_current_xact_id()::xid)
  THEN
    RAISE EXCEPTION 'rows of % are never removed', TG_TABLE_NAME USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION pawl.refuse_policy_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND TG_TABLE_NAME = 'policy_activations' AND pawl.erases(NULL) THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION '% is only added to: orders keep the policy they started with', TG_TABLE_NAME
    USING ERRCODE = 'object_not_in_prerequisite_state';
END $$;

-- The first of some orders that can't be erased: they have not ended, or a refund, capture, void or late undo is open,
-- whose calls must stay as they are. What another cell continues is not open here.
CREATE FUNCTION pawl.orders_open(numbers bigint[]) RETURNS text[] LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT ARRAY(
    SELECT o.order_id::text FROM pawl.orders AS o
    WHERE o.order_no = ANY(orders_open.numbers) AND NOT coalesce(starts_with(o.hold_reason, 'other_cell: '), false)
      AND (o.ended_as IS NULL
        OR EXISTS (SELECT FROM pawl.charge_operations AS f WHERE f.order_no = o.order_no AND f.code IS DISTINCT FROM 'other_cell'
          AND (f.due_at IS NOT NULL OR f.state NOT IN ('done', 'failed')))
        OR EXISTS (SELECT FROM pawl.late_undos AS u WHERE u.order_no = o.order_no AND u.finished_at IS NULL))
    ORDER BY o.order_no LIMIT 20)
$$;

-- Replaces what the rows of some orders say about their customer, and writes a row of the history for each. Texts are
-- replaced as a whole, because nothing tells which of them name a person. A reference of a provider is removed if it
-- names the customer, or if a pseudonym is erased again, whose customer id is not known any more; that of a charge stays,
-- because refunds need it.
CREATE FUNCTION pawl.erase_orders(numbers bigint[], names text, pseudonym text, actor text, on_behalf_of text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
DECLARE
  p CONSTANT text := pseudonym;
  ids text[] := ARRAY(SELECT o.order_id::text FROM pawl.orders AS o WHERE o.order_no = ANY(numbers));
  -- The names in references: all of them, if a pseudonym is erased.
  refs CONSTANT text := CASE WHEN EXISTS (SELECT FROM pawl.orders AS o WHERE o.order_no = ANY(numbers) AND o.customer_id ~ '^erased_[0-9a-f]{32}$')
    THEN '' ELSE names END;
  items text[];
  restocks text[];
  endpoints integer[];
BEGIN
  -- By arrays, so that the movements of an item are read once, with statistics or without.
  SELECT array_agg(DISTINCT i.name), array_agg(DISTINCT 'refund ' || f.number || ' of ' || o.order_id) INTO items, restocks
  FROM pawl.charge_operations AS f JOIN pawl.orders AS o ON o.order_no = f.order_no CROSS JOIN LATERAL pawl.items_of(o.item, o.quantity, o.lines) AS i
  WHERE f.order_no = ANY(numbers) AND f.restock IS NOT NULL;
  UPDATE pawl.stock_movements AS m SET reason = CASE WHEN m.reason IS NOT NULL THEN p END,
    on_behalf_of = CASE WHEN m.on_behalf_of ~ names THEN p ELSE m.on_behalf_of END
  WHERE m.item = ANY(items) AND m.request_id = ANY(restocks) AND m.kind = 'restock' AND num_nonnulls(m.reason, m.on_behalf_of) > 0;
  UPDATE pawl.transitions AS t SET
    -- Readers take the route of a fallback, and the number of a charge operation without a request id, from the reason.
    reason = CASE WHEN t.verb = 'fallback' THEN p || coalesce(substring(t.reason FROM ': next route [^:]*$'), '')
      WHEN t.reason IS NOT NULL THEN coalesce(substring(t.reason FROM CASE WHEN t.request_id IS NULL AND t.verb ~ '^(refund|capture|void)'
        THEN '^(?:refund|capture|void) [0-9]+' END) || ': ', '') || p END,
    payment_method = CASE WHEN t.payment_method <> '' THEN p ELSE t.payment_method END,
    on_behalf_of = CASE WHEN t.on_behalf_of ~ names THEN p ELSE t.on_behalf_of END
  WHERE t.order_no = ANY(numbers) AND (num_nonnulls(t.reason, t.on_behalf_of) > 0 OR t.payment_method <> '');
  UPDATE pawl.charges AS c SET data = NULL WHERE c.order_no = ANY(numbers) AND c.data IS NOT NULL;
  UPDATE pawl.reservations AS r SET data = NULL, reference = CASE WHEN r.reference !~ refs THEN r.reference END
  WHERE r.order_no = ANY(numbers) AND num_nonnulls(r.data, r.reference) > 0;
  UPDATE pawl.confirmations AS k SET data = NULL, reference = CASE WHEN k.reference !~ refs THEN k.reference END
  WHERE k.order_no = ANY(numbers);
  UPDATE pawl.charge_operations AS f SET reason = CASE WHEN f.reason IS NOT NULL THEN p END, detail = CASE WHEN f.detail IS NOT NULL THEN p END
  WHERE f.order_no = ANY(numbers) AND num_nonnulls(f.reason, f.detail) > 0;
  UPDATE pawl.disputes AS d SET reason = p WHERE d.order_no = ANY(numbers) AND d.reason IS NOT NULL;
  UPDATE pawl.step_calls AS a SET detail = CASE WHEN a.detail IS NOT NULL THEN p END,
    reference = CASE WHEN a.step = 'charge' OR a.reference !~ refs THEN a.reference END,
    undo_reference = CASE WHEN a.step = 'charge' OR a.undo_reference !~ refs THEN a.undo_reference END
  WHERE a.order_no = ANY(numbers) AND (a.detail IS NOT NULL OR a.step <> 'charge');
  UPDATE pawl.step_answers AS w SET data = NULL, detail = CASE WHEN w.detail IS NOT NULL THEN p END,
    reference = CASE WHEN w.step = 'charge' OR w.reference !~ refs THEN w.reference END
  WHERE w.order_no = ANY(numbers);
  UPDATE pawl.late_undos AS u SET reason = p, detail = CASE WHEN u.detail IS NOT NULL THEN p END,
    reference = CASE WHEN u.step = 'charge' OR u.reference !~ refs THEN u.reference END
  WHERE u.order_no = ANY(numbers);

  -- Answers of webhook endpoints may repeat what they were sent. Senders lock an endpoint before its deliveries.
  endpoints := ARRAY(SELECT e.endpoint_no FROM pawl.webhook_endpoints AS e WHERE EXISTS (
    SELECT FROM pawl.webhook_deliveries AS d WHERE d.endpoint_no = e.endpoint_no AND d.subject = ANY(ARRAY(SELECT 'order ' || n FROM unnest(numbers) AS n))));
  PERFORM FROM pawl.webhook_endpoints AS e WHERE e.endpoint_no = ANY(endpoints) ORDER BY e.endpoint_no FOR NO KEY UPDATE;
  UPDATE pawl.webhook_deliveries AS d SET log = (
    SELECT jsonb_agg(CASE WHEN l.entry ? 'answer' THEN l.entry || jsonb_build_object('answer', p) ELSE l.entry END ORDER BY l.place)
    FROM jsonb_array_elements(d.log) WITH ORDINALITY AS l(entry, place))
  WHERE d.endpoint_no = ANY(endpoints) AND d.subject = ANY(ARRAY(SELECT 'order ' || n FROM unnest(numbers) AS n)) AND d.log @? '$[*].answer';
  UPDATE pawl.webhook_endpoints AS e SET last_failure = e.last_failure || jsonb_build_object('answer', p)
  WHERE e.endpoint_no = ANY(endpoints) AND e.last_failure ? 'answer';

  UPDATE pawl.bulk_refusals AS b SET reason = CASE WHEN b.reason IS NOT NULL THEN p END, refused = (
    SELECT jsonb_object_agg(r.key, CASE WHEN r.key = ANY(ids) AND r.value ? 'detail' THEN r.value || jsonb_build_object('detail', p) ELSE r.value END)
    FROM jsonb_each(b.refused) AS r)
  WHERE b.refused ?| ids;
  DELETE FROM pawl.concurrency_keys AS k
  WHERE k.key = ANY(ARRAY(SELECT o.concurrency_key FROM pawl.orders AS o WHERE o.order_no = ANY(numbers) AND o.concurrency_key ~ names));

  WITH erased AS (
    UPDATE pawl.orders AS o SET seq = o.seq + 1, customer_id = p, metadata = NULL, action = NULL,
      payment_method = CASE WHEN o.payment_method IS NOT NULL THEN p END,
      failure_detail = CASE WHEN o.failure_detail IS NOT NULL THEN p END,
      concurrency_key = CASE WHEN o.concurrency_key ~ names THEN split_part(o.concurrency_key, ':', 1) || ':' || p ELSE o.concurrency_key END
    WHERE o.order_no = ANY(numbers) RETURNING o.order_no, o.seq, o.status, o.fence
  )
  -- The transaction may have waited for a lock since now(). Calls that began before the erasure are told from later ones.
  INSERT INTO pawl.transitions (order_no, seq, at, from_status, to_status, fence, verb, actor, on_behalf_of)
  SELECT e.order_no, e.seq, clock_timestamp(), e.status, e.status, e.fence, 'erase', erase_orders.actor, erase_orders.on_behalf_of FROM erased AS e;
END $$;

-- Erases the next orders of a customer, up to a number, for the request with this id; the first call makes its row.
-- finished: none is left. open: these can't be erased, and nothing was done. reused: the id belongs to another request.
-- erasure is null if the customer has no orders, or if some can't be erased and none was.
CREATE FUNCTION pawl.erase_customer(customer text, actor text, on_behalf_of text, reason text, request_id text, most integer)
RETURNS TABLE (erasure integer, finished boolean, reused boolean, open text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  e pawl.erasures;
  -- The id as a word of its own: 17 does not name the customer 1.
  names text := '(^|[^[:alnum:]])' || regexp_replace(customer, '([^[:alnum:]])', '\\\1', 'g') || '($|[^[:alnum:]])';
  numbers bigint[];
BEGIN
  PERFORM set_config('lock_timeout', '2s', true);
  LOCK TABLE pawl.erasures IN SHARE ROW EXCLUSIVE MODE; -- one batch at a time
  finished := false;
  reused := false;
  open := '{}';
  SELECT * INTO e FROM pawl.erasures AS x WHERE x.request_id = erase_customer.request_id AND x.actor = erase_customer.actor;
  IF e.number IS NULL THEN
    numbers := ARRAY(SELECT o.order_no FROM pawl.orders AS o WHERE o.customer_id = customer);
    open := pawl.orders_open(numbers);
    IF numbers = '{}' OR open <> '{}' THEN
      RETURN NEXT;
      RETURN;
    END IF;
    -- Another request may have been interrupted: then its pseudonym is that of the customer.
    e.pseudonym := coalesce((SELECT x.pseudonym FROM pawl.erasures AS x
      WHERE x.finished_at IS NULL AND x.customer_hash = sha256(convert_to(x.pseudonym || customer, 'UTF8')) LIMIT 1),
      'erased_' || replace(gen_random_uuid()::text, '-', ''));
    INSERT INTO pawl.erasures AS x (actor, on_behalf_of, reason, request_id, pseudonym, customer_hash)
    SELECT erase_customer.actor, erase_customer.on_behalf_of, erase_customer.reason, erase_customer.request_id, e.pseudonym,
      sha256(convert_to(e.pseudonym || customer, 'UTF8'))
    RETURNING x.* INTO e;
  END IF;
  erasure := e.number;
  finished := e.finished_at IS NOT NULL;
  reused := substr(sha256(convert_to(e.pseudonym || customer, 'UTF8')), 1, length(e.customer_hash)) <> e.customer_hash
    OR e.reason <> erase_customer.reason AND e.reason !~ '^erased_[0-9a-f]{32}$'
    OR e.on_behalf_of IS DISTINCT FROM erase_customer.on_behalf_of AND coalesce(e.on_behalf_of !~ '^erased_[0-9a-f]{32}$', true);
  IF finished OR reused THEN
    RETURN NEXT;
    RETURN;
  END IF;

  numbers := ARRAY(SELECT o.order_no FROM pawl.orders AS o WHERE o.customer_id = customer ORDER BY o.order_no LIMIT most);
  numbers := ARRAY(SELECT o.order_no FROM pawl.orders AS o WHERE o.order_no = ANY(numbers) ORDER BY o.order_no FOR UPDATE);
  open := pawl.orders_open(numbers);
  IF open <> '{}' THEN
    RETURN NEXT;
    RETURN;
  END IF;
  UPDATE pawl.erasures AS x SET orders = x.orders + cardinality(numbers) -- from here on, this transaction may change texts
  WHERE x.pseudonym = e.pseudonym AND x.finished_at IS NULL;
  PERFORM pawl.erase_orders(numbers, names, e.pseudonym, e.actor, e.on_behalf_of);

  finished := NOT EXISTS (SELECT FROM pawl.orders AS o WHERE o.customer_id = customer);
  IF finished THEN
    -- Texts that are about no order of the customer. A short id would be found in many of them that name somebody else.
    IF length(customer) >= 4 THEN
      UPDATE pawl.stock_movements AS m SET reason = CASE WHEN m.reason ~ names THEN e.pseudonym ELSE m.reason END,
        on_behalf_of = CASE WHEN m.on_behalf_of ~ names THEN e.pseudonym ELSE m.on_behalf_of END WHERE m.reason ~ names OR m.on_behalf_of ~ names;
      UPDATE pawl.webhook_changes AS c SET reason = CASE WHEN c.reason ~ names THEN e.pseudonym ELSE c.reason END,
        on_behalf_of = CASE WHEN c.on_behalf_of ~ names THEN e.pseudonym ELSE c.on_behalf_of END WHERE c.reason ~ names OR c.on_behalf_of ~ names;
      UPDATE pawl.policy_activations AS a SET reason = CASE WHEN a.reason ~ names THEN e.pseudonym ELSE a.reason END,
        on_behalf_of = CASE WHEN a.on_behalf_of ~ names THEN e.pseudonym ELSE a.on_behalf_of END WHERE a.reason ~ names OR a.on_behalf_of ~ names;
      UPDATE pawl.erasures AS x SET reason = CASE WHEN x.reason ~ names THEN e.pseudonym ELSE x.reason END,
        on_behalf_of = CASE WHEN x.on_behalf_of ~ names THEN e.pseudonym ELSE x.on_behalf_of END WHERE x.reason ~ names OR x.on_behalf_of ~ names;
      UPDATE pawl.bulk_refusals AS b SET reason = e.pseudonym WHERE b.reason ~ names;
    END IF;
    UPDATE pawl.erasures AS x SET finished_at = now(), customer_hash = substr(x.customer_hash, 1, 2), sent = jsonb_build_object(
      'providers', (SELECT coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('step', s.step, 'policy', s.policy, 'route', s.route, 'orders', s.orders))
        ORDER BY s.step, s.policy, s.route), '[]') FROM (
        SELECT a.step, a.policy, a.route, count(DISTINCT a.order_no) AS orders FROM pawl.orders AS o JOIN pawl.step_calls AS a ON a.order_no = o.order_no
        WHERE o.customer_id = e.pseudonym GROUP BY a.step, a.policy, a.route) AS s),
      'webhookEndpoints', (SELECT coalesce(jsonb_agg(jsonb_build_object('id', 'whe_' || w.endpoint_no, 'url', w.url, 'orders', s.orders) ORDER BY w.endpoint_no), '[]')
        FROM pawl.webhook_endpoints AS w CROSS JOIN LATERAL (
          SELECT count(DISTINCT d.subject) AS orders FROM pawl.orders AS o
          JOIN pawl.webhook_deliveries AS d ON d.endpoint_no = w.endpoint_no AND d.subject = 'order ' || o.order_no
          WHERE o.customer_id = e.pseudonym AND d.attempted_at IS NOT NULL) AS s WHERE s.orders > 0),
      'archiveFiles', (SELECT count(*) FROM pawl.forgotten_batches AS b WHERE b.archive))
    WHERE x.pseudonym = e.pseudonym AND x.finished_at IS NULL;
  END IF;
  RETURN NEXT;
END $$;
-- +goose StatementEnd

ALTER TABLE pawl.tokens DROP CONSTRAINT tokens_roles, ADD CONSTRAINT tokens_roles
  CHECK (roles <@ ARRAY['submit', 'read', 'operate', 'approve', 'settle', 'stock', 'erase', 'delegate', 'metrics', 'admin']);

CREATE VIEW books.erasures AS
SELECT e.number, e.requested_at, e.finished_at, e.actor, e.on_behalf_of, e.reason, e.request_id, e.pseudonym, e.orders, e.sent FROM pawl.erasures e;
CREATE TRIGGER read_only INSTEAD OF INSERT OR UPDATE OR DELETE ON books.erasures FOR EACH ROW EXECUTE FUNCTION books.refuse_write();

-- The access log gets the erasures, after what it has.
-- +goose StatementBegin
DO $$ BEGIN
  EXECUTE 'CREATE OR REPLACE VIEW books.access_log AS ' || rtrim(pg_get_viewdef('books.access_log'::regclass), ';') ||
    ' UNION ALL SELECT e.requested_at, ''customer_erased'', e.actor, e.on_behalf_of, NULL, NULL, e.pseudonym, e.reason, 1 FROM pawl.erasures e';
END $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $$ BEGIN
  EXECUTE 'CREATE OR REPLACE VIEW books.access_log AS ' ||
    regexp_replace(pg_get_viewdef('books.access_log'::regclass), 'UNION ALL\s+SELECT e\.requested_at.*$', '');
END $$;
-- +goose StatementEnd
DROP VIEW books.erasures;
UPDATE pawl.tokens SET roles = array_remove(roles, 'erase') WHERE 'erase' = ANY(roles);
ALTER TABLE pawl.tokens DROP CONSTRAINT tokens_roles, ADD CONSTRAINT tokens_roles
  CHECK (roles <@ ARRAY['submit', 'read', 'operate', 'approve', 'settle', 'stock', 'delegate', 'metrics', 'admin']);
DROP FUNCTION pawl.erase_customer(text, text, text, text, text, integer);
DROP FUNCTION pawl.erase_orders(bigint[], text, text, text, text);
DROP FUNCTION pawl.orders_open(bigint[]);

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pawl.refuse_policy_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION '% is only added to: orders keep the policy they started with', TG_TABLE_NAME
    USING ERRCODE = 'object_not_in_prerequisite_state';
END $$;

CREATE OR REPLACE FUNCTION pawl.refuse_removal() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME USING ERRCODE = 'object_not_in_prerequisite_state';
  ELSIF TG_OP = 'TRUNCATE' OR TG_TABLE_NAME NOT IN ('orders', 'transitions', 'charges', 'reservations', 'confirmations', 'charge_operations',
      'disputes', 'step_calls', 'step_answers', 'late_undos')
    OR NOT EXISTS (SELECT FROM pawl.forgotten_batches AS b
      WHERE b.batch_no = (SELECT max(n.batch_no) FROM pawl.forgotten_batches AS n) AND b.removed_at IS NOT NULL AND b.xmin = pg_current_xact_id()::xid)
  THEN
    RAISE EXCEPTION 'rows of % are never removed', TG_TABLE_NAME USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION pawl.refuse_order_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'order %: what an order is about does not change', OLD.order_id
    USING ERRCODE = 'check_violation', CONSTRAINT = 'orders_guard';
END $$;
-- +goose StatementEnd

DROP FUNCTION pawl.erases(text);
DROP TABLE pawl.erasures;
