package main

import (
	"context"
	"fmt"
	"time"
)

// aftermath is what became of the orders that were under way when the process with a peer's code was killed.
type aftermath struct {
	peer               string
	underWay           int           // that were not answered
	done               int           // completed already, at the kill
	finished, notBegun int           // later by the peer itself, once its code ran again; without a trace
	took               time.Duration // from the kill until the last one was finished
	left               int           // begun, and not finished
	completed          int           // after the callers had sent all of them again
	ranAgain           int           // effects that were executed and committed more than once
	lost               int           // orders that were answered, and are not completed
}

const (
	killCallers = 64
	killAfter   = 3 * time.Second
)

// attempts records each insertion into the tables of effects, also one that ON CONFLICT ignores, if it is committed.
const attempts = `
CREATE TABLE public.attempts (step text, orders text);
CREATE FUNCTION public.attempt() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO public.attempts VALUES (TG_TABLE_NAME, coalesce(to_jsonb(NEW) ->> 'order_id', to_jsonb(NEW) ->> 'order_no'));
  RETURN NEW;
END $$;
DO $$ DECLARE t text; BEGIN
  FOREACH t IN ARRAY ARRAY['charges', 'reservations', 'confirmations'] LOOP
    IF to_regclass(t) IS NOT NULL THEN
      EXECUTE format('CREATE TRIGGER attempt BEFORE INSERT ON %I FOR EACH ROW EXECUTE FUNCTION public.attempt()', t);
    END IF;
  END LOOP;
END $$`

// kill kills the process with the code of a running peer while it has orders under way, starts it again, waits, and then
// lets the callers send again what was not answered.
func (s *site) kill(ctx context.Context) (out aftermath, err error) {
	out.peer = s.name
	if _, err := s.conn.PgConn().Exec(ctx, attempts).ReadAll(); err != nil {
		return out, fmt.Errorf("record attempts: %w", err)
	}
	l := s.load(killCallers)
	if err := pause(ctx, killAfter); err != nil {
		return out, err
	}
	l.Halt()
	s.codeProcess.Kill()
	answered, ids := l.orders(true), l.orders(false)
	killed := time.Now()
	out.underWay = len(ids)
	if out.done, _, err = s.countOrders(ctx, ids); err != nil {
		return out, err
	}
	if err := s.startCode(ctx); err != nil {
		return out, err
	}
	if err := s.awaitOrders(ctx, ids, killed, &out); err != nil {
		return out, err
	}
	l.Wait()
	if err := s.again(ids); err != nil {
		return out, fmt.Errorf("send again: %w", err)
	}
	if out.completed, _, err = s.countOrders(ctx, ids); err != nil {
		return out, err
	}
	err = s.conn.QueryRow(ctx, `SELECT (SELECT coalesce(sum(times - 1), 0) FROM (SELECT count(*) AS times FROM attempts GROUP BY step, orders) AS a),
		(SELECT count(*) FROM unnest($1::text[]) AS u(id) WHERE id NOT IN (`+s.completed()+`))`, answered).Scan(&out.ranAgain, &out.lost)
	if err != nil {
		return out, fmt.Errorf("count effects: %w", err)
	}
	return out, nil
}

// awaitOrders waits until the peer has finished all orders, or for its patience.
func (s *site) awaitOrders(ctx context.Context, ids []string, killed time.Time, out *aftermath) error {
	for {
		completed, begun, err := s.countOrders(ctx, ids)
		if err != nil {
			return err
		}
		if completed-out.done > out.finished {
			out.finished, out.took = completed-out.done, time.Since(killed)
		}
		out.left, out.notBegun = begun-completed, len(ids)-begun
		if completed == len(ids) || time.Since(killed) > s.patience {
			return nil
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

func (s *site) countOrders(ctx context.Context, ids []string) (completed, begun int, err error) {
	err = s.conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM (`+s.completed()+`) AS c WHERE order_id = ANY($1)),
		(SELECT count(*) FROM (`+s.begun()+`) AS b WHERE order_id = ANY($1))`, ids).Scan(&completed, &begun)
	if err != nil {
		return 0, 0, fmt.Errorf("count orders: %w", err)
	}
	return completed, begun, nil
}
