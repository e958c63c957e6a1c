-- +goose Up

-- The database rejects changes that the machine does not allow, from any client. The triggers are AFTER, with WHEN:
-- if the condition is false, the function is not called. A BEFORE trigger would lock the row first and cost a quarter
-- more WAL. The conditions are short, because PostgreSQL parses their text for every statement. They let the regular
-- moves pass, and leave everything else to the function. Columns that no move sets have a trigger of their own, which
-- fires only if a statement names one of them. A change of the machine needs a new migration; a test compares the
-- two.
--
-- Functions set their own search_path, because the session's may find operators of other roles. Regular
-- moves pay nothing for it, because they call no function.

-- +goose StatementBegin
CREATE FUNCTION pawl.refuse_order_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'order %: what an order is about does not change', OLD.order_id
    USING ERRCODE = 'check_violation', CONSTRAINT = 'orders_guard';
END $$;

CREATE FUNCTION pawl.guard_order() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.status NOT IN ('pending', 'charging') OR NEW.generation <> 0 OR NEW.fence < 0 OR NEW.seq < 1 THEN
      RAISE EXCEPTION 'order % can not start as % of generation %, fence %, seq %',
        NEW.order_id, NEW.status, NEW.generation, NEW.fence, NEW.seq
        USING ERRCODE = 'check_violation', CONSTRAINT = 'orders_guard_insert';
    END IF;
  ELSIF NEW.seq - OLD.seq NOT IN (0, 1) OR NEW.fence - OLD.fence NOT IN (0, 1) THEN
    RAISE EXCEPTION 'order %: counters stay or rise by one (fence % to %, seq % to %)',
      OLD.order_id, OLD.fence, NEW.fence, OLD.seq, NEW.seq
      USING ERRCODE = 'check_violation', CONSTRAINT = 'orders_guard';
  -- A generation begins when a failed order starts again, or at the next route of a charge.
  ELSIF NEW.generation <> OLD.generation + (OLD.status = 'failed' AND NEW.status = 'pending'
      OR OLD.status = 'charging' AND NEW.status = 'charging'
        AND NEW.route IS DISTINCT FROM OLD.route AND NEW.policy IS NOT DISTINCT FROM OLD.policy)::integer
    OR OLD.status <> NEW.status AND (NEW.seq <> OLD.seq + 1 OR (OLD.status, NEW.status) NOT IN (
      ('pending', 'charging'),
      ('pending', 'canceled'),
      ('charging', 'reserving'),
      ('charging', 'refunding'),
      ('charging', 'failed'),
      ('charging', 'canceled'),
      ('reserving', 'confirming'),
      ('reserving', 'releasing'),
      ('reserving', 'refunding'),
      ('confirming', 'completed'),
      ('confirming', 'releasing'),
      ('releasing', 'refunding'),
      ('refunding', 'failed'),
      ('refunding', 'canceled'),
      ('failed', 'pending')))
  THEN
    RAISE EXCEPTION 'order % can not go from % (generation %, seq %) to % (generation %, seq %)',
      OLD.order_id, OLD.status, OLD.generation, OLD.seq, NEW.status, NEW.generation, NEW.seq
      USING ERRCODE = 'check_violation', CONSTRAINT = 'orders_guard';
  END IF;
  -- Finished: no replica drives it, nothing waits. Not finished: it is due some time,
  -- or held for a reason. Held: no replica drives it.
  IF NOT (CASE
    WHEN NEW.status IN ('completed', 'failed', 'canceled')
      THEN NEW.ended_as IS NOT DISTINCT FROM NEW.status AND NEW.hold IS NULL AND NEW.due_at IS NULL AND NEW.owner IS NULL
    WHEN NEW.hold IS NULL THEN NEW.ended_as IS NULL AND NEW.due_at IS NOT NULL
    ELSE NEW.ended_as IS NULL AND NEW.owner IS NULL END)
  THEN
    RAISE EXCEPTION 'order % is not driven, held or finished as % (ended as %, held for %, due at %, owner %)',
      NEW.order_id, NEW.status, NEW.ended_as, NEW.hold, NEW.due_at, NEW.owner
      USING ERRCODE = 'check_violation', CONSTRAINT = 'orders_driven';
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd

-- The condition encodes an update as one word: old status, rise of seq, new status, hold, ended_as, and how many of
-- hold, owner and due_at are null. A charge is 'charging1reserving1', the end 'confirming1completedcompleted3'. The
-- words of the four regular moves overlap in the literal, so that one strpos finds them all. Every other word calls
-- the function. Written as comparisons, with a CHECK, PostgreSQL did a twelfth more work for a single order.
CREATE TRIGGER orders_guard AFTER UPDATE OF status, seq, hold, due_at, owner, ended_as ON pawl.orders FOR EACH ROW WHEN (
  strpos('pending1charging1reserving1confirming1completedcompleted3',
    concat(OLD.status, NEW.seq - OLD.seq, NEW.status, NEW.hold, NEW.ended_as, num_nulls(NEW.hold, NEW.owner, NEW.due_at))) = 0
) EXECUTE FUNCTION pawl.guard_order();

-- The same for an insert: an order that starts at once has generation 0, fence 1, seq 1, no hold and no end.
CREATE TRIGGER orders_guard_insert AFTER INSERT ON pawl.orders FOR EACH ROW WHEN (
  concat(NEW.status, NEW.generation, NEW.fence, NEW.seq, NEW.hold, NEW.ended_as) <> 'charging011' OR NEW.due_at IS NULL
) EXECUTE FUNCTION pawl.guard_order();

-- Claims and redrives set these columns, moves do not.
CREATE TRIGGER orders_guard_claim AFTER UPDATE OF fence, generation ON pawl.orders FOR EACH ROW WHEN (
  NEW.fence - OLD.fence NOT IN (0, 1) OR NEW.generation <> OLD.generation
) EXECUTE FUNCTION pawl.guard_order();

CREATE TRIGGER orders_guard_input AFTER UPDATE OF order_no, order_id, created_at, amount, currency, item, quantity, submitted_by ON pawl.orders
FOR EACH ROW WHEN (
  NEW.order_no <> OLD.order_no OR NEW.order_id <> OLD.order_id OR NEW.created_at <> OLD.created_at
  OR NEW.amount <> OLD.amount OR NEW.currency <> OLD.currency OR NEW.item <> OLD.item OR NEW.quantity <> OLD.quantity
  OR NEW.submitted_by IS DISTINCT FROM OLD.submitted_by
) EXECUTE FUNCTION pawl.refuse_order_change();

-- This costs moves nothing: it fires only if a statement names one of the columns. A redrive may change the payment
-- method. The route changes with the generation or the policy.
CREATE TRIGGER orders_guard_terms AFTER UPDATE OF customer_id, payment_method, concurrency_key, lines, route ON pawl.orders
FOR EACH ROW WHEN (
  NEW.customer_id IS DISTINCT FROM OLD.customer_id
  OR NEW.payment_method IS DISTINCT FROM OLD.payment_method AND NEW.generation = OLD.generation
  OR NEW.concurrency_key IS DISTINCT FROM OLD.concurrency_key
  OR NEW.lines::text IS DISTINCT FROM OLD.lines::text
  OR NEW.route IS DISTINCT FROM OLD.route AND NEW.generation = OLD.generation AND NEW.policy IS NOT DISTINCT FROM OLD.policy
) EXECUTE FUNCTION pawl.refuse_order_change();

-- Rows of the books are never changed, and removed only by pawl.remove_forgotten: its transaction writes the newest
-- batch of forgotten orders first.
-- +goose StatementBegin
CREATE FUNCTION pawl.refuse_removal() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
-- +goose StatementEnd

CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON pawl.orders FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();
-- With another id of the installation, every call would have another key, and steps in doubt would be done a second
-- time.
CREATE TRIGGER kept BEFORE UPDATE OF id OR DELETE OR TRUNCATE ON pawl.installation FOR EACH STATEMENT EXECUTE FUNCTION pawl.refuse_removal();

-- +goose Down
DROP TRIGGER kept ON pawl.installation;
DROP TRIGGER kept ON pawl.orders;
DROP FUNCTION pawl.refuse_removal();
DROP TRIGGER orders_guard_terms ON pawl.orders;
DROP TRIGGER orders_guard_insert ON pawl.orders;
DROP TRIGGER orders_guard_input ON pawl.orders;
DROP TRIGGER orders_guard_claim ON pawl.orders;
DROP TRIGGER orders_guard ON pawl.orders;
DROP FUNCTION pawl.guard_order();
DROP FUNCTION pawl.refuse_order_change();
