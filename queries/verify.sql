-- The proofs of the books, on a database that may be in use. Each is one statement
-- over a range of keys, so it sees one snapshot, and a move, which is one statement
-- too, is in it whole or not at all. All but the first of the two parts of a range
-- read tables by their primary keys, in the order of order_no.
--
-- Each returns how many rows it judged, how many are wrong, and the first of those
-- with what is wrong in words.

-- name: VerifySettings :one
-- For this transaction only. Statistics may be older than the rows of a range, and
-- then a nested loop looks cheap that reads it once for every row; all ranges are
-- joined along keys instead. Compiling takes longer than a range.
SELECT set_config('enable_nestloop', 'off', true)::text AS nested_loops,
  set_config('jit', 'off', true)::text AS compiling,
  set_config('work_mem', '64MB', true)::text AS memory;

-- name: VerifyExtent :one
-- What there is to verify: the last number of any table, so that rows without an
-- order are found also behind the last order.
SELECT
  coalesce((SELECT min(o.order_no) FROM orders AS o), 0)::bigint AS first_order,
  coalesce((SELECT max(o.order_no) FROM orders AS o), 0)::bigint AS last_order,
  coalesce(greatest(
    (SELECT max(o.order_no) FROM orders AS o), (SELECT max(t.order_no) FROM transitions AS t),
    (SELECT max(c.order_no) FROM charges AS c), (SELECT max(f.order_no) FROM refunds AS f),
    (SELECT max(r.order_no) FROM reservations AS r)), 0)::bigint AS last_number,
  (SELECT count(*) FROM inventory AS i)::bigint AS items;

-- name: VerifyNextNumber :one
-- The first number at or after @start that any table knows; null when there is none. Numbers
-- may be far apart.
SELECT least(
  (SELECT min(o.order_no) FROM orders AS o WHERE o.order_no >= @start),
  (SELECT min(t.order_no) FROM transitions AS t WHERE t.order_no >= @start),
  (SELECT min(c.order_no) FROM charges AS c WHERE c.order_no >= @start),
  (SELECT min(f.order_no) FROM refunds AS f WHERE f.order_no >= @start),
  (SELECT min(r.order_no) FROM reservations AS r WHERE r.order_no >= @start))::bigint AS order_no;

-- name: VerifyEffects :many
-- What every status promises of the charge and the reservation of the generation:
-- none (never done), stands (done once, as ordered), undone (taken back, or never
-- done). No other generation has anything that stands.
WITH promised AS (
  SELECT p.status, p.charge, p.reservation FROM (VALUES
    ('pending', 'none', 'none'), ('charging', 'none', 'none'), ('reserving', 'stands', 'none'),
    ('confirming', 'stands', 'stands'), ('completed', 'stands', 'stands'), ('releasing', 'stands', 'stands'),
    ('refunding', 'stands', 'undone'), ('failed', 'undone', 'undone'), ('canceled', 'undone', 'undone')
  ) AS p(status, charge, reservation)
), charged AS (
  SELECT c.order_no,
    count(*) FILTER (WHERE c.refunded_at IS NULL) AS standing,
    count(*) FILTER (WHERE c.refunded_at IS NULL AND c.generation = o.generation) AS standing_now,
    count(*) FILTER (WHERE c.generation = o.generation) AS made_now,
    count(*) FILTER (WHERE c.amount <> o.amount OR c.currency <> o.currency) AS other_input,
    count(*) FILTER (WHERE c.generation NOT BETWEEN 0 AND o.generation) AS other_generation
  FROM charges AS c JOIN orders AS o ON o.order_no = c.order_no
  WHERE c.order_no BETWEEN @first AND @last AND o.order_no BETWEEN @first AND @last
  GROUP BY c.order_no
), reserved AS (
  SELECT r.order_no,
    count(*) FILTER (WHERE r.released_at IS NULL) AS standing,
    count(*) FILTER (WHERE r.released_at IS NULL AND r.generation = o.generation) AS standing_now,
    count(*) FILTER (WHERE r.generation = o.generation) AS made_now,
    count(*) FILTER (WHERE r.quantity <> o.quantity OR r.item <> o.item) AS other_input,
    count(*) FILTER (WHERE r.generation NOT BETWEEN 0 AND o.generation) AS other_generation
  FROM reservations AS r JOIN orders AS o ON o.order_no = r.order_no
  WHERE r.order_no BETWEEN @first AND @last AND o.order_no BETWEEN @first AND @last
  GROUP BY r.order_no
), judged AS (
  SELECT o.order_no, o.order_id, o.status, nullif(concat_ws(', ',
    CASE WHEN p.status IS NULL THEN 'unknown status' END,
    CASE WHEN p.charge = 'none' AND c.made_now > 0 THEN 'charged too early'
      WHEN p.charge = 'stands' AND coalesce(c.standing_now, 0) <> 1 THEN coalesce(c.standing_now, 0) || ' charges stand, not 1'
      WHEN p.charge <> 'stands' AND c.standing_now > 0 THEN 'a charge stands' END,
    CASE WHEN c.standing > c.standing_now THEN 'a charge of another generation stands' END,
    CASE WHEN c.other_input > 0 THEN 'charged another amount or currency' END,
    CASE WHEN c.other_generation > 0 THEN 'a charge of a generation that the order never had' END,
    CASE WHEN p.reservation = 'none' AND r.made_now > 0 THEN 'reserved too early'
      WHEN p.reservation = 'stands' AND coalesce(r.standing_now, 0) <> 1 THEN coalesce(r.standing_now, 0) || ' reservations stand, not 1'
      WHEN p.reservation <> 'stands' AND r.standing_now > 0 THEN 'a reservation stands' END,
    CASE WHEN r.standing > r.standing_now THEN 'a reservation of another generation stands' END,
    CASE WHEN r.other_input > 0 THEN 'reserved another item or quantity' END,
    CASE WHEN r.other_generation > 0 THEN 'a reservation of a generation that the order never had' END), '') AS fault
  FROM orders AS o
  LEFT JOIN promised AS p ON p.status = o.status
  LEFT JOIN charged AS c ON c.order_no = o.order_no
  LEFT JOIN reserved AS r ON r.order_no = o.order_no
  WHERE o.order_no BETWEEN @first AND @last
)
SELECT j.status, count(*) AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.order_id ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j GROUP BY j.status;

-- name: VerifyRefunds :one
-- A charge marked refunded has its refund and a refund its charge.
WITH matched AS (
  SELECT coalesce(c.order_no, f.order_no) AS order_no,
    CASE WHEN f.order_no IS NULL THEN 'generation ' || c.generation || ': charge refunded without a refund'
      WHEN c.order_no IS NULL THEN 'generation ' || f.generation || ': refund without a refunded charge'
      WHEN c.amount <> f.amount OR c.currency <> f.currency THEN 'generation ' || f.generation || ': refunded '
        || f.amount || ' ' || f.currency || ', charged ' || c.amount || ' ' || c.currency END AS fault
  FROM (SELECT * FROM charges AS g WHERE g.order_no BETWEEN @first AND @last AND g.refunded_at IS NOT NULL) AS c
  FULL JOIN (SELECT * FROM refunds AS h WHERE h.order_no BETWEEN @first AND @last) AS f
    ON f.order_no = c.order_no AND f.generation = c.generation
), judged AS (
  SELECT o.order_no, o.order_id, count(*) AS pairs, string_agg(m.fault, ', ') AS fault
  FROM matched AS m JOIN orders AS o ON o.order_no = m.order_no
  WHERE o.order_no BETWEEN @first AND @last
  GROUP BY o.order_no
)
SELECT coalesce(sum(j.pairs), 0)::bigint AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.order_id ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;

-- name: VerifyPath :one
-- The history of every order is one path through the machine, whose edges come as two
-- arrays, and ends where the order is. The fence rises by one with every claim, and a
-- claim is a row that keeps the status: what the last move saw is how often the order
-- was claimed since.
WITH edges AS (
  SELECT e.from_status, e.to_status
  FROM ROWS FROM (unnest(@from_states::text[]), unnest(@to_states::text[])) AS e(from_status, to_status)
), steps AS (
  SELECT t.order_no, t.seq, t.fence, t.from_status, t.to_status,
    row_number() OVER along AS place, lag(t.to_status) OVER along AS last_status, lag(t.fence) OVER along AS last_fence
  FROM transitions AS t WHERE t.order_no BETWEEN @first AND @last
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
    count(*) FILTER (WHERE s.from_status = 'failed' AND s.to_status = 'pending') AS redrives,
    max(s.fence) FILTER (WHERE s.from_status IS DISTINCT FROM s.to_status) AS moved_under
  FROM steps AS s GROUP BY s.order_no
), judged AS (
  SELECT o.order_no, o.order_id, p.length, CASE WHEN p.order_no IS NULL THEN 'no history' ELSE nullif(concat_ws(', ',
    CASE WHEN p.missing IS NOT NULL THEN 'seq ' || p.missing || ' is missing' END,
    CASE WHEN p.length <> o.seq THEN p.length || ' rows, seq ' || o.seq END,
    CASE WHEN p.started_elsewhere THEN 'starts in the middle' END,
    CASE WHEN p.broken IS NOT NULL THEN 'seq ' || p.broken || ' does not start where the row before it ended' END,
    CASE WHEN p.illegal IS NOT NULL THEN 'seq ' || p.illegal || ' is not a move of the machine' END,
    CASE WHEN ending.to_status <> o.status THEN 'ends as ' || ending.to_status || ', is ' || o.status END,
    CASE WHEN p.fence_jumped IS NOT NULL THEN 'fence falls or jumps at seq ' || p.fence_jumped END,
    CASE WHEN ending.fence <> o.fence THEN 'ends with fence ' || ending.fence || ', has ' || o.fence END,
    CASE WHEN p.redrives <> o.generation THEN p.redrives || ' redrives, generation ' || o.generation END,
    CASE WHEN o.take_overs > o.fence - p.moved_under
      THEN o.take_overs || ' take-overs, claimed ' || o.fence - p.moved_under || ' times since the last move' END), '') END AS fault
  FROM orders AS o
  LEFT JOIN paths AS p ON p.order_no = o.order_no
  LEFT JOIN (SELECT * FROM transitions AS l WHERE l.order_no BETWEEN @first AND @last) AS ending
    ON ending.order_no = o.order_no AND ending.seq = o.seq
  WHERE o.order_no BETWEEN @first AND @last
)
SELECT coalesce(sum(j.length), 0)::bigint AS checked, count(j.fault) AS violations,
  coalesce((array_agg(j.order_id ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS offenders,
  coalesce((array_agg(j.fault ORDER BY j.order_no) FILTER (WHERE j.fault IS NOT NULL))[1:@most::integer], '{}')::text[] AS faults
FROM judged AS j;
