package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/internal/load"
	"pawl/test/bench/machine"
)

// Filling the database writes much log at once, which is not to fill the disk.
var consoleSettings = map[string]string{"max_wal_size": "1GB"}

const (
	consoleLoads   = 30 // of each screen
	consoleCallers = 64
	consoleClick   = 2 * time.Second        // between two screens of the person
	settling       = 500 * time.Millisecond // after the person came or went
)

// withConsole measures how long each screen of the console takes beside many orders, of which a tenth wait; and then, in
// turn, the callers alone and with a person who has the overview open and goes through the screens.
func (p *plan) withConsole(ctx context.Context) (err error) {
	d, err := p.filled(ctx, p.console, fillMixedSQL, storedItems)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	r := run{setup: setup{Target: "pawl", Callers: consoleCallers, Items: storedItems}, target: p.built["pawl"], database: d}
	s, err := r.target.start(ctx, d.url, p.folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	search := exec.CommandContext(ctx, r.target.binary, "migrate", "search-keys", "--add", "email", "--database-url", d.url)
	search.Env = machine.Inherited()
	if out, err := search.CombinedOutput(); err != nil {
		return fmt.Errorf("add search key: %w: %s", err, out)
	}
	if s.token, err = r.target.makeToken(ctx, d.url); err != nil {
		return err
	}
	v, err := r.target.visitor(ctx, d, s)
	if err != nil {
		return err
	}
	defer v.client.CloseIdleConnections()
	fmt.Fprintln(os.Stderr, "measuring")
	if err := v.measure(ctx); err != nil {
		return err
	}
	return p.beside(ctx, r, s, v)
}

// beside compares callers with and without a person at the console, in one run.
func (p *plan) beside(ctx context.Context, r run, s *server, v *visitor) (err error) {
	l := startLoad([]*server{s}, r.setup)
	defer l.Wait()
	defer l.Halt()
	if err := pause(ctx, p.window.warmUp); err != nil {
		return err
	}
	measured := map[bool][]result{}
	for round := range p.rounds {
		for _, visited := range inTurn([]bool{false, true}, round) {
			leave := func() {}
			if visited {
				leave = v.visit(ctx)
			}
			var out result
			from, to, err := run{database: r.database, window: window{settling, p.window.length}}.watch(ctx, []*server{s}, l)
			leave()
			if out.fill(l.Outcome(from.at, to.at), from, to); err != nil {
				return err
			}
			measured[visited] = append(measured[visited], out)
			fmt.Fprintf(os.Stderr, "visited %t: %.0f orders/s, CPU %.3f, others %.0f %%\n", visited, out.OrdersPerSec, cpu(out), 100*out.OtherCPU)
		}
	}
	fmt.Printf("\n%d callers with a person at the console, of those without: orders/s %s, CPU %s; a click took %.0f ms (p95)\n", consoleCallers,
		ratio(measured[true], measured[false], ordersPerSec), ratio(measured[true], measured[false], cpu), milliseconds(load.Percentile(slices.Sorted(slices.Values(v.clicks)), 95)))
	return nil
}

func cpu(x result) float64 { return x.ServiceCPU + x.PostgresCPU }

// visitor is a person in a browser who is signed in.
type visitor struct {
	client  *http.Client
	address string
	cookie  *http.Cookie
	screens []screen
	clicks  []time.Duration // how long the screens took that the person opened
}

// screen is a page of the console, of one of several things.
type screen struct {
	name  string
	paths []string
}

var linkOfTerminal = regexp.MustCompile(`http\S+`)

// visitor signs a person in who may do everything.
func (t target) visitor(ctx context.Context, d *database, s *server) (*visitor, error) {
	var link string
	for _, args := range [][]string{
		{"token", "create", "visitor", "--roles", "submit,read,operate,approve,settle,stock,delegate,admin"},
		{"token", "link", "visitor", "--url", "http://" + s.address},
	} {
		cmd := exec.CommandContext(ctx, t.binary, append(args, "--database-url", d.url)...)
		cmd.Env = machine.Inherited()
		said, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("sign in: %w", err)
		}
		link = linkOfTerminal.FindString(string(said))
	}
	v := &visitor{client: &http.Client{Transport: &http.Transport{}}, address: "http://" + s.address}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, link, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Sec-Fetch-Site", "same-origin")
	answer, err := v.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("sign in: %w", err)
	}
	defer answer.Body.Close()
	if len(answer.Cookies()) != 1 {
		return nil, fmt.Errorf("sign in: %s", answer.Status)
	}
	v.cookie = answer.Cookies()[0]
	v.screens, err = d.screens(ctx)
	return v, err
}

// screens are all kinds of pages, each about some of the stored orders.
func (d *database) screens(ctx context.Context) ([]screen, error) {
	search := func(name, query string) (screen, error) { return d.screen(ctx, name, "/console/orders?q=", query) }
	const completed, held = ` FROM orders WHERE ended_as = 'completed' AND order_no % 9973 = 1 LIMIT 100`, ` FROM orders WHERE hold = 'attention' AND order_no % 997 = 0 LIMIT 100`
	var all []screen
	for _, path := range []string{"", "/attention", "/attention?hold=approval", "/orders", "/orders?q=status:open", "/orders?q=hold:retry", "/orders?q=status:failed",
		"/orders?q=status:failed+code:card_declined", "/orders?q=amount:>190", "/orders?q=refunded:yes", "/errors", "/webhooks", "/policies", "/stock", "/books", "/runbook",
		"/bulk", "/bulk?verb=cancel&q=hold:attention+reason:outcome_unknown"} {
		all = append(all, screen{"/console" + path, []string{"/console" + strings.ReplaceAll(path, ">", "%3E")}})
	}
	for _, of := range []struct{ name, before, query string }{
		{"order, completed", "/console/order?id=", "SELECT order_id" + completed}, {"order, held", "/console/order?id=", "SELECT order_id" + held},
		{"refund", "/console/order/refund?id=", "SELECT order_id" + completed}, {"preview of a refund", "/console/order/refund?amount=1&preview=yes&id=", "SELECT order_id" + completed},
		{"preview of a cancellation", "/console/order/cancel?id=", "SELECT order_id" + held}, {"item", "/console/item?item=", "SELECT item" + completed},
	} {
		one, err := d.screen(ctx, of.name, of.before, of.query)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	for _, of := range [][2]string{
		{"search by the beginning of an id", "SELECT left(order_id, 9)" + completed}, {"search by customer", "SELECT customer_id" + completed},
		{"search by reference", "SELECT 'ch_' || order_no" + completed}, {"search by e-mail", "SELECT metadata ->> 'email'" + completed},
		{"search by nothing known", "SELECT 'x' || order_no" + completed}, {"search by a part of an id", "SELECT substr(order_id, 12, 7)" + completed},
		{"search by an amount", "SELECT amount::text" + completed}, {"search by two words", "SELECT customer_id || ' ' || item" + completed},
		{"nothing by five conditions", "SELECT format('customer:%s item:%s status:failed currency:USD from:30d', customer_id, item)" + completed},
		{"orders of a customer", "SELECT 'customer:' || customer_id" + completed},
		{"orders of an item", "SELECT 'item:' || item" + completed}, {"orders of a day in EUR", "SELECT format('from:%1$s to:%1$s currency:EUR', created_at::date)" + completed},
	} {
		one, err := search(of[0], of[1])
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func (d *database) screen(ctx context.Context, name, before, query string) (screen, error) {
	rows, _ := d.conn.Query(ctx, query) // CollectRows returns its error
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(values) == 0 {
		return screen{}, fmt.Errorf("find examples for %s: %w", name, err)
	}
	s := screen{name: name}
	for _, value := range values {
		s.paths = append(s.paths, before+url.QueryEscape(value))
	}
	return s, nil
}

// get loads a page as a browser does.
func (v *visitor) get(ctx context.Context, path string) (body []byte, took time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, v.address+path, http.NoBody)
	if err != nil {
		return nil, 0, err
	}
	request.AddCookie(v.cookie)
	began := time.Now()
	answer, err := v.client.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("%s: %s", path, answer.Status))
	}
	return body, time.Since(began), err
}

// measure loads every screen many times, in turn, and prints how long they took.
func (v *visitor) measure(ctx context.Context) error {
	took := make([][]time.Duration, len(v.screens))
	for n := range consoleLoads {
		for i, s := range v.screens {
			_, t, err := v.get(ctx, s.paths[n%len(s.paths)])
			if err != nil {
				return err
			}
			took[i] = append(took[i], t)
		}
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', tabwriter.AlignRight|tabwriter.Debug)
	fmt.Fprintln(out, "screen\tp50 ms\tp95 ms\tmax ms\t")
	for i, s := range v.screens {
		slices.Sort(took[i])
		fmt.Fprintf(out, "%s\t%.1f\t%.1f\t%.1f\t\n", s.name, milliseconds(load.Percentile(took[i], 50)), milliseconds(load.Percentile(took[i], 95)), milliseconds(load.Percentile(took[i], 100)))
	}
	return out.Flush()
}

// visit has the overview open and clicks through the screens, until leave is called.
func (v *visitor) visit(ctx context.Context) (leave func()) {
	here, stop := context.WithCancel(ctx)
	var visiting sync.WaitGroup
	visiting.Go(func() { v.follow(here) })
	visiting.Go(func() { v.click(here) })
	return func() {
		stop()
		visiting.Wait()
	}
}

var streamOfPage = regexp.MustCompile(`data-live="([^"]+)"`)

// follow has the overview open: it is loaded again whenever its stream says so.
func (v *visitor) follow(ctx context.Context) {
	page, _, err := v.get(ctx, "/console")
	if err != nil {
		return // the person has left, or sees the error
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, v.address+html.UnescapeString(string(streamOfPage.FindSubmatch(page)[1])), http.NoBody)
	if err != nil {
		return
	}
	request.AddCookie(v.cookie)
	stream, err := v.client.Do(request)
	if err != nil {
		return
	}
	defer stream.Body.Close()
	for lines := bufio.NewScanner(stream.Body); lines.Scan(); {
		if lines.Text() == "event: poke" || lines.Text() == "event: again" {
			_, _, _ = v.get(ctx, "/console") // how long it takes is measured elsewhere
		}
	}
}

// click opens one screen after the other.
func (v *visitor) click(ctx context.Context) {
	for next := time.NewTicker(consoleClick); ; {
		select {
		case <-ctx.Done():
			next.Stop()
			return
		case <-next.C:
		}
		s := v.screens[rand.IntN(len(v.screens))]
		if _, took, err := v.get(ctx, s.paths[rand.IntN(len(s.paths))]); err == nil {
			v.clicks = append(v.clicks, took)
		}
	}
}

// fillMixedSQL stores orders of 90 days that end with the $2 missing ones: of a hundred, ten wait, two failed, one was
// canceled; a twentieth of the completed ones were refunded in part.
const fillMixedSQL = `
WITH stored AS (
  INSERT INTO orders (order_id, status, ended_as, fence, seq, created_at, finished_at, amount, currency, item, customer_id, metadata, submitted_by,
    hold, hold_reason, due_at, start_at, approval_until, calls, failure_step, failure_code, failure_detail, charge_operations)
  SELECT 'shop-' || left(md5(random()::text), 16), CASE WHEN s.hold IN ('approval', 'scheduled') THEN 'pending' WHEN s.hold IS NOT NULL THEN 'charging' ELSE s.ended END,
    CASE WHEN s.hold IS NULL THEN s.ended END, 1, CASE WHEN s.ended = 'completed' AND s.hold IS NULL THEN 4 ELSE 2 END, s.at,
    CASE WHEN s.hold IS NULL THEN s.at + interval '1 s' END, round((random() * 200 + 1)::numeric, 2), (ARRAY['USD', 'USD', 'EUR', 'GBP'])[1 + s.n % 4],
    'item-' || lpad((floor(random() * $3::integer))::text, 5, '0'), 'cus_' || floor(random() * 100000),
    jsonb_build_object('email', 'c' || floor(random() * 100000) || '@example.com', 'cart', s.n::text), 'token:bench',
    s.hold, CASE s.hold WHEN 'retry' THEN (ARRAY['breaker_open', 'timeout: no answer in time'])[1 + s.n / 100 % 2] WHEN 'approval' THEN 'amount over 500 USD'
      WHEN 'attention' THEN (ARRAY['retries_exhausted: no success in 1h30m0s, last timeout', 'outcome_unknown: the key is forgotten', 'retry_after: 999999 s'])[1 + s.n / 100 % 3] END,
    CASE WHEN s.hold IN ('retry', 'callback', 'scheduled') THEN now() + interval '30 days' END, CASE WHEN s.hold = 'scheduled' THEN now() + interval '30 days' END,
    CASE WHEN s.hold = 'approval' THEN '9999-01-01'::timestamptz END, CASE WHEN s.hold IN ('retry', 'attention') THEN 3 END,
    CASE WHEN s.hold IS NULL AND s.ended = 'failed' THEN 'charge' END,
    CASE WHEN s.hold IS NULL AND s.ended = 'failed' THEN (ARRAY['card_declined', 'stolen_card', 'expired_card'])[1 + s.n / 100 % 3] END,
    CASE WHEN s.hold IS NULL AND s.ended = 'failed' THEN 'the bank says no' END, CASE WHEN s.hold IS NULL AND s.ended = 'completed' AND s.n % 20 = 1 THEN 1 END
  FROM (SELECT n, CASE WHEN n % 100 IN (11, 12) THEN 'failed' WHEN n % 100 = 13 THEN 'canceled' ELSE 'completed' END AS ended,
      CASE WHEN n % 10 = 0 THEN (ARRAY['retry', 'retry', 'retry', 'retry', 'attention', 'attention', 'approval', 'callback', 'scheduled', 'paused'])[1 + n / 10 % 10] END AS hold,
      now() - make_interval(secs => ($2::bigint - n) * 7.776) AS at
    FROM generate_series(1, $1::bigint) AS n) AS s
  RETURNING order_no, order_id, created_at, item, quantity, amount, currency, ended_as, hold, calls, charge_operations
), charged AS (
  INSERT INTO charges (order_no, generation, currency, amount, reference) SELECT order_no, 0, currency, amount, 'ch_' || order_no FROM stored WHERE ended_as = 'completed'
), reserved AS (
  INSERT INTO reservations (order_no, generation, item, quantity) SELECT order_no, 0, item, quantity FROM stored WHERE ended_as = 'completed'
), refunded AS (
  INSERT INTO charge_operations (order_no, generation, currency, amount, number, created_at, finished_at, reference, reason, request_id)
  SELECT order_no, 0, currency, 1, 1, created_at, created_at, 're_' || order_no, 'one is broken', 'ticket-' || order_no FROM stored WHERE charge_operations = 1
), called AS (
  INSERT INTO step_calls (order_no, call, fence, generation, step, operation, started_at, finished_at, outcome, code)
  SELECT order_no, c, 1, 0, 'charge', 'do', created_at, created_at, 'unknown', 'timeout' FROM stored, generate_series(1, 3) AS c WHERE calls = 3
)
INSERT INTO transitions (order_no, seq, from_status, to_status, fence, at, id_hash, previous_no, verb)
SELECT s.order_no, m.seq, m.from_status, m.to_status, 1, s.created_at,
  CASE WHEN m.seq = 1 THEN hashtext(s.order_id) END, CASE WHEN m.seq = 1 AND s.order_no > 1 THEN s.order_no - 1 END, CASE WHEN m.seq = 2 THEN s.hold END
FROM stored AS s JOIN (VALUES
  ('completed', 1, 'pending', 'charging'), ('completed', 2, 'charging', 'reserving'), ('completed', 3, 'reserving', 'confirming'), ('completed', 4, 'confirming', 'completed'),
  ('failed', 1, 'pending', 'charging'), ('failed', 2, 'charging', 'failed'), ('canceled', 1, 'pending', 'charging'), ('canceled', 2, 'charging', 'canceled'),
  ('held', 1, 'pending', 'charging'), ('held', 2, 'charging', 'charging')
) AS m(of, seq, from_status, to_status) ON m.of = coalesce(s.ended_as, 'held')`
