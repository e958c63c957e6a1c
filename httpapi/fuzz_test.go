package httpapi

import (
	"bytes"
	"encoding/json"
	"math/big"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pawl/engine"
	"pawl/internal/iso4217"
)

// FuzzDecodeInput holds the decoder to two things: it never panics, and what it
// accepts has one reading, that of encoding/json.
func FuzzDecodeInput(f *testing.F) {
	for _, seed := range []string{
		`{"orderId": "order-123", "amount": 99.99, "item": "widget"}`,
		`{"metadata":{"b":"2","a":"\u00e9"},"currency":"JPY","quantity":3,"item":"i","amount":"100","orderId":"o"}`,
		`{"orderId":"\ud83d\ude00","amount":1e2,"item":"i","x":[{"y":null,"z":[true,false]}]}`,
		body("orderId", `"a\ud800"`), body("ORDERID", `"x"`), body("amount", "-0"), manyNames(20) + "}", "[[[[", "{\"\xff\":1}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in, _, err := decodeInput(data, dollars, time.Now)
		if err != nil {
			if p := problemOf(err); p.Status != 400 && p.Status != 422 || len(p.Errors) == 0 {
				t.Fatalf("refused with %+v", *p)
			}
			return
		}
		agrees(t, data, &in)
	})
}

// agrees compares what was read with what encoding/json reads.
func agrees(t *testing.T, data []byte, in *engine.Input) {
	t.Helper()
	var other struct {
		OrderID, Item, Currency string
		Amount                  any
		Quantity                json.Number
		Metadata                map[string]string
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&other); err != nil {
		t.Fatalf("encoding/json refuses %q: %v", data, err)
	}
	if other.OrderID != in.OrderID || other.Item != in.Item || other.Currency != in.Currency {
		t.Fatalf("%q is read as %+v, and by encoding/json as %+v", data, *in, other)
	}
	if n, _ := other.Quantity.Int64(); int32(n) != in.Quantity {
		t.Fatalf("%q: quantity %d, not %s", data, in.Quantity, other.Quantity)
	}
	var metadata map[string]string
	if in.Metadata != nil {
		if err := json.Unmarshal(in.Metadata, &metadata); err != nil {
			t.Fatalf("metadata is stored as %q", in.Metadata)
		}
	}
	if len(metadata) != len(other.Metadata) {
		t.Fatalf("%q: metadata %q", data, in.Metadata)
	}
	for key, value := range other.Metadata {
		if metadata[key] != value {
			t.Fatalf("%q: metadata %q", data, in.Metadata)
		}
	}
	text := ""
	switch amount := other.Amount.(type) {
	case json.Number:
		text = amount.String()
	case string:
		text = amount
	}
	sameAmount(t, text, in.Amount.String())
	if strings.ContainsAny(in.OrderID+in.Item, "\x00\n\x7f") || !utf8.ValidString(in.OrderID) || in.OrderID == "" || in.OrderID != strings.TrimSpace(in.OrderID) || strings.ContainsAny(in.OrderID+in.Item, "\u200b\u200d\u202e\ufeff") || utf8.RuneCountInString(in.OrderID) > maxText {
		t.Fatalf("order id %q was accepted", in.OrderID)
	}
}

func sameAmount(t *testing.T, text, got string) {
	t.Helper()
	if len(text) > 100 { // big.Rat makes all the digits of 0e999999
		return
	}
	if at := strings.IndexAny(text, "eE"); at >= 0 && len(text)-at > 5 {
		return
	}
	want, ok := new(big.Rat).SetString(text)
	have, ok2 := new(big.Rat).SetString(got)
	if !ok || !ok2 || want.Cmp(have) != 0 {
		t.Fatalf("amount %q is read as %s", text, got)
	}
}

// FuzzParseAmount compares with the rational numbers of math/big.
func FuzzParseAmount(f *testing.F) {
	for _, seed := range []string{"99.99", "1e2", "0.00", "-0", "1e-2", "999999999999999.9999", "1e15", "01", "0E-9"} {
		f.Add(seed, 2)
	}
	f.Fuzz(func(t *testing.T, text string, digits int) {
		if digits < 0 || digits > iso4217.MostDigits {
			return
		}
		amount, code, detail := parseAmount(numberIn([]byte(text)), digits)
		if code != "" {
			if detail == "" {
				t.Fatal("a fault without detail")
			}
			return
		}
		if amount.Scale() != digits || amount.Prec()-amount.Scale() > maxWhole || amount.IsNeg() {
			t.Fatalf("%q with %d digits was accepted as %s", text, digits, amount)
		}
		sameAmount(t, text, amount.String())
	})
}
