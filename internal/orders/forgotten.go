package orders

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"

	"pawl/db"
)

// Forgotten is what is left of an order that was forgotten. It is an ErrForgotten.
type Forgotten struct {
	db.OrdersForgottenRow

	Own bool // whoever asks has submitted it, or it had no submitter; only set for a request to process it
}

func (f *Forgotten) Error() string {
	return fmt.Sprintf("order %q of %s was %s, and its details were removed since", f.OrderID, f.PlacedOn, f.Status)
}

// Is reports whether target is ErrForgotten.
func (f *Forgotten) Is(target error) bool { return target == ErrForgotten }

// Forgotten returns those of some orders that were forgotten, and are not stored. The error is the database's own.
func (r *Reader) Forgotten(ctx context.Context, orderIDs []string) ([]db.OrdersForgottenRow, error) {
	if err := r.LearnForgotten(ctx); err != nil {
		return nil, err
	}
	s := r.Suspects(orderIDs)
	if len(s.BatchNos) == 0 {
		return nil, nil
	}
	return r.query.OrdersForgotten(ctx, db.OrdersForgottenParams{OrderIds: orderIDs, BatchNos: s.BatchNos})
}

// Suspects are those of some ids whose orders may have been forgotten. A statement that finds Known to be the id of the
// newest batch needs to look for these hashes only, in these batches only.
type Suspects struct {
	Known    uuid.UUID // zero: no order was forgotten
	Hashes   []uuid.UUID
	BatchNos []int64
}

// Suspects compares ids with what LearnForgotten has learned. It reads nothing.
func (r *Reader) Suspects(orderIDs []string) (s Suspects) {
	f := &r.forgotten
	f.mu.RLock()
	defer f.mu.RUnlock()
	if s.Known = f.newest.ID; f.buckets == nil {
		return s
	}
	for _, id := range orderIDs {
		sum := sha256.Sum256([]byte(id))
		batches := len(s.BatchNos)
		if s.BatchNos = f.batchesOf(sum[:], s.BatchNos); len(s.BatchNos) > batches {
			s.Hashes = append(s.Hashes, uuid.UUID(sum[:16]))
		}
	}
	return s
}

// batchesMost is how many batches are read at a time.
const batchesMost = 200

// LearnForgotten reads the batches of forgotten orders that are not known yet. The error is the database's own.
func (r *Reader) LearnForgotten(ctx context.Context) error {
	for {
		p := db.ForgottenBatchesAfterParams{Most: batchesMost}
		p.BatchNo, p.Known = r.forgotten.known()
		rows, err := r.query.ForgottenBatchesAfter(ctx, p)
		for i := range rows {
			r.forgotten.add(&rows[i])
		}
		if err != nil || len(rows) < batchesMost {
			return err
		}
	}
}

// forgottenIDs is what a process knows of forgotten orders: the first four bytes of the hash of each id, and its batch.
// So nearly every other id is known not to be among them, and the rest are looked for in one batch. It may know too
// much: what it finds, a statement must find, too.
type forgottenIDs struct {
	mu      sync.RWMutex
	newest  db.ForgottenBatchesAfterRow // without the hashes
	buckets [][]uint64                  // by the first bits of the hash, sorted: its first four bytes, and the batch
}

// bucketBits is the logarithm of the number of buckets: with fifty million orders, one has six kilobytes to move for each
// order that is added.
const bucketBits = 16

func (f *forgottenIDs) known() (batchNo int64, id uuid.UUID) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.newest.BatchNo, f.newest.ID
}

// add adds a batch, after all earlier ones. Adding it again changes nothing.
func (f *forgottenIDs) add(batch *db.ForgottenBatchesAfterRow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.buckets == nil {
		f.buckets = make([][]uint64, 1<<bucketBits)
	}
	for _, hash := range batch.IDHashes {
		prefix := binary.BigEndian.Uint32(hash[:])
		bucket := &f.buckets[prefix>>(32-bucketBits)]
		entry := uint64(prefix)<<32 | uint64(uint32(batch.BatchNo)) //nolint:gosec // four billion batches
		if at, found := slices.BinarySearch(*bucket, entry); !found {
			*bucket = slices.Insert(*bucket, at, entry)
		}
	}
	f.newest = db.ForgottenBatchesAfterRow{BatchNo: batch.BatchNo, ID: batch.ID}
}

// batchesOf appends the batches that may have a hash.
func (f *forgottenIDs) batchesOf(hash []byte, to []int64) []int64 {
	prefix := binary.BigEndian.Uint32(hash)
	bucket := f.buckets[prefix>>(32-bucketBits)]
	at, _ := slices.BinarySearch(bucket, uint64(prefix)<<32)
	for _, entry := range bucket[at:] {
		if uint32(entry>>32) != prefix {
			break
		}
		to = append(to, int64(uint32(entry))) //nolint:gosec // its lower half
	}
	return to
}
