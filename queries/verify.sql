-- The checks of the books, on a database that may be in use. Each is one statement over a range of keys, so it sees
-- one snapshot. A move is one statement, too, so the snapshot has all or nothing of it.
--
-- Each returns how many rows it checked, how many are wrong, and the first of those with a description of what is
-- wrong.

-- name: VerifySettings :one
-- Settings for this transaction only. Statistics may be older than the rows of a range; a nested loop that reads the
-- range once for every row would then look cheap. All ranges are joined along keys instead. Compiling (JIT) takes
-- longer than a range, and the processors are needed for orders.
SELECT set_config('enable_nestloop', 'off', true)::text AS nested_loops,
  set_config('jit', 'off', true)::text AS compiling,
  set_config('max_parallel_workers_per_gather', '0', true)::text AS parallel,
  set_config('work_mem', '64MB', true)::text AS memory;

-- name: VerifyExtent :one
-- Returns the last number of any table, so that rows without an order are found even after the last order.
SELECT
  coalesce((SELECT min(o.order_no) FROM pawl.orders AS o), 0)::bigint AS first_order,
  coalesce((SELECT max(o.order_no) FROM pawl.orders AS o), 0)::bigint AS last_order,
  coalesce(greatest(
    (SELECT max(o.order_no) FROM pawl.orders AS o), (SELECT max(t.order_no) FROM pawl.transitions AS t),
    (SELECT max(c.order_no) FROM pawl.charges AS c), (SELECT max(f.order_no) FROM pawl.charge_operations AS f),
    (SELECT max(r.order_no) FROM pawl.reservations AS r), (SELECT max(k.order_no) FROM pawl.confirmations AS k),
    (SELECT max(a.order_no) FROM pawl.step_calls AS a), (SELECT max(w.order_no) FROM pawl.step_answers AS w),
    (SELECT max(u.order_no) FROM pawl.late_undos AS u), (SELECT max(d.order_no) FROM pawl.disputes AS d)), 0)::bigint AS last_number,
  (SELECT count(*) FROM pawl.inventory AS i)::bigint AS items;

-- name: VerifyNextNumber :one
-- Returns the first number at or after the start that any table has. There may be large gaps between numbers.
SELECT n.order_no::bigint AS order_no FROM (
  SELECT min(o.order_no) AS order_no FROM pawl.orders AS o WHERE o.order_no >= @start
  UNION ALL SELECT min(t.order_no) FROM pawl.transitions AS t WHERE t.order_no >= @start
  UNION ALL SELECT min(c.order_no) FROM pawl.charges AS c WHERE c.order_no >= @start
  UNION ALL SELECT min(f.order_no) FROM pawl.charge_operations AS f WHERE f.order_no >= @start
  UNION ALL SELECT min(r.order_no) FROM pawl.reservations AS r WHERE r.order_no >= @start
  UNION ALL SELECT min(k.order_no) FROM pawl.confirmations AS k WHERE k.order_no >= @start
  UNION ALL SELECT min(a.order_no) FROM pawl.step_calls AS a WHERE a.order_no >= @start
  UNION ALL SELECT min(w.order_no) FROM pawl.step_answers AS w WHERE w.order_no >= @start
  UNION ALL SELECT min(u.order_no) FROM pawl.late_undos AS u WHERE u.order_no >= @start
  UNION ALL SELECT min(d.order_no) FROM pawl.disputes AS d WHERE d.order_no >= @start
) AS n WHERE n.order_no IS NOT NULL ORDER BY n.order_no LIMIT 1;

-- name: VerifyEffects :many
-- Checks what each status promises about the charge and the reservation of the generation: absent (never done), in
-- effect (done once, as ordered), or undone (undone, or never done). No other generation has anything in effect. A step
-- in doubt is recorded by the move that goes back, so no order goes forward with it. A charge that is captured on
-- confirmation is captured by that, and by nothing else. (VerifyLines checks what the reservation of an order with
-- lines has.)
WITH promised AS (
  SELECT 'pending' AS status, 'none' AS charge, 'none' AS reservation
  UNION ALL SELECT 'charging', 'none', 'none'
  UNION ALL SELECT 'reserving', 'stands', 'none'
  UNION ALL SELECT 'confirming', 'stands', 'stands'
  UNION ALL SELECT 'completed', 'stands', 'stands'
  UNION ALL SELECT 'releasing', 'stands', 'stands'
  UNION ALL SELECT 'refunding', 'stands', 'undone'
  UNION ALL SELECT 'failed', 'undone', 'undone'
  UNION ALL SELECT 'canceled', 'undone', 'undone'
), effects AS (
  SELECT c.order_no, true AS is_charge, c.generation, c.refunded_at IS NULL AS stands, c.amount AS size, c.currency AS of,
    coalesce(c.in_doubt, false) AS doubted, c.executor, coalesce(c.capture = 'on_confirm', false) AS authorized, c.captured_at IS NOT NULL AS captured
  FROM pawl.charges AS c WHERE c.order_no BETWEEN @first AND @last
  UNION ALL
  SELECT r.order_no, false, r.generation, r.released_at IS NULL, r.quantity, r.item,
    coalesce(r.in_doubt, false), r.executor, false, false
  FROM pawl.reservations AS r WHERE r.order_no BETWEEN @first AND @last AND r.line = 1
), counted AS (
  SELECT o.order_no, o.order_id, o.status, o.policy,
    count(*) FILTER (WHERE e.is_charge AND e.stands) AS charges,
    count(*) FILTER (WHERE e.is_charge AND e.stands AND e.generation = o.generation) AS charges_now,
    count(*) FILTER (WHERE e.is_charge AND e.generation = o.generation) AS charged_now,
    count(*) FILTER (WHERE e.is_charge AND e.generation NOT BETWEEN 0 AND o.generation) AS charged_never,
    count(*) FILTER (WHERE e.is_charge AND (e.size <> o.amount OR e.of <> o.currency)) AS charged_other,
    count(*) FILTER (WHERE NOT e.is_charge AND e.stands) AS reservations,
    count(*) FILTER (WHERE NOT e.is_charge AND e.stands AND e.generation = o.generation) AS reservations_now,
    count(*) FILTER (WHERE NOT e.is_charge AND e.generation = o.generation) AS reserved_now,
    count(*) FILTER (WHERE NOT e.is_charge AND e.generation NOT BETWEEN 0 AND o.generation) AS reserved_never,
    count(*) FILTER (WHERE NOT e.is_charge AND o.lines IS NULL AND (e.size <> o.quantity OR e.of <> o.item)) AS reserved_other,
    bool_or(e.stands AND e.doubted) AS doubted,
    bool_or(e.executor IS NOT NULL) AS remote, bool_or(e.executor IS NULL AND (e.doubted OR e.authorized)) AS beside,
    bool_or(e.stands AND e.authorized AND NOT e.captured) AS authorized, bool_or(e.captured) AS captured
  FROM pawl.orders AS o LEFT JOIN effects AS e ON e.order_no = o.order_no
  WHERE o.order_no BETWEEN @first AND @last GROUP BY o.order_no
), judged AS (
  SELECT n.order_no, n.order_id, n.status, nullif(concat_ws(', ',
    CASE WHEN p.status IS NULL THEN 'unknown status' END,
    CASE WHEN p.charge = 'stands' AND n.charges <> 1 THEN n.charges || ' charges stand, not 1'
      WHEN p.charge = 'stands' AND n.charges_now <> 1 THEN 'the charge of another generation stands'
      WHEN p.charge <> 'stands' AND n.charges > 0 THEN n.charges || ' charges stand, not 0'
      WHEN p.charge = 'none' AND n.charged_now > 0 THEN 'charged too early' END,
    CASE WHEN n.charged_never > 0 THEN 'charged in a generation that the order never had' END,
    CASE WHEN n.charged_other > 0 THEN 'charged another amount or currency' END,
    CASE WHEN p.reservation = 'stands' AND n.reservations <> 1 THEN n.reservations || ' reservations stand, not 1'
      WHEN p.reservation = 'stands' AND n.reservations_now <> 1 THEN 'the reservation of another generation stands'
      WHEN p.reservation <> 'stands' AND n.reservations > 0 THEN n.reservations || ' reservations stand, not 0'
      WHEN p.reservation = 'none' AND n.reserved_now > 0 THEN 'reserved too early' END,
    CASE WHEN n.reserved_never > 0 THEN 'reserved in a generation that the order never had' END,
    CASE WHEN n.reserved_other > 0 THEN 'reserved another item or quantity' END,
    CASE WHEN n.doubted AND n.status NOT IN ('releasing', 'refunding') THEN 'goes on with an effect in doubt' END,
    CASE WHEN n.remote AND n.policy IS NULL THEN 'done remotely without a policy' END,
    CASE WHEN n.beside THEN 'in doubt or authorized, but by the ledger' END,
    CASE WHEN n.status = 'completed' AND n.authorized THEN 'authorized, never captured'
      WHEN n.status <> 'completed' AND n.captured THEN 'captured before it was confirmed' END), '') AS fault
  FROM counted AS n LEFT JOIN promised AS p ON p.status = n.status
)
SELECT j.status, count(*) AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.order_id ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j GROUP BY j.status;

-- name: VerifyRefunds :one
-- Each charge marked as refunded has its refund, and each undo of a charge its charge. Requested operations belong to a
-- completed order, are numbered without gaps, stay within the charge, what was captured of it and the units, and are in
-- the history. One of a provider was answered done, by the provider or a person.
WITH matched AS (
  SELECT coalesce(c.order_no, f.order_no) AS order_no,
    CASE WHEN f.order_no IS NULL THEN 'generation ' || c.generation || ': charge refunded without a refund'
      WHEN c.order_no IS NULL THEN 'generation ' || f.generation || ': refund without a refunded charge'
      WHEN c.amount <> f.amount OR c.currency <> f.currency THEN 'generation ' || f.generation || ': refunded '
        || f.amount || ' ' || f.currency || ', charged ' || c.amount || ' ' || c.currency
      WHEN c.in_doubt AND f.reference IS NOT NULL THEN 'generation ' || f.generation || ': in doubt, though undone by ' || f.reference END AS fault
  FROM (SELECT * FROM pawl.charges AS g WHERE g.order_no BETWEEN @first AND @last AND g.refunded_at IS NOT NULL) AS c
  FULL JOIN (SELECT * FROM pawl.charge_operations AS h WHERE h.order_no BETWEEN @first AND @last AND h.number = 0) AS f
    ON f.order_no = c.order_no AND f.generation = c.generation
), answered AS (
  SELECT a.order_no, a.generation, a.charge_operation, bool_or(a.operation <> 'lookup') AS sent, bool_or(a.outcome = 'done') AS done,
    (array_agg(a.outcome ORDER BY a.call) FILTER (WHERE a.outcome IN ('done', 'refused')))[1] AS last
  FROM pawl.step_calls AS a WHERE a.order_no BETWEEN @first AND @last AND a.charge_operation IS NOT NULL GROUP BY a.order_no, a.generation, a.charge_operation
), asked AS (
  SELECT coalesce(f.order_no, a.order_no) AS order_no, coalesce(f.number, a.charge_operation) AS number, f.kind, f.state, f.generation, f.voided,
    CASE WHEN f.state <> 'failed' THEN f.amount END AS amount, f.currency, f.restock, f.lines, f.executor,
    CASE WHEN f.order_no IS NULL THEN 'called for, but not asked for'
      WHEN f.number < 0 OR f.amount = 0 THEN 'an operation of nothing'
      WHEN f.state IN ('done', 'failed') AND f.finished_at IS NULL THEN f.state || ', but not when'
      WHEN f.state NOT IN ('done', 'failed') AND f.code IS DISTINCT FROM 'other_cell' AND (f.due_at IS NULL OR f.finished_at IS NOT NULL) THEN f.state || ', and nothing continues it'
      WHEN f.executor IS NULL AND (f.state <> 'done' OR a.sent) THEN 'by the ledger, but not done by it'
      WHEN f.executor IS NOT NULL AND f.state = 'done' AND a.done IS NOT TRUE AND f.code IS DISTINCT FROM 'step_result' THEN 'done without an answer'
      WHEN a.last = 'done' AND f.state <> 'done' THEN 'answered done, but ' || f.state
      WHEN f.state IN ('in_doubt', 'accepted') AND a.sent IS NOT TRUE THEN f.state || ' without a call' END AS fault
  FROM (SELECT * FROM pawl.charge_operations AS h WHERE h.order_no BETWEEN @first AND @last AND h.number <> 0) AS f
  FULL JOIN answered AS a ON a.order_no = f.order_no AND a.generation = f.generation AND a.charge_operation = f.number
), within AS (
  SELECT s.order_no, count(*) AS operations, max(s.number) AS last, coalesce(sum(s.restock), 0) AS restock,
    coalesce(sum(s.amount) FILTER (WHERE s.kind = 'refund'), 0) AS refunded, coalesce(sum(s.amount) FILTER (WHERE s.kind = 'capture' AND s.state = 'done'), 0) AS captured,
    coalesce(sum(s.amount + coalesce(s.voided, 0)) FILTER (WHERE s.kind <> 'refund'), 0) AS taken,
    min(s.generation) AS oldest, max(s.generation) AS newest, min(s.currency) AS currency, max(s.currency) AS other,
    bool_or(s.lines IS NOT NULL) AS lined, bool_or(s.executor IS NULL) AS ledger, max(s.executor) AS executor,
    string_agg(concat(coalesce(s.kind, 'operation'), ' ', s.number, ': ', s.fault), ', ' ORDER BY s.number) FILTER (WHERE s.fault IS NOT NULL) AS fault
  FROM asked AS s GROUP BY s.order_no
), told AS (
  SELECT t.order_no, count(*) FILTER (WHERE t.verb IN ('refund', 'capture', 'void')) AS verbs, count(*) FILTER (WHERE t.verb ^@ 'dispute') AS disputes
  FROM pawl.transitions AS t
  WHERE t.order_no BETWEEN @first AND @last AND t.verb IN ('refund', 'capture', 'void', 'dispute_opened', 'dispute_won', 'dispute_lost') GROUP BY t.order_no
), disputed AS (
  SELECT d.order_no, count(*) AS disputes FROM pawl.disputes AS d WHERE d.order_no BETWEEN @first AND @last GROUP BY d.order_no
), charged AS (
  SELECT g.order_no, g.generation, g.amount, g.currency, g.executor, coalesce(g.capture = 'later', false) AS later FROM pawl.charges AS g
  WHERE g.order_no BETWEEN @first AND @last AND g.refunded_at IS NULL
), sold AS (
  SELECT r.order_no, r.generation, sum(r.quantity) AS quantity FROM pawl.reservations AS r
  WHERE r.order_no BETWEEN @first AND @last AND r.released_at IS NULL AND r.executor IS NULL GROUP BY r.order_no, r.generation
), limited AS (
  SELECT o.order_no, coalesce(w.operations, 0) AS operations, nullif(concat_ws(', ', w.fault,
    CASE WHEN coalesce(w.operations, 0) <> coalesce(o.charge_operations, 0) OR w.last <> o.charge_operations
      THEN coalesce(w.operations, 0) || ' charge operations, the last one ' || coalesce(w.last, 0) || ', counted ' || coalesce(o.charge_operations, 0) END,
    CASE WHEN w.operations > 0 AND o.status <> 'completed' THEN 'charge operations of an order that is ' || o.status END,
    CASE WHEN coalesce(t.verbs, 0) <> coalesce(o.charge_operations, 0)
      THEN coalesce(t.verbs, 0) || ' charge operations in the history, counted ' || coalesce(o.charge_operations, 0) END,
    CASE WHEN coalesce(d.disputes, 0) <> coalesce(o.disputes, 0) OR coalesce(t.disputes, 0) <> coalesce(o.disputes, 0)
      THEN coalesce(d.disputes, 0) || ' disputes, ' || coalesce(t.disputes, 0) || ' in the history, counted ' || coalesce(o.disputes, 0) END,
    CASE WHEN w.refunded > coalesce(CASE WHEN c.later THEN w.captured ELSE c.amount END, 0)
      THEN 'refunds of ' || w.refunded || ', captured ' || coalesce(CASE WHEN c.later THEN w.captured ELSE c.amount END, 0) END,
    CASE WHEN w.taken > CASE WHEN c.later THEN c.amount ELSE 0 END
      THEN 'captures and voids of ' || w.taken || ', authorized ' || CASE WHEN c.later THEN c.amount ELSE 0 END END,
    CASE WHEN w.oldest <> o.generation OR w.newest <> o.generation THEN 'charge operations of another generation' END,
    CASE WHEN w.currency <> c.currency OR w.other <> c.currency THEN 'charge operations of another currency' END,
    CASE WHEN w.ledger <> (c.executor IS NULL) OR w.executor <> c.executor THEN 'done elsewhere than charged' END,
    CASE WHEN w.lined THEN pawl.operation_lines_fault(o.order_no, o.generation) END,
    CASE WHEN w.restock > coalesce(s.quantity, 0)
      THEN w.restock || ' units put back, ' || coalesce(s.quantity, 0) || ' sold from this stock' END), '') AS fault
  FROM pawl.orders AS o
  LEFT JOIN within AS w ON w.order_no = o.order_no
  LEFT JOIN told AS t ON t.order_no = o.order_no
  LEFT JOIN disputed AS d ON d.order_no = o.order_no
  LEFT JOIN charged AS c ON c.order_no = o.order_no AND c.generation = o.generation
  LEFT JOIN sold AS s ON s.order_no = o.order_no AND s.generation = o.generation
  WHERE o.order_no BETWEEN @first AND @last
), judged AS (
  SELECT o.order_no, o.order_id, coalesce(p.pairs, 0) + l.operations AS pairs, nullif(concat_ws(', ', p.fault, l.fault), '') AS fault
  FROM pawl.orders AS o
  JOIN limited AS l ON l.order_no = o.order_no
  LEFT JOIN (SELECT m.order_no, count(*) AS pairs, string_agg(m.fault, ', ') AS fault FROM matched AS m
    GROUP BY m.order_no) AS p ON p.order_no = o.order_no
  WHERE o.order_no BETWEEN @first AND @last
)
SELECT coalesce(sum(j.pairs), 0)::bigint AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.order_id ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;

-- name: VerifyPath :one
-- The history of every order is one path through the machine, whose edges are given as two arrays, and ends at the
-- status of the order. The fence rises by one with every claim, and a claim is a row that keeps the status: the fence
-- of the last move plus the claims since is the fence of the order. The first and the last move have the times of the
-- order, and times in between do not go back, except slightly, when a statement waited or the clock was set. The
-- first row has a hash of the order id. The fence of an order that another cell drives is one higher.
WITH edges AS (
  SELECT e.from_status, e.to_status
  FROM ROWS FROM (unnest(@from_states::text[]), unnest(@to_states::text[])) AS e(from_status, to_status)
), steps AS (
  SELECT t.order_no, t.seq, t.fence, t.from_status, t.to_status, t.at, t.id_hash, t.verb,
    row_number() OVER along AS place, lag(t.to_status) OVER along AS last_status, lag(t.fence) OVER along AS last_fence,
    lag(t.at) OVER along AS last_at, lead(t.seq) OVER along IS NULL AS ends
  FROM pawl.transitions AS t WHERE t.order_no BETWEEN @first AND @last
  WINDOW along AS (PARTITION BY t.order_no ORDER BY t.seq)
), paths AS (
  SELECT s.order_no, count(*) AS length,
    min(s.place) FILTER (WHERE s.seq <> s.place) AS missing,
    bool_or(s.place = 1 AND NOT (s.from_status IS NULL AND s.to_status = 'pending'
      OR s.from_status IS NOT NULL AND s.from_status = 'pending' AND s.to_status = 'charging')) AS started_elsewhere,
    min(s.seq) FILTER (WHERE s.place > 1 AND s.from_status IS DISTINCT FROM s.last_status) AS broken,
    min(s.seq) FILTER (WHERE s.from_status <> s.to_status
      AND NOT (s.from_status, s.to_status) IN (SELECT e.from_status, e.to_status FROM edges AS e)) AS illegal,
    min(s.seq) FILTER (WHERE s.fence NOT BETWEEN coalesce(s.last_fence, 0) AND coalesce(s.last_fence, 0) + 1) AS fence_jumped,
    count(*) FILTER (WHERE s.from_status = 'failed' AND s.to_status = 'pending' OR s.verb = 'fallback') AS generations,
    max(s.to_status) FILTER (WHERE s.ends) AS end_status, max(s.fence) FILTER (WHERE s.ends) AS end_fence,
    max(s.fence) FILTER (WHERE s.from_status IS DISTINCT FROM s.to_status) AS moved_under,
    max(s.id_hash) FILTER (WHERE s.place = 1) AS id_hash, max(s.at) FILTER (WHERE s.place = 1) AS began,
    max(s.at) FILTER (WHERE s.from_status IS DISTINCT FROM s.to_status AND s.to_status IN ('completed', 'failed', 'canceled')) AS ended,
    min(s.seq) FILTER (WHERE s.at < s.last_at - interval '1 minute') AS set_back
  FROM steps AS s GROUP BY s.order_no
), judged AS (
  SELECT o.order_no, o.order_id, p.length, CASE WHEN p.order_no IS NULL THEN 'no history' ELSE nullif(concat_ws(', ',
    CASE WHEN p.missing IS NOT NULL THEN 'seq ' || p.missing || ' is missing' END,
    CASE WHEN p.length <> o.seq THEN p.length || ' rows, seq ' || o.seq END,
    CASE WHEN p.started_elsewhere THEN 'starts in the middle' END,
    CASE WHEN p.broken IS NOT NULL THEN 'seq ' || p.broken || ' does not start where the row before it ended' END,
    CASE WHEN p.illegal IS NOT NULL THEN 'seq ' || p.illegal || ' is not a move of the machine' END,
    CASE WHEN p.end_status <> o.status THEN 'ends as ' || p.end_status || ', is ' || o.status END,
    CASE WHEN p.fence_jumped IS NOT NULL THEN 'fence falls or jumps at seq ' || p.fence_jumped END,
    CASE WHEN p.end_fence <> o.fence AND NOT (o.fence = p.end_fence + 1 AND coalesce(starts_with(o.hold_reason, 'other_cell: '), false)) THEN 'ends with fence ' || p.end_fence || ', has ' || o.fence END,
    CASE WHEN p.id_hash <> hashtext(o.order_id) THEN 'was admitted under another id' END,
    CASE WHEN p.began <> o.created_at THEN 'began at ' || p.began || ', was made at ' || o.created_at END,
    CASE WHEN p.ended <> o.finished_at AND o.ended_as IS NOT NULL THEN 'ended at ' || p.ended || ', is finished at ' || o.finished_at END,
    CASE WHEN p.set_back IS NOT NULL THEN 'time goes back at seq ' || p.set_back END,
    CASE WHEN p.generations <> o.generation THEN p.generations || ' redrives and fallbacks, generation ' || o.generation END,
    CASE WHEN o.take_overs > o.fence - p.moved_under
      THEN o.take_overs || ' take-overs, claimed ' || o.fence - p.moved_under || ' times since the last move' END), '') END AS fault
  FROM pawl.orders AS o
  LEFT JOIN paths AS p ON p.order_no = o.order_no
  WHERE o.order_no BETWEEN @first AND @last
)
SELECT coalesce(sum(j.length), 0)::bigint AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.order_id ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;

-- name: VerifyLines :one
-- The lines of an order agree with its item, quantity and amount. Each of its reservations has the units of all its items,
-- which are all in effect or all released.
WITH lined AS (
  SELECT o.order_no, o.order_id, o.item, o.quantity, o.amount, o.lines FROM pawl.orders AS o
  WHERE o.order_no BETWEEN @first AND @last AND (o.lines IS NOT NULL OR o.item = '' OR o.order_no IN (
    SELECT v.order_no FROM pawl.reservations AS v WHERE v.order_no BETWEEN @first AND @last AND v.line <> 1))
), summed AS (
  SELECT n.order_no, count(*) AS lines, count(l.amount) AS amounts, sum(l.amount) AS amount,
    sum(l.quantity) FILTER (WHERE l.kind IS NULL) AS quantity
  FROM lined AS n CROSS JOIN LATERAL json_to_recordset(n.lines) AS l(kind text, quantity bigint, amount numeric)
  GROUP BY n.order_no
), items AS (
  SELECT n.order_no, u.line, u.item, u.quantity
  FROM lined AS n CROSS JOIN LATERAL pawl.items_of(n.item, n.quantity, n.lines) AS u(line, item, quantity)
), reserved AS (
  SELECT r.order_no, r.generation, count(*) AS rows, count(i.order_no) AS matching,
    bool_or(r.released_at IS NULL) AND bool_or(r.released_at IS NOT NULL) AS divided
  FROM pawl.reservations AS r
  LEFT JOIN items AS i ON i.order_no = r.order_no AND i.line = r.line AND i.item = r.item AND i.quantity = r.quantity
  WHERE r.order_no BETWEEN @first AND @last AND r.order_no IN (SELECT n.order_no FROM lined AS n)
  GROUP BY r.order_no, r.generation
), mismatched AS (
  SELECT r.order_no, string_agg(concat('the reservation of generation ', r.generation,
    CASE WHEN r.rows <> c.items OR r.matching <> c.items THEN ' has other items than the order' ELSE ' is released in part' END), ', ' ORDER BY r.generation) AS fault
  FROM reserved AS r JOIN (SELECT i.order_no, count(*) AS items FROM items AS i GROUP BY i.order_no) AS c ON c.order_no = r.order_no
  WHERE r.rows <> c.items OR r.matching <> c.items OR r.divided GROUP BY r.order_no
), judged AS (
  SELECT n.order_no, n.order_id, coalesce(s.lines, 0) AS lines, nullif(concat_ws(', ',
    CASE WHEN (n.item = '') <> (n.lines IS NOT NULL) THEN 'has neither or both of an item and lines'
      WHEN n.lines IS NOT NULL AND s.quantity IS DISTINCT FROM n.quantity THEN coalesce(s.quantity, 0) || ' units in lines, ' || n.quantity || ' in all' END,
    CASE WHEN s.amounts NOT IN (0, s.lines) THEN s.amounts || ' of ' || s.lines || ' lines have an amount'
      WHEN s.amount <> n.amount THEN 'lines of ' || s.amount || ', an amount of ' || n.amount END,
    m.fault), '') AS fault
  FROM lined AS n LEFT JOIN summed AS s ON s.order_no = n.order_no LEFT JOIN mismatched AS m ON m.order_no = n.order_no
)
SELECT coalesce(sum(j.lines), 0)::bigint AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.order_id ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;

-- name: VerifyUndone :one
-- Every undoing move undid one effect, and nothing else undid any.
WITH moves AS (
  SELECT t.order_no,
    count(*) FILTER (WHERE t.from_status = 'refunding' AND t.to_status IN ('failed', 'canceled')) AS refunds,
    count(*) FILTER (WHERE t.from_status = 'releasing' AND t.to_status = 'refunding') AS releases
  FROM pawl.transitions AS t
  WHERE t.order_no BETWEEN @first AND @last AND t.from_status IN ('refunding', 'releasing')
  GROUP BY t.order_no
), refunded AS (
  SELECT c.order_no, count(*) AS rows FROM pawl.charges AS c
  WHERE c.order_no BETWEEN @first AND @last AND c.refunded_at IS NOT NULL GROUP BY c.order_no
), released AS (
  SELECT r.order_no, count(*) AS rows FROM pawl.reservations AS r
  WHERE r.order_no BETWEEN @first AND @last AND r.released_at IS NOT NULL AND r.line = 1 GROUP BY r.order_no
), judged AS (
  SELECT o.order_no, o.order_id, coalesce(m.refunds, 0) + coalesce(m.releases, 0) AS undone, nullif(concat_ws(', ',
    CASE WHEN coalesce(c.rows, 0) <> coalesce(m.refunds, 0)
      THEN coalesce(c.rows, 0) || ' charges refunded by ' || coalesce(m.refunds, 0) || ' moves' END,
    CASE WHEN coalesce(r.rows, 0) <> coalesce(m.releases, 0)
      THEN coalesce(r.rows, 0) || ' reservations released by ' || coalesce(m.releases, 0) || ' moves' END), '') AS fault
  FROM pawl.orders AS o
  LEFT JOIN moves AS m ON m.order_no = o.order_no
  LEFT JOIN refunded AS c ON c.order_no = o.order_no
  LEFT JOIN released AS r ON r.order_no = o.order_no
  WHERE o.order_no BETWEEN @first AND @last
)
SELECT coalesce(sum(j.undone), 0)::bigint AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.order_id ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;

-- name: VerifyMoney :many
-- Returns money by currency and by the day (UTC) on which the order was placed, summed on three sides that share no row:
-- charges, undos, and the orders whose status says that they hold money. An undo commits with the final move, so an
-- order in refunding still holds it, unless its charge was in doubt: only such an order goes there from charging.
-- under_way is what unfinished orders keep. disputed is what open disputes are about. Sums of nothing have the fraction
-- digits of the orders.
WITH placed AS MATERIALIZED (
  SELECT o.order_no, o.status, o.currency, o.amount, (o.created_at AT TIME ZONE 'UTC')::date AS day
  FROM pawl.orders AS o WHERE o.order_no BETWEEN @first AND @last
), entries AS (
  SELECT p.day, m.currency, 0 AS orders, m.charges, m.charged, m.undone, m.refunded, m.voided, m.authorized, m.standing, 0 AS held,
    CASE WHEN p.status <> 'completed' THEN m.standing - m.authorized ELSE 0 END AS under_way, m.disputed, m.lost
  FROM pawl.order_money AS m LEFT JOIN placed AS p ON p.order_no = m.order_no WHERE m.order_no BETWEEN @first AND @last
  UNION ALL
  SELECT p.day, p.currency, 1, 0, 0 * p.amount, 0, 0, 0, 0, 0,
    CASE WHEN p.status IN ('reserving', 'confirming', 'completed', 'releasing') OR p.status = 'refunding' AND 'charging' IS DISTINCT FROM (
      SELECT t.from_status FROM pawl.transitions AS t WHERE t.order_no = p.order_no AND t.to_status = 'refunding' AND t.from_status <> 'refunding'
      ORDER BY t.seq DESC LIMIT 1) THEN p.amount ELSE 0 END, 0, 0, 0
  FROM placed AS p
), summed AS (
  SELECT e.day, e.currency, sum(e.orders) AS orders, sum(e.charges) AS charges, sum(e.charged) AS charged, sum(e.undone) AS undone,
    sum(e.refunded) AS refunded, sum(e.voided) AS voided, sum(e.authorized) AS authorized, sum(e.standing) AS standing, sum(e.held) AS held,
    sum(e.under_way) AS under_way, sum(e.disputed) AS disputed, sum(e.lost) AS lost, 0 * sum(e.charged) AS nothing
  FROM entries AS e GROUP BY e.day, e.currency
)
SELECT coalesce(s.day::text, '')::text AS day, s.currency, s.orders::bigint AS orders, s.charges::bigint AS charges,
  s.charged::text AS charged, (s.nothing + s.undone + s.refunded)::text AS refunded, s.standing::text AS standing,
  (s.nothing + s.authorized)::text AS authorized, (s.nothing + s.voided)::text AS voided,
  (s.standing - s.refunded - s.voided - s.authorized - s.lost)::text AS kept, s.held::text AS held, (s.nothing + s.under_way)::text AS under_way,
  (s.nothing + s.disputed)::text AS disputed, (s.nothing + s.lost)::text AS lost,
  (s.standing = s.held AND s.charged - s.undone = s.standing)::boolean AS balanced
FROM summed AS s ORDER BY s.day, s.currency;

-- name: VerifyMovements :many
-- Returns what moved by currency and by the day (UTC) on which it moved, whenever the order was placed. In every
-- currency, what was captured and neither undone, refunded nor lost is what VerifyMoney says is kept.
SELECT (m.at AT TIME ZONE 'UTC')::date::text AS day, m.currency, sum(greatest(m.amount, 0 * m.amount))::text AS captured,
  (- sum(CASE WHEN m.kind = 'refund' THEN m.amount ELSE 0 * m.amount END))::text AS refunded,
  (- sum(CASE WHEN m.kind = 'undo' THEN m.amount ELSE 0 * m.amount END))::text AS undone,
  (- sum(CASE WHEN m.kind = 'dispute_lost' THEN m.amount ELSE 0 * m.amount END))::text AS lost
FROM pawl.movements AS m WHERE m.order_no BETWEEN @first AND @last GROUP BY 1, 2 ORDER BY 1, 2;

-- name: VerifyOrphans :one
-- There are no foreign keys, so rows without an order are searched.
WITH children AS (
  SELECT 'transitions' AS source, t.order_no, count(*) AS rows FROM pawl.transitions AS t
  WHERE t.order_no BETWEEN @first AND @last GROUP BY t.order_no
  UNION ALL
  SELECT 'charges', c.order_no, count(*) FROM pawl.charges AS c WHERE c.order_no BETWEEN @first AND @last GROUP BY c.order_no
  UNION ALL
  SELECT 'charge_operations', f.order_no, count(*) FROM pawl.charge_operations AS f WHERE f.order_no BETWEEN @first AND @last GROUP BY f.order_no
  UNION ALL
  SELECT 'reservations', r.order_no, count(*) FROM pawl.reservations AS r WHERE r.order_no BETWEEN @first AND @last GROUP BY r.order_no
  UNION ALL
  SELECT 'confirmations', k.order_no, count(*) FROM pawl.confirmations AS k WHERE k.order_no BETWEEN @first AND @last GROUP BY k.order_no
  UNION ALL
  SELECT 'step_calls', a.order_no, count(*) FROM pawl.step_calls AS a WHERE a.order_no BETWEEN @first AND @last GROUP BY a.order_no
  UNION ALL
  SELECT 'step_answers', w.order_no, count(*) FROM pawl.step_answers AS w WHERE w.order_no BETWEEN @first AND @last GROUP BY w.order_no
  UNION ALL
  SELECT 'late_undos', u.order_no, count(*) FROM pawl.late_undos AS u WHERE u.order_no BETWEEN @first AND @last GROUP BY u.order_no
  UNION ALL
  SELECT 'disputes', d.order_no, count(*) FROM pawl.disputes AS d WHERE d.order_no BETWEEN @first AND @last GROUP BY d.order_no
), judged AS (
  SELECT n.order_no, n.rows, n.source,
    CASE WHEN o.order_no IS NULL THEN n.rows || ' rows in ' || n.source || ', no order' END AS fault
  FROM children AS n
  LEFT JOIN (SELECT p.order_no FROM pawl.orders AS p WHERE p.order_no BETWEEN @first AND @last) AS o ON o.order_no = n.order_no
)
SELECT coalesce(sum(j.rows), 0)::bigint AS checked, count(j.fault) AS violations,
  coalesce((array_agg('order_no ' || j.order_no ORDER BY j.order_no, j.source)
    FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.order_no, j.source) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;

-- name: VerifyProtocol :one
-- The columns of an order agree with its status. The database checks some of this on every write; it is checked here
-- all the same.
WITH judged AS (
  SELECT o.order_no, o.order_id, nullif(concat_ws(', ',
    nullif(CASE WHEN o.status IN ('completed', 'failed', 'canceled') THEN concat_ws(', ',
      CASE WHEN o.due_at IS NOT NULL OR o.hold IS NOT NULL OR o.owner IS NOT NULL THEN 'finished, but due, held or owned' END,
      CASE WHEN o.ended_as IS DISTINCT FROM o.status THEN 'ended_as is not the status' END,
      CASE WHEN o.in_doubt_since IS NOT NULL THEN 'finished, but in doubt' END,
      CASE WHEN o.finished_at IS NULL THEN 'finished, but not when' END)
    ELSE concat_ws(', ',
      CASE WHEN o.ended_as IS NOT NULL OR o.finished_at IS NOT NULL THEN 'not finished, but says so' END,
      CASE WHEN o.due_at IS NULL AND o.hold IS NULL THEN 'neither due nor held: no replica claims it' END,
      CASE WHEN o.due_at IS NULL AND o.hold IN ('retry', 'callback', 'scheduled')
        THEN 'held for ' || o.hold || ' without a time: no replica claims it' END,
      CASE WHEN o.due_at IS NOT NULL AND o.hold IN ('attention', 'paused') THEN 'waits for a person, but is due' END,
      CASE WHEN o.in_doubt_since IS NOT NULL AND (o.status = 'pending' OR coalesce(o.calls, 0) = 0) THEN 'in doubt without a call' END,
      CASE WHEN o.policy IS NULL AND (o.calls IS NOT NULL OR o.hold IN ('retry', 'callback')) THEN 'remote without a policy' END,
      CASE WHEN o.hold IS NOT NULL AND o.owner IS NOT NULL THEN 'held, but driven' END,
      CASE WHEN o.hold IS NULL AND o.hold_reason IS NOT NULL THEN 'not held, but for a reason' END,
      CASE WHEN o.owner IS NOT NULL AND o.fence = 0 THEN 'driven without a claim' END)
    END, ''), -- or else the comma of nothing is before what follows
    CASE WHEN o.status IN ('failed', 'canceled') AND o.outcome IS DISTINCT FROM o.status THEN 'outcome is not how it ended'
      WHEN o.status IN ('releasing', 'refunding') AND o.outcome IS NULL THEN 'undone without an outcome'
      WHEN o.status IN ('pending', 'charging', 'reserving', 'confirming', 'completed') AND o.outcome IS NOT NULL
        THEN 'has an outcome, but goes forward' END,
    CASE WHEN o.status = 'failed' AND (o.failure_step IS NULL OR o.failure_code IS NULL) THEN 'failed without a reason'
      WHEN o.status = 'canceled' AND o.stop_requested IS NULL AND o.failure_code IS NULL THEN 'canceled without a reason'
      WHEN o.status = 'completed' AND (o.failure_step IS NOT NULL OR o.failure_code IS NOT NULL) THEN 'completed with a failure'
      WHEN o.status = 'completed' AND o.stop_requested IS NOT NULL THEN 'completed after a request to stop' END), '') AS fault
  FROM pawl.orders AS o WHERE o.order_no BETWEEN @first AND @last
)
SELECT count(*) AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.order_id ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;

-- name: VerifyNumbers :one
-- The first history row of an order names the order that was admitted before, so each number that is named has its
-- order, or was forgotten. Nearly all are in the same range; the others are looked up one by one.
WITH named AS (
  SELECT t.previous_no AS order_no, min(t.order_no) AS follower FROM pawl.transitions AS t
  WHERE t.order_no BETWEEN @first AND @last AND t.previous_no IS NOT NULL GROUP BY t.previous_no
), judged AS (
  SELECT n.order_no,
    CASE WHEN o.order_no IS NULL
      AND (n.order_no >= @first OR (SELECT p.order_no FROM pawl.orders AS p WHERE p.order_no = n.order_no) IS NULL)
      AND NOT EXISTS (SELECT FROM pawl.forgotten_batches AS b WHERE b.order_nos @> n.order_no)
      THEN 'no order, and order_no ' || n.follower || ' came after it' END AS fault
  FROM named AS n
  LEFT JOIN (SELECT q.order_no FROM pawl.orders AS q WHERE q.order_no BETWEEN @first AND @last) AS o ON o.order_no = n.order_no
)
SELECT count(*) AS checked, count(j.fault) AS violations,
  coalesce((array_agg('order_no ' || j.order_no ORDER BY j.order_no)
    FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;

-- name: VerifyForgotten :one
-- Each forgotten order is in a sum of its day, currency and status, in a batch, and among the rows that answer its
-- repetitions. Those of the open batch are still there.
WITH rows AS (
  SELECT f.sum_no, count(*) AS orders FROM pawl.forgotten_orders AS f GROUP BY f.sum_no
), marked AS (
  SELECT f.sum_no, count(*) AS orders FROM pawl.forgotten_batches AS b
  JOIN pawl.orders AS o ON o.order_no = ANY(pawl.numbers_in(b.order_nos))
  JOIN pawl.forgotten_orders AS f ON f.batch_no = b.batch_no AND f.id_hash = pawl.order_id_hash(o.order_id)
  WHERE b.removed_at IS NULL GROUP BY f.sum_no
), judged AS (
  SELECT s.placed_on, s.currency::text AS id, s.orders, nullif(concat_ws(', ',
    CASE WHEN s.orders <> coalesce(r.orders, 0) - coalesce(m.orders, 0)
      THEN s.orders || ' orders of ' || s.placed_on || ' ' || s.status || ', ' || coalesce(r.orders, 0) - coalesce(m.orders, 0) || ' are known by their hash' END,
    CASE WHEN s.charged <> s.refunded + s.voided + s.lost + s.kept OR s.status <> 'completed' AND s.kept + s.lost <> 0
      THEN s.status || ', of ' || s.placed_on || ': charged ' || s.charged || ', refunded ' || s.refunded || ', voided ' || s.voided || ', lost ' || s.lost || ', kept ' || s.kept END), '') AS fault
  FROM pawl.forgotten_sums AS s LEFT JOIN rows AS r ON r.sum_no = s.sum_no LEFT JOIN marked AS m ON m.sum_no = s.sum_no
  UNION ALL
  SELECT NULL, 'all', 0, CASE WHEN b.orders <> s.orders OR b.numbers <> b.all_orders
    THEN s.orders || ' orders in sums, ' || b.orders || ' in batches with ' || b.numbers || ' numbers of ' || b.all_orders || ' orders' END
  FROM (SELECT coalesce(sum(a.orders), 0) AS orders, coalesce(sum(a.orders + a.others), 0) AS all_orders,
      coalesce(sum(cardinality(pawl.numbers_in(a.order_nos))), 0) AS numbers FROM pawl.forgotten_batches AS a WHERE a.removed_at IS NOT NULL) AS b,
    (SELECT coalesce(sum(t.orders), 0) AS orders FROM pawl.forgotten_sums AS t) AS s
  UNION ALL
  SELECT NULL, coalesce(k.currency, g.currency), 0, CASE WHEN coalesce(k.kept, 0) <> coalesce(g.moved, 0)
    THEN 'kept ' || coalesce(k.kept, 0) || ', captured less undone, refunded and lost by day ' || coalesce(g.moved, 0) END
  FROM (SELECT t.currency::text AS currency, sum(t.kept) AS kept FROM pawl.forgotten_sums AS t GROUP BY 1) AS k
  FULL JOIN (SELECT m.currency, sum(m.captured - m.refunded - m.undone - m.lost) AS moved FROM pawl.forgotten_movements AS m GROUP BY 1) AS g ON g.currency = k.currency
)
SELECT coalesce(sum(j.orders), 0)::bigint AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.id ORDER BY j.placed_on, j.id) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.placed_on, j.id) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;

-- name: VerifyForgottenSums :many
-- Returns what forgotten orders come to.
SELECT s.placed_on::text AS day, s.status, s.currency, sum(s.orders)::bigint AS orders, sum(s.charges)::bigint AS charges, sum(s.charged)::text AS charged,
  sum(s.refunded)::text AS refunded, sum(s.voided)::text AS voided, sum(s.kept)::text AS kept, sum(s.lost)::text AS lost
FROM pawl.forgotten_sums AS s WHERE s.orders > 0 GROUP BY s.placed_on, s.status, s.currency ORDER BY s.placed_on, s.currency, s.status;

-- name: VerifyForgottenMovements :many
SELECT m.day::text AS day, m.currency, m.captured::text AS captured, m.refunded::text AS refunded, m.undone::text AS undone, m.lost::text AS lost
FROM pawl.forgotten_movements AS m ORDER BY m.day, m.currency;

-- name: VerifyItemsEnd :one
-- Returns the last item of the next range, after a number of items or reservations. Empty: both have fewer.
SELECT coalesce(least(
  (SELECT i.item FROM pawl.inventory AS i WHERE i.item > @after ORDER BY i.item OFFSET @skip LIMIT 1),
  (SELECT r.item FROM pawl.reservations AS r WHERE r.item > @after ORDER BY r.item OFFSET @skip_reservations LIMIT 1)), '')::text AS item;

-- name: VerifyStock :one
-- Reserved units are those of reservations in effect whose orders are not completed; the others in effect are sold.
-- Remote reservations are not stock of Pawl. Unfinished orders are few, and found by due_at and hold; the array keeps
-- the planner from reading all reservations for them. on_hand is the sum of the stock movements, less what was sold
-- since the first of them. Units returned by a refund are a movement of their own if the item was tracked by then. If
-- the first movement is of the same minute, that is not known. What forgotten orders sold and put back is in sums.
WITH unfinished AS (
  SELECT o.order_no FROM pawl.orders AS o WHERE o.due_at IS NOT NULL AND o.status <> 'completed'
  UNION ALL
  SELECT h.order_no FROM pawl.orders AS h WHERE h.hold IS NOT NULL AND h.due_at IS NULL AND h.status <> 'completed'
), held AS (
  SELECT r.item, sum(r.quantity) AS quantity FROM pawl.reservations AS r
  WHERE r.released_at IS NULL AND r.executor IS NULL AND r.order_no = ANY(ARRAY(SELECT u.order_no FROM unfinished AS u))
    AND r.item > @after AND (@upto::text = '' OR r.item <= @upto::text)
  GROUP BY r.item
), standing AS (
  SELECT a.item, coalesce(sum(a.quantity) FILTER (WHERE a.released_at IS NULL), 0) AS quantity FROM pawl.reservations AS a
  WHERE a.executor IS NULL AND a.item > @after AND (@upto::text = '' OR a.item <= @upto::text)
  GROUP BY a.item
), movements AS (
  SELECT m.item, m.version, m.at, m.kind, m.request_id, m.change, m.on_hand, m.sold,
    lag(m.on_hand) OVER along AS last_on_hand, lag(m.sold) OVER along AS last_sold
  FROM pawl.stock_movements AS m WHERE m.item > @after AND (@upto::text = '' OR m.item <= @upto::text)
  WINDOW along AS (PARTITION BY m.item ORDER BY m.version)
), moved AS (
  SELECT s.item, sum(s.change) AS change, max(s.version) AS version, min(s.at) AS began,
    min(s.sold) FILTER (WHERE s.last_sold IS NULL) AS sold_before,
    min(s.version) FILTER (WHERE s.change <> s.on_hand - coalesce(s.last_on_hand - (s.sold - s.last_sold), 0)) AS broken
  FROM movements AS s GROUP BY s.item
), restocks AS (
  SELECT o.item, 'refund ' || f.number || ' of ' || o.order_id AS request_id, f.restock AS units, f.created_at
  FROM pawl.charge_operations AS f JOIN pawl.orders AS o ON o.order_no = f.order_no
  WHERE f.restock IS NOT NULL AND f.lines IS NULL AND o.item > @after AND (@upto::text = '' OR o.item <= @upto::text)
  UNION ALL
  SELECT l.item, 'refund ' || f.number || ' of ' || o.order_id, sum(l.quantity)::integer, f.created_at
  FROM pawl.charge_operations AS f JOIN pawl.orders AS o ON o.order_no = f.order_no
  CROSS JOIN LATERAL json_to_recordset(f.lines) AS l(item text, quantity integer, restock boolean)
  WHERE f.restock IS NOT NULL AND l.restock AND l.item > @after AND (@upto::text = '' OR l.item <= @upto::text)
  GROUP BY o.order_id, f.number, l.item, f.created_at
), returned AS (
  SELECT coalesce(s.item, r.item) AS item, min(coalesce(s.request_id, r.request_id)) AS broken
  FROM (SELECT * FROM movements AS q WHERE q.kind = 'restock') AS s
  FULL JOIN restocks AS r ON r.item = s.item AND r.request_id = s.request_id
  LEFT JOIN moved AS m ON m.item = r.item
  WHERE s.change IS DISTINCT FROM r.units AND (r.item IS NOT NULL AND s.item IS NOT NULL OR r.created_at > m.began + interval '1 minute')
  GROUP BY coalesce(s.item, r.item)
), unmatched AS ( -- put back by refunds of orders that are not there
  SELECT s.item, sum(s.change) AS units, min(s.request_id) AS request_id FROM movements AS s
  WHERE s.kind = 'restock' AND NOT EXISTS (SELECT FROM restocks AS r WHERE r.item = s.item AND r.request_id = s.request_id) GROUP BY s.item
), forgotten AS (
  SELECT f.item, f.sold, f.restocked FROM pawl.forgotten_stock AS f WHERE f.item > @after AND (@upto::text = '' OR f.item <= @upto::text)
), stocked AS (
  SELECT i.item, i.tracked, i.on_hand, i.reserved, i.sold, i.version FROM pawl.inventory AS i
  WHERE i.item > @after AND (@upto::text = '' OR i.item <= @upto::text)
), judged AS (
  SELECT coalesce(i.item, d.item, m.item) AS item, CASE
    WHEN i.item IS NULL AND d.item IS NULL THEN 'moved, but not in the inventory'
    WHEN i.item IS NULL THEN 'reserved, but not in the inventory'
    ELSE nullif(concat_ws(', ',
      CASE WHEN i.reserved <> coalesce(h.quantity, 0)
        THEN i.reserved || ' reserved, reservations of ' || coalesce(h.quantity, 0) || ' stand' END,
      CASE WHEN i.sold <> coalesce(d.quantity, 0) - coalesce(h.quantity, 0) + coalesce(f.sold, 0)
        THEN i.sold || ' sold, completed orders have ' || coalesce(d.quantity, 0) - coalesce(h.quantity, 0) + coalesce(f.sold, 0) END,
      CASE WHEN i.on_hand <> coalesce(m.change - (i.sold - m.sold_before), 0)
        THEN i.on_hand || ' on hand, movements less sales are ' || coalesce(m.change - (i.sold - m.sold_before), 0) END,
      CASE WHEN m.broken IS NOT NULL THEN 'movement ' || m.broken || ' does not start where the one before it ended' END,
      CASE WHEN b.broken IS NOT NULL THEN 'units of ' || b.broken || ' were not put back as it says' END,
      CASE WHEN coalesce(x.units, 0) <> coalesce(f.restocked, 0)
        THEN concat('units of ', coalesce(x.request_id, 'refunds'), ' or others have no refund: ', coalesce(x.units, 0), ' put back, ', coalesce(f.restocked, 0),
          ' by forgotten orders') END,
      CASE WHEN m.version > i.version THEN 'movement ' || m.version || ' at version ' || i.version END,
      CASE WHEN m.item IS NOT NULL AND NOT i.tracked THEN 'not tracked, though its stock was set' END,
      CASE WHEN i.tracked AND i.reserved > i.on_hand THEN i.reserved || ' reserved, ' || i.on_hand || ' on hand' END,
      CASE WHEN i.reserved < 0 OR i.on_hand < 0 THEN 'less than nothing' END), '') END AS fault
  FROM stocked AS i FULL JOIN standing AS d ON d.item = i.item
  FULL JOIN moved AS m ON m.item = coalesce(i.item, d.item)
  LEFT JOIN held AS h ON h.item = coalesce(i.item, d.item, m.item)
  LEFT JOIN returned AS b ON b.item = coalesce(i.item, d.item, m.item)
  LEFT JOIN unmatched AS x ON x.item = coalesce(i.item, d.item, m.item)
  LEFT JOIN forgotten AS f ON f.item = coalesce(i.item, d.item, m.item)
)
SELECT count(*) AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.item ORDER BY j.item) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.item) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;

-- name: VerifyCalls :one
-- Every remote effect was answered by a call, or by an answer that came without one; an effect in doubt was at least
-- called for, and one that is known to be done in spite of that was undone by an answer with a reference. The reverse, too: every step that was answered done is in the books, once. A fenced answer moved
-- nothing, and has no effect there. The calls of an order are numbered without gaps; those that move no order are
-- below zero.
WITH answered AS (
  SELECT a.order_no, a.generation, a.step, count(*) AS calls,
    bool_or(a.operation <> 'undo') AS called,
    bool_or(a.operation <> 'undo' AND a.outcome = 'done' AND a.fenced IS NOT TRUE) AS done,
    bool_or(a.operation = 'undo' AND a.outcome = 'done') AS undone,
    bool_or(a.operation = 'undo' AND a.outcome = 'done' AND a.reference IS NOT NULL) AS named,
    count(*) FILTER (WHERE a.call > 0) AS numbered, max(a.call) AS last
  FROM pawl.step_calls AS a WHERE a.order_no BETWEEN @first AND @last AND a.charge_operation IS NULL GROUP BY a.order_no, a.generation, a.step
), told AS (
  SELECT w.order_no, w.generation, w.step, bool_or(w.operation = 'do' AND w.outcome = 'done') AS done,
    bool_or(w.operation = 'undo' AND w.outcome = 'done') AS undone,
    bool_or(w.operation = 'undo' AND w.outcome = 'done' AND w.reference IS NOT NULL) AS named
  FROM pawl.step_answers AS w WHERE w.order_no BETWEEN @first AND @last AND w.consumed_at IS NOT NULL
  GROUP BY w.order_no, w.generation, w.step
), effects AS (
  SELECT c.order_no, c.generation, 'charge' AS step, c.in_doubt IS NOT NULL AS doubted, c.in_doubt IS FALSE AS known, c.refunded_at IS NOT NULL AS undone
  FROM pawl.charges AS c WHERE c.order_no BETWEEN @first AND @last AND c.executor IS NOT NULL
  UNION ALL
  SELECT r.order_no, r.generation, 'reserve', coalesce(r.in_doubt, false), false, r.released_at IS NOT NULL
  FROM pawl.reservations AS r WHERE r.order_no BETWEEN @first AND @last AND r.executor IS NOT NULL AND r.line = 1
  UNION ALL
  SELECT k.order_no, k.generation, 'confirm', false, false, false
  FROM pawl.confirmations AS k WHERE k.order_no BETWEEN @first AND @last
), matched AS (
  SELECT coalesce(e.order_no, a.order_no) AS order_no, coalesce(e.generation, a.generation) AS generation,
    coalesce(e.step, a.step) AS step, coalesce(a.calls, 0) AS calls, coalesce(a.numbered, 0) AS numbered, a.last,
    CASE WHEN e.step IS NULL AND a.done THEN 'answered done, not in the books'
      WHEN e.doubted AND a.called IS NOT TRUE THEN 'in doubt without a call'
      WHEN NOT e.doubted AND a.done IS NOT TRUE AND t.done IS NOT TRUE THEN 'done without an answer'
      WHEN e.undone AND a.undone IS NOT TRUE AND t.undone IS NOT TRUE THEN 'undone without an answer'
      WHEN e.known AND a.named IS NOT TRUE AND t.named IS NOT TRUE THEN 'known to be done, though its undo named nothing' END AS fault
  FROM effects AS e
  FULL JOIN answered AS a ON a.order_no = e.order_no AND a.generation = e.generation AND a.step = e.step
  LEFT JOIN told AS t ON t.order_no = coalesce(e.order_no, a.order_no) AND t.generation = coalesce(e.generation, a.generation)
    AND t.step = coalesce(e.step, a.step)
), totals AS (
  SELECT m.order_no, sum(m.calls) AS calls, sum(m.numbered) AS numbered, max(m.last) AS last, min(m.generation) AS oldest,
    max(m.generation) AS newest,
    string_agg(m.step || ' of generation ' || m.generation || ' ' || m.fault, ', ' ORDER BY m.generation, m.step) AS fault
  FROM matched AS m GROUP BY m.order_no
), judged AS (
  SELECT o.order_no, o.order_id, coalesce(t.calls, 0) AS calls, nullif(concat_ws(', ', t.fault,
    CASE WHEN coalesce(t.numbered, 0) <> coalesce(o.calls, 0) OR t.last > 0 AND t.last <> o.calls
      THEN coalesce(t.numbered, 0) || ' calls, the last one ' || coalesce(t.last, 0) || ', counted ' || coalesce(o.calls, 0) END,
    CASE WHEN t.oldest < 0 OR t.newest > o.generation THEN 'called for in a generation that the order never had' END,
    CASE WHEN k.order_no IS NOT NULL AND o.status <> 'completed' THEN 'confirmed, but ' || o.status
      WHEN k.generation <> o.generation THEN 'confirmed in another generation' END), '') AS fault
  FROM pawl.orders AS o
  LEFT JOIN totals AS t ON t.order_no = o.order_no
  LEFT JOIN (SELECT * FROM pawl.confirmations AS f WHERE f.order_no BETWEEN @first AND @last) AS k ON k.order_no = o.order_no
  WHERE o.order_no BETWEEN @first AND @last
)
SELECT coalesce(sum(j.calls), 0)::bigint AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.order_id ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;

-- name: VerifyLate :one
-- Lists unfinished side calls: late undos, and charge operations.
WITH judged AS (
  SELECT o.order_id, u.created_at, CASE WHEN u.created_at < now() - make_interval(secs => @late_seconds::float8)
    THEN u.step || ' of generation ' || u.generation || ', open for ' || date_trunc('second', now() - u.created_at)
      || ', tried ' || u.claims || ' times' || coalesce(', last ' || u.code, '') END AS fault
  FROM pawl.late_undos AS u JOIN pawl.orders AS o ON o.order_no = u.order_no WHERE u.finished_at IS NULL
  UNION ALL
  SELECT o.order_id, f.created_at, CASE WHEN f.created_at < now() - make_interval(secs => @late_seconds::float8)
    THEN f.kind || ' ' || f.number || ', ' || f.state || ' for ' || date_trunc('second', now() - f.created_at)
      || ', tried ' || f.claims || ' times' || coalesce(', last ' || f.code, '') END AS fault
  FROM pawl.charge_operations AS f JOIN pawl.orders AS o ON o.order_no = f.order_no WHERE f.due_at IS NOT NULL
    AND f.state <> 'done' AND (f.state <> 'accepted' OR f.code = 'outcome_unknown')
)
SELECT count(*) AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.order_id ORDER BY j.created_at) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.created_at) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;

-- name: VerifyAccess :one
-- Lists entries of the access log about tokens, links and sessions without the change that they describe. One
-- statement makes the change and writes the entry, so both have the same time, which the service's role can't choose.
WITH done AS (
  SELECT 'token_created' AS event, t.id, t.created_at AS at FROM pawl.tokens AS t
  UNION ALL SELECT 'token_rotated', t.id, t.created_at FROM pawl.tokens AS t
  UNION ALL SELECT 'token_revoked', t.id, t.revoked_at FROM pawl.tokens AS t
  UNION ALL SELECT 'link_made', s.token_id, s.created_at FROM pawl.sessions AS s
  UNION ALL SELECT 'session_opened', s.token_id, s.opened_at FROM pawl.sessions AS s
  UNION ALL SELECT 'session_ended', s.token_id, s.expires_at FROM pawl.sessions AS s
), judged AS (
  SELECT l.entry_no, CASE WHEN d.id IS NULL
    THEN concat(l.event, ' of ', l.subject, ' by ', l.actor, ' at ', l.at, ', and nothing of it was done') END AS fault
  FROM pawl.access_log AS l LEFT JOIN done AS d ON d.event = l.event AND d.at = l.at AND d.id = split_part(l.detail, ' ', 1)
  WHERE l.event IN ('token_created', 'token_rotated', 'token_revoked', 'link_made', 'session_opened', 'session_ended')
)
SELECT count(*) AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.entry_no ORDER BY j.entry_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.entry_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;

-- name: VerifyStuck :one
-- Lists orders that are due, and that no replica claims.
WITH judged AS (
  SELECT o.order_id, o.due_at,
    CASE WHEN o.due_at < now() - make_interval(secs => @stuck_seconds::float8)
      THEN o.status || ', due for ' || date_trunc('second', now() - o.due_at) END AS fault
  FROM pawl.orders AS o WHERE o.due_at IS NOT NULL
)
SELECT count(*) AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.order_id ORDER BY j.due_at) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.due_at) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;
