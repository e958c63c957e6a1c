package httpapi

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/govalues/decimal"
	"pgregory.net/rapid"

	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
)

func anyOrder(t *rapid.T) orders.Order {
	text := rapid.String()
	at := rapid.Custom(func(t *rapid.T) time.Time {
		return time.UnixMicro(rapid.Int64Range(0, 4e15).Draw(t, "at"))
	})
	return orders.Order{
		OrderID: text.Draw(t, "id"), Item: "an item " + text.Draw(t, "item"), Lines: rapid.SampledFrom([][]byte{nil, nil, []byte(`[{"item":"<b>","quantity":1}]`)}).Draw(t, "lines"),
		Currency: text.Draw(t, "currency"),
		Status:   rapid.SampledFrom(fsm.States()).Draw(t, "status"),
		Amount:   decimal.MustNew(rapid.Int64Min(0).Draw(t, "amount"), rapid.IntRange(0, 4).Draw(t, "scale")),
		Quantity: rapid.Int32Min(1).Draw(t, "quantity"), Seq: rapid.Int32().Draw(t, "seq"), Generation: rapid.Int32().Draw(t, "generation"),
		CreatedAt: at.Draw(t, "created"), FinishedAt: rapid.Ptr(at, true).Draw(t, "finished"),
		Metadata:      rapid.SampledFrom([][]byte{nil, []byte(`{"a":"<b>"}`)}).Draw(t, "metadata"),
		Hold:          rapid.Ptr(rapid.SampledFrom([]string{"", "retry", "attention"}), true).Draw(t, "hold"),
		HoldReason:    rapid.Ptr(text, true).Draw(t, "hold reason"),
		StopRequested: rapid.Ptr(text, true).Draw(t, "stop"), FailureStep: rapid.Ptr(text, true).Draw(t, "failed step"),
		Policy: rapid.Ptr(rapid.Int32(), true).Draw(t, "policy"), Route: rapid.Ptr(text, true).Draw(t, "route"), CustomerID: rapid.Ptr(text, true).Draw(t, "customer"),
		Calls: rapid.Ptr(rapid.Int32(), true).Draw(t, "calls"), InDoubtSince: rapid.Ptr(at, true).Draw(t, "in doubt"),
		StartAt: rapid.Ptr(at, true).Draw(t, "start"), CompleteBy: rapid.Ptr(at, true).Draw(t, "deadline"), DueAt: rapid.Ptr(at, true).Draw(t, "due"),
		ReservedUntil: rapid.Ptr(at, true).Draw(t, "reserved until"), ApprovalUntil: rapid.Ptr(at, true).Draw(t, "approval until"),
		Action:      rapid.SampledFrom([][]byte{nil, []byte(`{"a": "<b>"}`)}).Draw(t, "action"),
		FailureCode: rapid.Ptr(text, true).Draw(t, "failure"), FailureDetail: rapid.Ptr(text, true).Draw(t, "failure detail"),
		ChargedAt:        rapid.Ptr(at, true).Draw(t, "charged"),
		RefundedAt:       rapid.Ptr(at, true).Draw(t, "refunded"),
		ChargeReference:  rapid.Ptr(text, true).Draw(t, "charge reference"),
		ReserveReference: rapid.Ptr(text, true).Draw(t, "reserve reference"),
		ReservedAt:       rapid.Ptr(at, true).Draw(t, "reserved"),
		ReleasedAt:       rapid.Ptr(at, true).Draw(t, "released"),
	}
}

// The encoder is written by hand; encoding/json knows what the struct says.
func TestOrdersAreEncodedAsTheirTypeSays(t *testing.T) {
	t.Parallel()
	type plain order
	rapid.Check(t, func(t *rapid.T) {
		row := anyOrder(t)
		wire := orderOf(&row)
		var want bytes.Buffer
		encoder := json.NewEncoder(&want)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(plain(wire)); err != nil {
			t.Fatal(err)
		}
		if got := wire.append(nil); !sameJSON(t, got, want.Bytes()) {
			t.Fatalf("got  %s\nwant %s", got, want.Bytes())
		}
	})
}

// sameJSON compares two texts; strings can be escaped in more than one way.
func sameJSON(t *rapid.T, a, b []byte) bool {
	tokens := func(text []byte) (out []json.Token) {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		for {
			token, err := decoder.Token()
			if err != nil {
				return out
			}
			out = append(out, token)
		}
	}
	if !json.Valid(a) {
		t.Fatalf("not JSON: %s", a)
	}
	return reflect.DeepEqual(tokens(a), tokens(b))
}

func TestStringsAreEncodedAndReadAlike(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		encoded := appendString(nil, s)
		read := newDecoder(encoded)
		if got := read.string(); read.err != nil || string(got) != s {
			t.Fatalf("%q is encoded as %s and read as %q", s, encoded, got)
		}
	})
	got := string(appendString(nil, "a\xffb\xed\xa0\x80"))
	assert.True(t, got == `"a`+"\ufffd"+`b`+strings.Repeat("\ufffd", 3)+`"` && utf8.ValidString(got), "bad UTF-8 is encoded as", got)
}

func TestStepsSayWhatStands(t *testing.T) {
	t.Parallel()
	at := time.Now()
	for _, c := range []struct {
		name string
		row  orders.Order
		want steps
	}{
		{"nothing yet", orders.Order{}, steps{}},
		{"charged", orders.Order{ChargedAt: &at}, steps{Charge: stepState{Completed: true}}},
		{"all done", orders.Order{Status: fsm.Completed, ChargedAt: &at, ReservedAt: &at},
			steps{stepState{Completed: true}, stepState{Completed: true}, stepState{Completed: true}}},
		{"all undone", orders.Order{ChargedAt: &at, RefundedAt: &at, ReservedAt: &at, ReleasedAt: &at},
			steps{Charge: stepState{Undone: true}, Reserve: stepState{Undone: true}}},
	} {
		got := stepsOf(&c.row)
		assert.True(t, got == c.want, c.name, got)
	}
}

func TestAStepUndoneInDoubtIsNotCompleted(t *testing.T) {
	t.Parallel()
	at, yes := time.Now(), true
	o := orders.Order{ChargedAt: &at, ReservedAt: &at}
	shown := stepsOf(&o)
	assert.True(t, shown.Charge.Completed && shown.Reserve.Completed, "done", shown)
	o.ChargeInDoubt, o.ReserveInDoubt = &yes, &yes
	shown = stepsOf(&o)
	assert.True(t, !shown.Charge.Completed && !shown.Reserve.Completed, "in doubt", shown)
	o.RefundedAt, o.ReleasedAt = &at, &at
	shown = stepsOf(&o)
	assert.True(t, shown.Charge == (stepState{Undone: true, InDoubt: true}) && shown.Reserve == shown.Charge, "undone", shown)
	o.ChargeCapture, o.Policy = new("later"), new(int32(1))
	assert.Equal(t, termsOf(&o).Authorized, "", "authorized in doubt")
}
