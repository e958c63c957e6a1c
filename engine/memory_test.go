package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"pawl/internal/orders"
)

// TestMetadataIsBounded has orders with much metadata wait: their number alone would not bound the memory.
func TestMetadataIsBounded(t *testing.T) {
	t.Parallel()
	b, p := setupBehind(t, byCallers)
	metadata := fmt.Appendf(nil, `{"a":%q}`, bytes.Repeat([]byte("x"), 1<<20))
	inputs := requests("order", 40)
	for i := range inputs {
		inputs[i].Metadata = metadata
	}
	atAdmission, release := p.stall(t, named("OrdersAdmit"))
	answers := ask(t, b.engine, inputs[:1]...)
	eventually(t, "the first is on its way", func() bool { return atAdmission.Load() == 1 })
	more := ask(t, b.engine, inputs[1:32]...)
	eventually(t, "others wait behind it", func() bool { return b.engine.InFlight() == 32 })
	for _, in := range inputs[32:] {
		if _, err := b.engine.Process(t.Context(), in); !errors.Is(err, orders.ErrOverloaded) {
			t.Errorf("beside 32 MiB of metadata there is room for more: %v", err)
		}
	}
	release()
	b.completes(t, answers, 1)
	b.completes(t, more, 31)
	b.process(t, inputs[32]) // there is room again
	proveBooks(t, b.Pool)
}
