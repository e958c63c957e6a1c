package provider_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"pawl/fsm"
	"pawl/internal/provider"
	"pawl/test/assert"
)

var installation = uuid.MustParse("0f6c1f1e-6f0a-4d2a-9a53-0d4f0f1c2b3a")

// The keys were computed by another program. One that changes charges orders twice that
// were under way when the service was replaced.
func TestKeyStaysWhatItIs(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		orderID    string
		of         fsm.Step
		operation  provider.Operation
		generation int32
		refundID   string
		key        string
	}{
		{"order-123", fsm.Charge, provider.Do, 0, "", "pawl-bvpspa7o6vhxeyazusiwmlxmyuav4h3hf2yg7n3grfhq2jq5vqda"},
		{"order-123", fsm.Charge, provider.Undo, 0, "", "pawl-lj6jqn7h4d3ekhwdy7derkoaprkowjy5j4wvduhaeb3n3xy3rhcq"},
		{" ordre \U0001f600", fsm.Reserve, provider.Do, 7, "", "pawl-hmhib3p464dfmmcijspc7c7sd6in6kytfsjpjl5kv4ytf6d7bzia"},
		{"order-123", fsm.Charge, provider.Refund, 0, "ticket-1", "pawl-3htc5do4guasx4k2xhbqra5h6726ejqdleo4g3vjzexr7isf66ja"},
	} {
		c := provider.Call{Installation: installation, OrderID: v.orderID, Step: v.of, Generation: v.generation, OperationKind: provider.Refund, OperationID: v.refundID}
		c.Fence, c.Number, c.Reference = rand.Int64(), rand.Int32(), "ch_1"
		assert.Equal(t, c.Key(v.operation), v.key, v.orderID, v.of, v.operation, v.generation, "has key")
	}
}

func TestKeysAreDistinctAndFitForAnyProvider(t *testing.T) {
	t.Parallel()
	ids := []string{"", " ", "x", " x", "x ", "x\u00a0", "\u00e9", "e\u0301", "xcharge", "charge", "do", "\x00", strings.Repeat("\U0001f600", 255)}
	for range 300 { // ids made of the parts of others
		ids = append(ids, ids[rand.IntN(13)]+ids[rand.IntN(13)]+fmt.Sprint(rand.IntN(3)))
	}
	fit := regexp.MustCompile(`^pawl-[a-z2-7]{52}$`)
	seen := map[string]string{}
	for _, place := range []uuid.UUID{installation, uuid.New(), {}} {
		for _, id := range ids {
			for _, of := range append(fsm.Steps(), "") {
				for _, op := range []provider.Operation{provider.Do, provider.Undo, "create", "confirm", "capture", "cancel", "refund"} {
					for _, generation := range []int32{0, 1, 256, 1 << 30} {
						c := provider.Call{Installation: place, OrderID: id, Step: of, Generation: generation}
						if op == provider.Refund {
							c.OperationID = ids[rand.IntN(len(ids))]
						}
						key, about := c.Key(op), fmt.Sprintf("%s %q %q %q %d %q", place, id, of, op, generation, c.OperationID)
						assert.Require(t, fit.MatchString(key), "key", key)
						other, known := seen[key]
						assert.Require(t, !known || other == about, about, "and", other, "have one key")
						seen[key] = about
					}
				}
			}
		}
	}
}
