package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
)

// remote is the same service where a provider does each step. Each call is committed before it is made, and each answer
// after it; the commit of an answer also begins the next call. A failed call is repeated with the same key until there
// is an answer. Another process takes over the orders of a dead one.
//
// It lacks deadlines, callbacks, look-ups, limits, holds for a person, a history of failed calls, and leases of orders:
// each process only has a heartbeat.
type remote struct {
	server
	provider string // the base URL
	client   *http.Client
	process  int64
}

// move is the result of a call's answer.
type move struct {
	step, undo    string // undo is the end of the URL
	done, refused string // the next status
	effect        string // SQL, of ($1 order, $2 reference); of an undo, of ($1 order)
}

var moves = map[string]move{
	"charging": {step: "charge", done: "reserving", refused: "failed",
		effect: `INSERT INTO charges (order_no, amount, reference) SELECT order_no, amount, $2 FROM orders WHERE order_no = $1`},
	"reserving": {step: "reserve", done: "confirming", refused: "refunding",
		effect: `INSERT INTO reservations (order_no, item, quantity, reference) SELECT order_no, item, quantity, $2 FROM orders WHERE order_no = $1`},
	"confirming": {step: "confirm", done: "completed", refused: "releasing",
		effect: `INSERT INTO confirmations (order_no, reference) VALUES ($1, $2)`},
	"releasing": {step: "reserve", undo: "/undo", done: "refunding",
		effect: `UPDATE reservations SET released_at = now() WHERE order_no = $1`},
	"refunding": {step: "charge", undo: "/undo", done: "failed",
		effect: `UPDATE charges SET refunded_at = now() WHERE order_no = $1`},
}

func newRemote(ctx context.Context, s server, provider string) (*remote, error) {
	r := &remote{server: s, provider: provider, client: &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 1000},
	}}
	err := s.pool.QueryRow(ctx, `INSERT INTO processes DEFAULT VALUES RETURNING process`).Scan(&r.process)
	if err != nil {
		return nil, fmt.Errorf("register process: %w", err)
	}
	go r.watch(ctx)
	return r, nil
}

// run admits the order, unless it exists, and drives it to its end, even if the caller leaves. If another request
// drives it, run waits for that.
func (r *remote) run(ctx context.Context, in input) (status string, err error) {
	o := order{id: in.OrderID, item: in.Item, quantity: 1, amount: in.Amount.String()}
	if err := r.admit(ctx, in, &o); err != nil {
		return "", fmt.Errorf("admit order: %w", err)
	}
	if o.status != "" { // it is new
		return r.drive(context.WithoutCancel(ctx), o)
	}
	for {
		err := r.pool.QueryRow(ctx, `SELECT status FROM orders WHERE order_id = $1`, in.OrderID).Scan(&status)
		if err != nil || final(status) {
			return status, err
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return "", err
		}
	}
}

func final(status string) bool { return status == "completed" || status == "failed" }

// admit stores the order unless it exists, with its first call. o gets its number and status only if it is new.
func (r *remote) admit(ctx context.Context, in input, o *order) error {
	return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `INSERT INTO orders (order_id, status, item, amount, process) VALUES ($1, 'charging', $2, $3, $4)
			ON CONFLICT (order_id) DO NOTHING RETURNING order_no, status`, o.id, o.item, o.amount, r.process).Scan(&o.no, &o.status)
		if errors.Is(err, pgx.ErrNoRows) {
			return compare(ctx, tx, in)
		}
		if err != nil {
			return err
		}
		return r.write(ctx, tx, history(o.no, 1, "pending", o.status), begin(*o, 1))
	})
}

// drive calls the provider and commits its answers, until the order has ended.
func (r *remote) drive(ctx context.Context, o order) (status string, err error) {
	for pause := 100 * time.Millisecond; !final(o.status); {
		done, reference, err := r.call(ctx, o)
		if err == nil {
			err = r.commit(ctx, &o, done, reference)
		}
		if errors.Is(err, errTaken) {
			return "", err
		}
		if err != nil { // the outcome is unknown: repeat with the same key
			log.Print(err)
			_ = sleep(ctx, pause/2+rand.N(pause/2))
			pause = min(2*pause, 30*time.Second)
			continue
		}
		pause = 100 * time.Millisecond
	}
	return o.status, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// call makes the call of the order's status. After an error, its outcome is unknown.
func (r *remote) call(ctx context.Context, o order) (done bool, reference string, err error) {
	m, fields := moves[o.status], map[string]any{}
	fields["orderId"], fields["step"], fields["generation"] = o.id, m.step, 0
	fields["amount"], fields["currency"], fields["item"], fields["quantity"] = o.amount, "USD", o.item, o.quantity
	k := key(o.id, m.step, "")
	if fields["operation"] = "do"; m.undo != "" {
		fields["operation"], fields["undoKey"] = "undo", k
		k = key(o.id, m.step, m.undo)
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return false, "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.provider+"/"+m.step+m.undo, bytes.NewReader(body))
	if err != nil {
		return false, "", err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", k)
	response, err := r.client.Do(request)
	if err != nil {
		return false, "", fmt.Errorf("call provider: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return false, "", fmt.Errorf("read answer: %w", err)
	}
	var answer struct{ Reference string }
	switch {
	case response.StatusCode == http.StatusPaymentRequired && m.undo == "":
		return false, "", nil
	case response.StatusCode != http.StatusOK:
		return false, "", fmt.Errorf("call provider: %s", response.Status)
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return false, "", fmt.Errorf("read answer: %w", err)
	}
	return true, answer.Reference, nil
}

func key(parts ...string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts))
	return hex.EncodeToString(sum[:])
}

var errTaken = errors.New("another process has taken the order over")

// commit moves the order by the answer of its call, and begins the next call.
func (r *remote) commit(ctx context.Context, o *order, done bool, reference string) error {
	m := moves[o.status]
	next := m.done
	if !done {
		next = m.refused
	}
	err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		var status string
		var process int64
		var seq int
		err := tx.QueryRow(ctx, `SELECT status, process, (SELECT max(seq) FROM transitions AS t WHERE t.order_no = o.order_no)
			FROM orders AS o WHERE order_no = $1 FOR UPDATE`, o.no).Scan(&status, &process, &seq)
		if err != nil {
			return err
		}
		if process != r.process {
			return errTaken
		}
		if status != o.status { // an earlier commit succeeded, and its answer was lost
			next = status
			return nil
		}
		writes := []write{update(*o, next), history(o.no, seq+1, o.status, next), {
			sql:  `UPDATE calls SET finished_at = now(), done = $3, reference = $4 WHERE order_no = $1 AND call = $2`,
			args: []any{o.no, seq, done, reference}}}
		switch {
		case m.undo != "":
			writes = append(writes, write{sql: m.effect, args: []any{o.no}})
		case done:
			writes = append(writes, write{sql: m.effect, args: []any{o.no, reference}})
		}
		if !final(next) {
			writes = append(writes, begin(order{no: o.no, status: next}, seq+1))
		}
		return r.write(ctx, tx, writes...)
	})
	if err == nil {
		o.status = next
	}
	return err
}

// begin records that the call of the order's status is about to be made.
func begin(o order, call int) write {
	m := moves[o.status]
	return write{sql: `INSERT INTO calls (order_no, call, step) VALUES ($1, $2, $3)`, args: []any{o.no, call, m.step + m.undo}}
}

// watch sends a heartbeat every second, and takes over the orders of processes without one.
func (r *remote) watch(ctx context.Context) {
	for range time.Tick(time.Second) {
		alive, err := r.pool.Exec(ctx, `UPDATE processes SET seen_at = now() WHERE process = $1`, r.process)
		if err != nil {
			log.Print(err)
			continue
		}
		if alive.RowsAffected() == 0 {
			log.Fatal(errTaken)
		}
		left, err := r.takeOver(ctx)
		if err != nil {
			log.Print(err)
		}
		for _, o := range left {
			go func() { _, _ = r.drive(ctx, o) }() // drive logs errors
		}
	}
}

// takeOver returns the orders that a dead process has left.
func (r *remote) takeOver(ctx context.Context) (left []order, err error) {
	rows, err := r.pool.Query(ctx, `
		WITH dead AS (DELETE FROM processes WHERE seen_at < now() - interval '15 s' RETURNING process)
		UPDATE orders AS o SET process = $1 FROM dead WHERE o.process = dead.process AND o.status NOT IN ('completed', 'failed')
		RETURNING o.order_no, o.order_id, o.status, o.item, o.quantity, o.amount::text`, r.process)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (o order, err error) {
		err = row.Scan(&o.no, &o.id, &o.status, &o.item, &o.quantity, &o.amount)
		return o, err
	})
}
