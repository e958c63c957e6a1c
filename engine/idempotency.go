package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"strconv"
	"time"

	"pawl/db"
	"pawl/orders"
)

// IdempotencyKey is the name that a principal gave to a request for an order, so that it stands for that request alone.
type IdempotencyKey struct {
	Principal   string // others may use the same key
	Key         string
	fingerprint []byte
}

// SetKey gives the request a key. It is to be called when all else of the request has been read.
func (in *Input) SetKey(principal, key string) {
	in.Key = &IdempotencyKey{Principal: principal, Key: key, fingerprint: fingerprint(
		in.OrderID, in.Amount.Trim(0).String(), in.Currency, in.Item, strconv.Itoa(int(in.Quantity)), string(in.Metadata),
		in.CustomerID, in.PaymentMethod, in.ConcurrencyKey, shown(in.StartAt), shown(in.CompleteBy), in.ReservationTTL.String())}
}

// keyedMembers are the members whose values SetKey takes the fingerprint of.
var keyedMembers = []string{"orderId", "amount", "currency", "item", "quantity", "metadata",
	"customerId", "paymentMethod", "concurrencyKey", "startAt", "completeBy", "reservationTtl"}

func shown(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// fingerprint is a hash of the parts of a request. No two lists of parts have the same one. Behind it are two bytes for each
// part, which tell what differs.
func fingerprint(parts ...string) []byte {
	var text []byte
	for _, part := range parts {
		text = append(binary.AppendUvarint(text, uint64(len(part))), part...)
	}
	sum := sha256.Sum256(text)
	hashes := sum[:]
	for _, part := range parts {
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(part))
		hashes = binary.BigEndian.AppendUint16(hashes, uint16(hash.Sum32()))
	}
	return hashes
}

// reused says in which members two requests with one key differ, by their fingerprints. Their parts have these names.
func reused(first, second []byte, names []string) error {
	refusal := &orders.KeyReused{}
	for i, name := range names {
		at := sha256.Size + 2*i
		switch {
		case at+2 > min(len(first), len(second)), bytes.Equal(first[at:at+2], second[at:at+2]):
		case name == verbPart:
			refusal.Verb = true
		default:
			refusal.Members = append(refusal.Members, name)
		}
	}
	return refusal
}

// stands reports whether it is the same key for the same request.
func (k *IdempotencyKey) stands(other *IdempotencyKey) bool {
	return other != nil && k.Key == other.Key && k.Principal == other.Principal && bytes.Equal(k.fingerprint, other.fingerprint)
}

// keyKeepTries bounds how often it is tried to keep a key that somebody else keeps at the same moment.
const keyKeepTries = 20

// keepKey sees to it that the key of a request about a stored order stands for that request, and for no other one. The
// key of the request that made the order was committed with it. Errors: orders.ErrKeyReused, orders.ErrUnavailable.
func (e *Engine) keepKey(ctx context.Context, r *run, in *Input) error {
	if in.Key == nil || in.Key.stands(r.kept.Load()) {
		return nil
	}
	ctx, cancel := answering(ctx)
	defer cancel()
	p := db.IdempotencyKeyKeepParams{Key: in.Key.Key, Principal: in.Key.Principal, Fingerprint: in.Key.fingerprint}
	for try := range keyKeepTries {
		kept, err := detached(ctx, e, func(ctx context.Context) ([][]byte, error) { return e.query.IdempotencyKeyKeep(ctx, p) })
		switch fault := db.FaultOf(err); {
		case fault == db.None && len(kept) == 1 && !bytes.Equal(kept[0], in.Key.fingerprint):
			return reused(kept[0], in.Key.fingerprint, keyedMembers)
		case fault == db.None && len(kept) == 1:
			r.kept.Store(in.Key)
			return nil
		case errors.Is(err, orders.ErrUnavailable), fault == db.Bad:
			return orders.Unavailable("keep idempotency key", err)
		}
		e.backOff(try)
	}
	return orders.ErrUnavailable
}

// keyTaken ends a run that can't be admitted because of the key of the request that made it. Other callers of the run are
// not concerned: see anew.
type keyTaken struct {
	key    *IdempotencyKey
	answer error // of the request with that key
}

func (k *keyTaken) Error() string { return k.answer.Error() }

// answerTo is what a caller of the run is told.
func (k *keyTaken) answerTo(in *Input) error {
	switch {
	case in == nil: // it asks for an order that was there a moment ago
		return orders.ErrNotFound
	case in.Key != nil && in.Key.stands(k.key):
		return k.answer
	}
	return k
}

// anew repeats a request whose run has ended because of somebody else's key.
func anew(ctx context.Context, do func() (orders.Order, error)) (orders.Order, error) {
	for {
		order, err := do()
		if _, taken := errors.AsType[*keyTaken](err); !taken {
			return order, err
		}
		if ctx.Err() != nil {
			return orders.Order{}, ended(ctx)
		}
	}
}

// absentKeyed goes on with orders that are not stored, and whose requests have a key. If the key is there, it stands for
// another request; or for this one, and the order was removed since: then it is not done a second time.
func (e *Engine) absentKeyed(runs []*run) {
	if len(runs) == 0 {
		return
	}
	keys := make([]string, len(runs))
	for i, r := range runs {
		keys[i] = r.input.Key.Key
	}
	rows, err := untilKnown(e, "read idempotency keys", func() ([]db.IdempotencyKeysOfRow, error) { return e.query.IdempotencyKeysOf(e.ctx, keys) })
	if e.standsDown("read idempotency keys", err, runs) || e.ctx.Err() != nil {
		return
	}
	var again, seen []*run
	for _, r := range runs {
		switch stored := fingerprintOf(r.input.Key, rows); {
		case stored == nil:
			again = append(again, r)
		case bytes.Equal(stored, r.input.Key.fingerprint):
			seen = append(seen, r)
		default:
			e.finish(&keyTaken{r.input.Key, reused(stored, r.input.Key.fingerprint, keyedMembers)}, r)
		}
	}
	e.admitAgain(again)
	e.readSeen(seen)
}

// fingerprintOf is what a key stands for, nil: nothing yet.
func fingerprintOf(key *IdempotencyKey, rows []db.IdempotencyKeysOfRow) []byte {
	for _, row := range rows {
		if row.Key == key.Key && row.Principal == key.Principal {
			return row.Fingerprint
		}
	}
	return nil
}

// readSeen reads the orders of requests whose keys are there: they may have been stored just now, each with its key.
func (e *Engine) readSeen(runs []*run) {
	rows, err := e.readByID(runs)
	if e.standsDown("read orders", err, runs) || e.ctx.Err() != nil {
		return
	}
	stored := map[string]bool{}
	for i := range rows {
		stored[rows[i].OrderID] = true
	}
	present, removed := divide(runs, func(r *run) bool { return stored[r.orderID] })
	for _, r := range removed {
		e.finish(&keyTaken{r.input.Key, orders.ErrNotFound}, r)
	}
	e.settle(present, rows)
}

// purgeKeys removes some of the keys that are older than 30 days, and reports whether there may be more.
func (e *Engine) purgeKeys() (more bool) {
	n, err := e.query.IdempotencyKeysPurge(e.ctx, purgedMost)
	if err != nil && e.ctx.Err() == nil {
		e.log.Warn("purge idempotency keys", "error", err)
	}
	return err == nil && n == purgedMost
}
