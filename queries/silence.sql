-- Which statements the server is still at work on.

-- name: StatementsRunning :many
-- Asked on a connection of its own about statements that have had no answer for a while. Of a direct connection
-- the server process is known (pid); behind a pooler it is found by the beginning of its statement and by its
-- age, of which it may have spent a part in the pooler's queue. Not running is one that no process works on: the request or the answer was lost on the way. A process
-- that waits for a lock, a disk or a standby (state active, and not waiting for its client) is running, and so is
-- one that finished a moment ago, whose answer is on its way. With track_activities off all count as running.
SELECT x.n::bigint AS n
FROM ROWS FROM (unnest(@pids::integer[]), unnest(@texts::text[]), unnest(@ages::float8[])) WITH ORDINALITY AS x(pid, text, age, n)
WHERE EXISTS (
  SELECT FROM pg_stat_activity AS a
  WHERE a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
    AND CASE WHEN x.pid <> 0 THEN a.pid = x.pid
      ELSE left(a.query, length(x.text)) = x.text AND a.query_start <= clock_timestamp() - make_interval(secs => x.age / 2) END
    AND (a.state = 'disabled' OR a.state_change > clock_timestamp() - interval '100 milliseconds'
      OR a.state <> 'idle' AND a.wait_event_type IS DISTINCT FROM 'Client'));
