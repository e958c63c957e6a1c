-- The roles of a database. Run it as a superuser, or as the owner of the database if that may create roles. Each
-- `pawl migrate up` that adds something runs it again, to grant what is new. These roles can't log in: grant them to others.
--
--   pawl_owner  owns the tables: for migrations and tokens
--   pawl_serve  the service: it can't change the schema, or change or remove history
--   pawl_read   people and reports: the views of `books`, which show no payment methods and no secrets
--
--   CREATE ROLE shop LOGIN PASSWORD '...' IN ROLE pawl_serve;
BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
LOCK TABLE public.goose_db_version IN SHARE ROW EXCLUSIVE MODE; -- replicas that start together would change the same rows of the catalog

DO $$
DECLARE
  name text;
  change text;
BEGIN
  FOREACH name IN ARRAY ARRAY['pawl_owner', 'pawl_serve', 'pawl_read'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
      EXECUTE format('CREATE ROLE %I', name);
    END IF;
  END LOOP;
  IF NOT pg_has_role(current_user, 'pawl_owner', 'USAGE') THEN -- its creator is not a member, or since PostgreSQL 16 may not act as it
    EXECUTE format('GRANT pawl_owner TO %I', current_user);
  END IF;
  -- Migrations create schemas; goose has its tables in public.
  IF NOT has_database_privilege('pawl_owner', current_database(), 'CREATE') THEN
    EXECUTE format('GRANT CREATE ON DATABASE %I TO pawl_owner', current_database());
  END IF;
  IF NOT has_schema_privilege('pawl_owner', 'public', 'CREATE') THEN
    GRANT USAGE, CREATE ON SCHEMA public TO pawl_owner;
  END IF;
  -- Only what another role owns: a change of owner waits for all users of a table.
  FOR change IN
    SELECT format('ALTER SCHEMA %I OWNER TO pawl_owner', n.nspname) FROM pg_namespace AS n
    WHERE n.nspname IN ('pawl', 'books') AND n.nspowner <> 'pawl_owner'::regrole
    UNION ALL
    SELECT format('ALTER %s %s OWNER TO pawl_owner', CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, c.oid::regclass) FROM pg_class AS c
    WHERE c.relkind IN ('r', 'v') AND c.relowner <> 'pawl_owner'::regrole AND (c.relnamespace::regnamespace::text IN ('pawl', 'books')
      OR c.relnamespace = 'public'::regnamespace AND c.relname IN ('goose_db_version', 'goose_lock'))
    UNION ALL
    SELECT format('ALTER FUNCTION %s OWNER TO pawl_owner', p.oid::regprocedure) FROM pg_proc AS p
    WHERE p.pronamespace::regnamespace::text IN ('pawl', 'books') AND p.proowner <> 'pawl_owner'::regrole
    UNION ALL
    SELECT format('ALTER DOMAIN %s OWNER TO pawl_owner', t.oid::regtype) FROM pg_type AS t
    WHERE t.typtype = 'd' AND t.typnamespace::regnamespace::text = 'pawl' AND t.typowner <> 'pawl_owner'::regrole
  LOOP
    EXECUTE change;
  END LOOP;
END $$;

SET LOCAL ROLE pawl_owner;

REVOKE ALL ON SCHEMA pawl, books FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA pawl, books FROM PUBLIC, pawl_serve, pawl_read;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pawl, books FROM PUBLIC;

GRANT USAGE ON SCHEMA books TO pawl_read;
GRANT SELECT ON ALL TABLES IN SCHEMA books TO pawl_read;

GRANT USAGE ON SCHEMA pawl, books TO pawl_serve;
GRANT SELECT ON ALL TABLES IN SCHEMA pawl, books TO pawl_serve;
GRANT SELECT ON public.goose_db_version TO pawl_serve;
GRANT EXECUTE ON FUNCTION pawl.orders_within(bigint[], bigint), pawl.orders_by_metadata(text, bigint, integer), pawl.items_of(text, integer, json),
  pawl.operation_lines_fault(bigint, integer), pawl.system_identifier(), pawl.order_id_hash(text), pawl.numbers_in(int8multirange),
  pawl.forgettable_orders(bigint[], timestamptz),
  pawl.input_hash(text, numeric, text, integer, json, text, text[], timestamptz, timestamptz, double precision, text, text) TO pawl_serve;
-- Orders that ended at least 31 days ago may be forgotten, only by these functions.
GRANT EXECUTE ON FUNCTION pawl.mark_forgotten(bigint, integer, interval, boolean), pawl.remove_forgotten(uuid) TO pawl_serve;
-- Customers may be erased, only by the first of these functions. Triggers call the second one.
GRANT EXECUTE ON FUNCTION pawl.erase_customer(text, text, text, text, text, integer), pawl.erases(text) TO pawl_serve;
-- The first start stores where the database belongs. Only the owner changes its id and its secret.
GRANT UPDATE (system_identifier, database_oid, name, cell) ON pawl.installation TO pawl_serve;
-- Only the owner decides who callers are and what they may do: the service changes sessions only by these functions.
GRANT EXECUTE ON FUNCTION pawl.note_token_use(text), pawl.open_session(bytea, bytea, bytea, inet), pawl.end_session(bytea, inet) TO pawl_serve;
-- Tables that only grow: history, and what orders refer to. The server sets the time of a row and its position in the feed.
GRANT INSERT (order_no, seq, from_status, to_status, fence, previous_no, id_hash, verb, actor, on_behalf_of, reason, request_id, fingerprint,
  payment_method) ON pawl.transitions TO pawl_serve;
GRANT INSERT (item, version, kind, change, on_hand, sold, actor, on_behalf_of, reason, request_id) ON pawl.stock_movements TO pawl_serve;
GRANT INSERT (order_no, reference, state, amount, currency, reason, charge, at) ON pawl.disputes TO pawl_serve;
GRANT INSERT ON pawl.webhook_changes, pawl.confirmations, pawl.policies, pawl.policy_activations TO pawl_serve;
GRANT INSERT (event, actor, address, operation, subject, detail, times) ON pawl.access_log TO pawl_serve;
-- Orders and their effects: the columns that a move, a verb or an answer changes, not amount, item, customer or submitter.
GRANT INSERT, UPDATE (server_started_at, filenode, relaxed) ON pawl.order_numbering TO pawl_serve;
GRANT UPDATE ON SEQUENCE pawl.orders_order_no_seq TO pawl_serve; -- to move it ahead after a crash
GRANT INSERT ON pawl.orders, pawl.charges, pawl.charge_operations, pawl.reservations, pawl.inventory, pawl.step_calls, pawl.step_answers,
  pawl.late_undos, pawl.concurrency_keys TO pawl_serve;
GRANT UPDATE (action, approval_until, approved_at, calls, charge_operations, complete_by, disputes, due_at, ended_as, failure_code, failure_detail, failure_step, fence,
  finished_at, generation, hold, hold_reason, in_doubt_since, outcome, owner, payment_method, permit_at, policy, reserved_until, retries, route,
  retry_window_started_at, seq, status, stop_requested, take_overs) ON pawl.orders TO pawl_serve;
GRANT UPDATE (refunded_at, in_doubt, captured_at, capture_by, capture_due_at) ON pawl.charges TO pawl_serve;
GRANT UPDATE (state, claims, calling, due_at, sent_at, finished_at, reference, code, detail) ON pawl.charge_operations TO pawl_serve;
GRANT UPDATE (released_at) ON pawl.reservations TO pawl_serve;
GRANT UPDATE (on_hand, reserved, sold, version, tracked) ON pawl.inventory TO pawl_serve;
GRANT UPDATE (finished_at, outcome, code, detail, reference, fenced) ON pawl.step_calls TO pawl_serve;
GRANT UPDATE (source, outcome, code, detail, reference, data, answered_at, consumed_at) ON pawl.step_answers TO pawl_serve;
GRANT UPDATE (claims, due_at, finished_at, reason, reference, code, detail) ON pawl.late_undos TO pawl_serve;
GRANT UPDATE (version) ON pawl.concurrency_keys TO pawl_serve;
GRANT INSERT, UPDATE (name, at, orders_per_second, steps, outages), DELETE ON pawl.replica_reports TO pawl_serve;
-- Idempotency keys are removed after a month. Locking rows requires the right to change a column.
GRANT INSERT, UPDATE (created_at), DELETE ON pawl.idempotency_keys TO pawl_serve;
GRANT INSERT, UPDATE, DELETE ON pawl.bulk_refusals TO pawl_serve;
-- The service keeps the newest verifications.
GRANT INSERT (started_by), UPDATE (seen_at, finished_at, done, total, wrong, compared, differ, others, report, failure), DELETE ON pawl.verifications TO pawl_serve;
-- Deliveries are removed with the events.
GRANT INSERT, DELETE ON pawl.webhook_endpoints, pawl.webhook_deliveries TO pawl_serve;
GRANT UPDATE (version, failures, seq, event_no, delivery_no, fence, due_at, paused_until, failing_since, disabled_at, previous_secret_until, owner,
  state, disabled_reason, secret, previous_secret, last_failure, url, description, types) ON pawl.webhook_endpoints TO pawl_serve;
GRANT UPDATE (due_at, attempted_at, finished_at, attempts, state, log) ON pawl.webhook_deliveries TO pawl_serve;
-- Events get numbers, which are removed after a while.
GRANT INSERT, DELETE ON pawl.event_batches, pawl.early_events TO pawl_serve;
GRANT INSERT ON pawl.event_epochs TO pawl_serve;
GRANT UPDATE (owner, fence, due_at, wanted_until, history, epoch) ON pawl.event_relay TO pawl_serve;
COMMIT;
