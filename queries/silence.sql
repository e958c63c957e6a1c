-- The statements that the server is working on.

-- name: StatementsRunning :many
-- Returns which of some overdue statements the server is working on. The others were lost, or their replies were. On
-- a direct connection, pid is the server process. Behind a pooler, every process counts whose statement begins with
-- the same text and started after this one was sent, which may have waited in the pooler. After five seconds, a
-- process also must have worked for half of that time, so that short statements of other callers don't count.
--
-- A process that waits for a lock, a disk or a standby is working, and so is one that finished within the last 100
-- ms, whose reply may be on its way. With track_activities off, all statements count as running.
SELECT x.n::bigint AS n
FROM ROWS FROM (unnest(@pids::integer[]), unnest(@texts::text[]), unnest(@ages::float8[])) WITH ORDINALITY AS x(pid, text, age, n)
WHERE EXISTS (
  SELECT FROM pg_stat_activity AS a
  WHERE a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
    AND CASE WHEN x.pid <> 0 THEN a.pid = x.pid
      ELSE left(a.query, length(x.text)) = x.text AND a.query_start >= clock_timestamp() - make_interval(secs => x.age + 1)
        AND (x.age < 5 OR a.query_start <= clock_timestamp() - make_interval(secs => x.age / 2)) END
    AND (a.state = 'disabled' OR a.state_change > clock_timestamp() - interval '100 milliseconds'
      OR a.state <> 'idle' AND a.wait_event_type IS DISTINCT FROM 'Client'));
