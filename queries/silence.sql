-- Which statements the server is still at work on.

-- name: StatementsRunning :many
-- Asked on a connection of its own about statements that have had no answer for a while. Of a direct connection
-- the server process is known (pid). Behind a pooler it is one of those with the same beginning of the statement that
-- began after it was sent: it may have spent a part of its age in the pooler's queue. After five seconds the
-- short ones of others are no longer taken for it. Not running is one that no process works on: the request or the answer was lost on the way. A process
-- that waits for a lock, a disk or a standby (state active, and not waiting for its client) is running, and so is
-- one that finished a moment ago, whose answer is on its way. With track_activities off all count as running.
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
