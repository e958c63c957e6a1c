package events

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
)

// TestEveryVerbHasAType looks for what statements write into the history as verb: words in queries/, the verbs of people, the words
// of holds and of states of refunds. One that is added needs a type.
func TestEveryVerbHasAType(t *testing.T) {
	t.Parallel()
	verbs := []string{"callback"}
	files, err := filepath.Glob("../../queries/*.sql")
	assert.Require(t, err == nil && len(files) >= 10, files, err)
	history := regexp.MustCompile(`(?s)INSERT INTO pawl\.transitions \([^)]*\bverb\b.*?FROM`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		assert.NoError(t, err)
		for _, insert := range history.FindAllString(string(regexp.MustCompile(`sqlc\.narg\('\w+'\)`).ReplaceAll(text, nil)), -1) {
			for _, word := range regexp.MustCompile(`'([a-z_]+)'`).FindAllStringSubmatch(insert, -1) {
				verbs = append(verbs, word[1])
			}
		}
	}
	for _, verb := range orders.Verbs {
		verbs = append(verbs, string(verb))
	}
	verbs = append(verbs, fsm.HoldRetry, fsm.HoldCallback, fsm.HoldScheduled, fsm.HoldQueued, fsm.HoldApproval, fsm.HoldPaused, fsm.HoldAttention)
	for _, state := range []string{orders.OperationPending, orders.OperationInDoubt, orders.OperationAccepted, orders.OperationDone, orders.OperationFailed} {
		verbs = append(verbs, "refund_"+state, "capture_"+state, "void_"+state)
	}
	slices.Sort(verbs)
	for _, verb := range slices.Compact(verbs) {
		if slices.Contains([]string{"failed", "pending", "_", "_sent", "in_doubt", "unknown", "refund_"}, verb) { // a status, or the beginning of a word
			continue
		}
		assert.True(t, TypeOf("charging", "charging", verb, "") != typeChanged, "the verb", verb, "has no type")
	}
	assert.True(t, len(slices.Compact(verbs)) >= 20, verbs)
}

// TestTypesAreDocumented holds docs/events.md to the list.
func TestTypesAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/events.md")
	assert.NoError(t, err)
	for _, name := range Types() {
		assert.Contains(t, string(text), "`"+name+"`", "docs/events.md does not name", name)
	}
	for _, found := range regexp.MustCompile("`((?:order|stock)\\.[a-z_]+)`").FindAllStringSubmatch(string(text), -1) {
		assert.True(t, KnownType(found[1]), "there is no type", found[1])
	}
}

// TestEventsAreShort: whatever is stored, and however it is escaped.
// TestLinesOfAnEvent: they are those of the order, unless they are long.
func TestLinesOfAnEvent(t *testing.T) {
	t.Parallel()
	lines := func(n int) []byte {
		return []byte("[" + strings.TrimSuffix(strings.Repeat(`{"item":"tea","quantity":2,"amount":"-1.50","kind":"discount"},`, n), ",") + "]")
	}
	for n, want := range map[int]int{1: 1, 60: 60, 100: 0} {
		e := eventOf(&db.EventsOfBatchRow{OrderNo: 1, OrderID: "a", Lines: lines(n)})
		assert.True(t, len(e.Data.Lines) == want && (want <= 0 ||
			e.Data.Lines[0] == (EventLine{Item: "tea", Quantity: 2, Amount: "-1.50", Kind: "discount"})), n, "lines", e.Data.Lines)
	}
}

// TestLinesOfARefund: an event of a refund has its lines.
func TestLinesOfARefund(t *testing.T) {
	t.Parallel()
	e := eventOf(&db.EventsOfBatchRow{OrderNo: 1, OrderID: "a", Verb: "refund", OperationKind: "refund", Operation: 1,
		OperationLines: []byte(`[{"line":2,"item":"tea","quantity":1,"amount":"1.50","restock":true}]`)})
	assert.Equal(t, e.Data.RefundLines, []RefundLine{{Line: 2, EventLine: EventLine{Item: "tea", Quantity: 1, Amount: "1.50"}, Restock: true}})
	assert.Contains(t, string(e.JSON()), `"refundLines":[{"line":2,"item":"tea","quantity":1,"amount":"1.50","restock":true}]`)
	assert.Equal(t, *At(e.ID), e.Timestamp, "its time")
	e = eventOf(&db.EventsOfBatchRow{Lines: slices.Repeat([]byte("["), linesMost), OperationLines: []byte(`[{"line":2}]`)})
	assert.Equal(t, len(e.Data.Lines), 0, "lines beside those of the refund")
}

func TestEventsAreShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("\x01", 5000)
	name := strings.Repeat("\U0001F600", 255)
	e := Event{ID: "evt_1_1", Data: EventData{Actor: clip(long), OnBehalfOf: clip(long), Reason: clip(long),
		OrderID: name, Lines: []EventLine{{Item: strings.Repeat("i", linesMost)}}, CustomerID: name}}
	n := len(e.JSON())
	assert.True(t, n < 20_000, n, "bytes")
	assert.Equal(t, clip(strings.Repeat("é", 600)), strings.Repeat("é", 350)+"…")
}
