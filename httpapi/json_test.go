package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pawl/engine"
	"pawl/internal/iso4217"
	"pawl/test/assert"
)

var dollars, _ = iso4217.Find("USD")

// faultsOf returns the status of a refusal, and "pointer code" for each fault.
func faultsOf(t *testing.T, err error) (status int, faults []string) {
	t.Helper()
	var p *problem
	assert.Require(t, errors.As(err, &p), "not a problem", err)
	for _, f := range p.Errors {
		faults = append(faults, f.Pointer+" "+f.Code)
	}
	return p.Status, faults
}

// body is a good body with one field replaced, or added.
func body(name, value string) string {
	fields := [][2]string{{"orderId", `"o"`}, {"amount", "1"}, {"item", `"i"`}}
	found := false
	for i := range fields {
		if fields[i][0] == name {
			fields[i][1], found = value, true
		}
	}
	if !found {
		fields = append(fields, [2]string{name, value})
	}
	var b strings.Builder
	for i, f := range fields {
		fmt.Fprintf(&b, `%c%q:%s`, "{,"[min(i, 1)], f[0], f[1])
	}
	return b.String() + "}"
}

func TestDecodeAccepts(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 255)
	for _, c := range []struct {
		name, body string
		want       engine.Input // Amount is compared as text
		amount     string
	}{
		{"the body of the contract", `{"orderId": "order-123", "amount": 99.99, "item": "widget"}`,
			engine.Input{OrderID: "order-123", Item: "widget"}, "99.99"},
		{"all fields", `{"metadata":{"b":"2","a":"1"},"currency":"JPY","quantity":3,"item":"i","amount":"100","orderId":"o"}`,
			engine.Input{OrderID: "o", Item: "i", Quantity: 3, Currency: "JPY", Metadata: []byte(`{"a":"1","b":"2"}`)}, "100"},
		{"currency behind the amount", body("currency", `"KWD"`), engine.Input{OrderID: "o", Item: "i", Currency: "KWD"}, "1.000"},
		{"white space of all sorts", " \t\r\n{ \"orderId\" : \"o\" ,\n\"amount\":1,\"item\":\"i\" } \n", engine.Input{OrderID: "o", Item: "i"}, "1.00"},
		{"escapes", body("orderId", `"\u0061\/\"\\\ud83d\ude00"`), engine.Input{OrderID: `a/"\😀`, Item: "i"}, "1.00"},
		{"a name with escapes", `{"order\u0049d":"o","amount":1,"item":"i"}`, engine.Input{OrderID: "o", Item: "i"}, "1.00"},
		{"any Unicode in ids", body("orderId", `"日本- é… 👩🏽‍💻❤️"`), engine.Input{OrderID: "日本- é… 👩🏽\u200d💻❤\ufe0f", Item: "i"}, "1.00"},
		{"blanks at the ends of what is no name", body("paymentMethod", `" pm "`),
			engine.Input{OrderID: "o", Item: "i", Terms: engine.Terms{PaymentMethod: " pm "}}, "1.00"},
		{"255 characters", body("orderId", `"`+long+`"`), engine.Input{OrderID: long, Item: "i"}, "1.00"},
		{"unknown fields, whatever is in them", body("more", `{"a":[1,-2.5e3,{"b":null}],"c":"\u0000","d":true}`),
			engine.Input{OrderID: "o", Item: "i"}, "1.00"},
		{"sixteen levels", body("more", strings.Repeat("[", 15)+strings.Repeat("]", 15)), engine.Input{OrderID: "o", Item: "i"}, "1.00"},
		{"empty metadata is none", body("metadata", `{}`), engine.Input{OrderID: "o", Item: "i"}, "1.00"},
		{"metadata with empty values", body("metadata", `{"k":""}`), engine.Input{OrderID: "o", Item: "i", Metadata: []byte(`{"k":""}`)}, "1.00"},
		{"two slashes as id", body("orderId", `"//"`), engine.Input{OrderID: "//", Item: "i"}, "1.00"},
		{"three dots as id", body("orderId", `"..."`), engine.Input{OrderID: "...", Item: "i"}, "1.00"},
		{"the largest quantity", body("quantity", "1000000"), engine.Input{OrderID: "o", Item: "i", Quantity: 1_000_000}, "1.00"},
		{"zero as amount", body("amount", "0"), engine.Input{OrderID: "o", Item: "i"}, "0.00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in, _, err := decodeInput([]byte(c.body), dollars, time.Now)
			if err != nil {
				_, faults := faultsOf(t, err)
				t.Fatal(err, faults)
			}
			assert.Equal(t, in.Amount.String(), c.amount, "amount")
			in.Amount = c.want.Amount
			got, want := fmt.Sprintf("%+v", *in), fmt.Sprintf("%+v", c.want)
			assert.Equal(t, got, want)
		})
	}
}

func TestDecodeRefusesTexts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, body, fault string }{
		{"nothing", "", " syntax"},
		{"white space", "  ", " syntax"},
		{"half an object", `{"orderId":"o"`, " syntax"},
		{"half a string", `{"orderId":"o`, "/orderId syntax"},
		{"half an escape", `{"orderId":"o\`, "/orderId syntax"},
		{"half a number", `{"amount":1.`, "/amount syntax"},
		{"data behind the body", body("", "0") + "{}", " syntax"},
		{"a byte order mark", "\ufeff" + body("", "0"), " syntax"},
		{"a comma too many", `{"orderId":"o",}`, " syntax"},
		{"a comma in an array too many", body("more", "[1,]"), " syntax"},
		{"no comma", `{"orderId":"o" "amount":1}`, " syntax"},
		{"no colon", `{"orderId" "o"}`, " syntax"},
		{"a name without quotes", `{orderId:"o"}`, " syntax"},
		{"single quotes", `{'orderId':'o'}`, " syntax"},
		{"a comment", `{/* */"orderId":"o"}`, " syntax"},
		{"a word that is no value", body("item", "yes"), "/item syntax"},
		{"NaN", body("amount", "NaN"), "/amount syntax"},
		{"leading zero", body("amount", "01"), "/amount syntax"},
		{"leading zero in metadata", body("metadata", `{"k":01}`), "/metadata/k syntax"},
		{"leading zero in an unknown field", body("more", "01"), " syntax"},
		{"a name alone", `{"orderId"`, " syntax"},
		{"a name without a value", `{"orderId":`, "/orderId syntax"},
		{"leading plus", body("amount", "+1"), "/amount syntax"},
		{"hexadecimal", body("amount", "0x1"), " syntax"},
		{"a control character in a string", body("orderId", "\"a\tb\""), "/orderId syntax"},
		{"an escape that does not exist", body("orderId", `"\x41"`), "/orderId syntax"},
		{"an escape with signs", body("orderId", `"\u+041"`), "/orderId syntax"},
		{"bad UTF-8", body("orderId", "\"a\xff\""), " encoding"},
		{"overlong UTF-8", body("orderId", "\"\xc0\xaf\""), " encoding"},
		{"a surrogate in UTF-8", body("orderId", "\"\xed\xa0\x80\""), " encoding"},
		{"bad UTF-8 behind the body", body("", "0") + "\xff", " encoding"},
		{"a surrogate outside of strings", body("amount", `\ud800`), "/amount syntax"},
		{"half an escape of a surrogate", body("orderId", `"\ud8"`), "/orderId syntax"},
		{"bad UTF-8 in an unknown field", body("more", "\"\xff\""), " encoding"},
		{"a lone high surrogate", body("orderId", `"a\ud800"`), "/orderId lone_surrogate"},
		{"a lone low surrogate", body("orderId", `"\udc00"`), "/orderId lone_surrogate"},
		{"two high surrogates", body("orderId", `"\ud800\ud800"`), "/orderId lone_surrogate"},
		{"a lone surrogate in a name", `{"\ud800":1}`, " lone_surrogate"},
		{"a lone surrogate in metadata", body("metadata", `{"k":"\udbff"}`), "/metadata/k lone_surrogate"},
		{"a known name twice", `{"orderId":"a","amount":1,"item":"i","orderId":"b"}`, "/orderId duplicate_name"},
		{"a known name twice, once escaped", `{"orderId":"a","amount":1,"item":"i","order\u0049d":"a"}`, "/orderId duplicate_name"},
		{"an unknown name twice", `{"orderId":"a","amount":1,"item":"i","x":1,"x":1}`, "/x duplicate_name"},
		{"a name twice in metadata", body("metadata", `{"k":"1","k":"1"}`), "/metadata/k duplicate_name"},
		{"a name twice deep inside", body("more", `[{"a":{"k/l":1,"k/l":1}}]`), "/more/0/a/k~1l duplicate_name"},
		{"a name twice among hundreds", manyNames(300) + `,"n7":1}`, "/n7 duplicate_name"},
		{"seventeen levels", body("more", strings.Repeat("[", 16)+strings.Repeat("]", 16)), " too_deep"},
		{"seventeen levels of objects", body("more", strings.Repeat(`{"a":`, 16)+"1"+strings.Repeat("}", 16)), " too_deep"},
		{"a thousand levels in metadata", body("metadata", strings.Repeat(`{"a":`, 1000)), "/metadata/a too_deep"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := decodeInput([]byte(c.body), dollars, time.Now)
			status, faults := faultsOf(t, err)
			assert.True(t, status == 400 && len(faults) == 1 && faults[0] == c.fault, status, faults, "want 400 with", c.fault)
		})
	}
}

func manyNames(n int) string {
	var b strings.Builder
	b.WriteString(`{"n0":0`)
	for i := 1; i < n; i++ {
		fmt.Fprintf(&b, `,"n%d":0`, i)
	}
	return b.String()
}

func TestDecodeRefusesValues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, body string
		faults     string
	}{
		{"an array", `[]`, " wrong_type"},
		{"a string", `"orderId"`, " wrong_type"},
		{"null", `null`, " wrong_type"},
		{"no fields", `{}`, "/orderId required;/amount required;/item required"},
		{"no amount", `{"orderId":"o","item":"i"}`, "/amount required"},
		{"empty id", body("orderId", `""`), "/orderId empty"},
		{"empty item", body("item", `""`), "/item empty"},
		{"null id", body("orderId", `null`), "/orderId wrong_type"},
		{"number as id", body("orderId", `1`), "/orderId wrong_type"},
		{"object as item", body("item", `{"a":1}`), "/item wrong_type"},
		{"NUL in an id", body("orderId", `"a\u0000"`), "/orderId control_character"},
		{"NUL in an item", body("item", `"\u0000"`), "/item control_character"},
		{"line feed in an id", body("orderId", `"a\nb"`), "/orderId control_character"},
		{"delete in an id", body("orderId", "\"a\x7f\""), "/orderId control_character"},
		{"C1 control in an id", body("orderId", "\"a\u0085\""), "/orderId control_character"},
		{"256 characters", body("orderId", `"`+strings.Repeat("é", 256)+`"`), "/orderId too_long"},
		{"a megabyte of item", body("item", `"`+strings.Repeat("x", 60_000)+`"`), "/item too_long"},
		{"a blank behind an id", body("orderId", `"dup-1 "`), "/orderId outer_blank"},
		{"a blank before an item", body("item", `" widget"`), "/item outer_blank"},
		{"only blanks", body("item", `"  "`), "/item outer_blank"},
		{"a blank that does not break, behind an id", body("orderId", `"o\u00a0"`), "/orderId outer_blank"},
		{"a wide blank before an id", body("orderId", `"\u3000o"`), "/orderId outer_blank"},
		{"a bidirectional override", body("orderId", `"\u202eabc"`), "/orderId invisible_character"},
		{"a bidirectional isolate in an item", body("item", `"a\u2066b"`), "/item invisible_character"},
		{"a mark of direction", body("item", `"שלום\u200f"`), "/item invisible_character"},
		{"a zero-width space", body("orderId", `"a\u200bb"`), "/orderId invisible_character"},
		{"a zero-width joiner", body("orderId", `"a\u200d"`), "/orderId invisible_character"},
		{"a word joiner", body("item", `"a\u2060b"`), "/item invisible_character"},
		{"a byte order mark in an id", body("orderId", `"\ufeffo"`), "/orderId invisible_character"},
		{"a soft hyphen", body("item", `"a\u00adb"`), "/item invisible_character"},
		{"a filler", body("item", `"a\u3164b"`), "/item invisible_character"},
		{"a tag", body("item", `"a\udb40\udc41"`), "/item invisible_character"},
		{"a line separator", body("orderId", `"a\u2028b"`), "/orderId invisible_character"},
		{"a private character in an item", body("item", `"a\ue000b"`), "/item invisible_character"},
		{"an emoji's style behind a letter", body("item", `"a\ufe0f"`), "/item invisible_character"},
		{"a blank behind a customer", body("customerId", `"c "`), "/customerId outer_blank"},
		{"a zero-width space behind a concurrency key", body("concurrencyKey", `"k\u200b"`), "/concurrencyKey invisible_character"},
		{"one dot", body("orderId", `"."`), "/orderId reserved"},
		{"two dots", body("orderId", `".."`), "/orderId reserved"},
		{"a slash", body("orderId", `"/"`), "/orderId reserved"},
		{"a slash with an escape", body("orderId", `"\/"`), "/orderId reserved"},
		{"a dot as item", body("item", `"."`), "/item reserved"},
		{"a slash as item", body("item", `"/"`), "/item reserved"},
		{"a name in another case", `{"orderID":"o","amount":1,"item":"i"}`, "/orderId name_case;/orderId required"},
		{"a known name beside one in another case", body("ORDERID", `"x"`), "/orderId name_case"},
		{"zero quantity", body("quantity", "0"), "/quantity out_of_range"},
		{"negative quantity", body("quantity", "-1"), "/quantity out_of_range"},
		{"quantity over a million", body("quantity", "1000001"), "/quantity out_of_range"},
		{"quantity beyond 64 bits", body("quantity", "99999999999999999999"), "/quantity out_of_range"},
		{"quantity with a fraction", body("quantity", "1.0"), "/quantity not_integer"},
		{"quantity with an exponent", body("quantity", "1e1"), "/quantity not_integer"},
		{"quantity as text", body("quantity", `"2"`), "/quantity wrong_type"},
		{"null quantity", body("quantity", `null`), "/quantity wrong_type"},
		{"unknown currency", body("currency", `"XXX"`), "/currency unknown_currency"},
		{"currency in small letters", body("currency", `"usd"`), "/currency unknown_currency"},
		{"empty currency", body("currency", `""`), "/currency unknown_currency"},
		{"number as currency", body("currency", `840`), "/currency wrong_type"},
		{"array as metadata", body("metadata", `["a"]`), "/metadata wrong_type"},
		{"number in metadata", body("metadata", `{"k":1}`), "/metadata/k wrong_type"},
		{"object in metadata", body("metadata", `{"k":{"a":"b"}}`), "/metadata/k wrong_type"},
		{"empty key", body("metadata", `{"":"v"}`), "/metadata key_empty"},
		{"a key of 41 characters", body("metadata", `{"`+strings.Repeat("k", 41)+`":"v"}`), "/metadata key_too_long"},
		{"NUL in a key", body("metadata", `{"a\u0000":"v"}`), "/metadata key_control_character"},
		{"NUL in a value", body("metadata", `{"k":"\u0000"}`), "/metadata/k control_character"},
		{"a value of 501 characters", body("metadata", `{"k":"`+strings.Repeat("v", 501)+`"}`), "/metadata/k too_long"},
		{"51 keys", body("metadata", strings.ReplaceAll(manyNames(51), ":0", `:"v"`)+"}"), "/metadata too_many"},
		{"a pointer with escapes", body("metadata", `{"a/b~c":1}`), "/metadata/a~1b~0c wrong_type"},
		{"true as amount", body("amount", `true`), "/amount wrong_type"},
		{"null amount", body("amount", `null`), "/amount wrong_type"},
		{"array as amount", body("amount", `[1]`), "/amount wrong_type"},
		{"negative amount", body("amount", `-1`), "/amount negative"},
		{"a third digit of a cent", body("amount", `99.999`), "/amount too_many_fraction_digits"},
		{"a fraction of a yen", `{"orderId":"o","amount":1.5,"item":"i","currency":"JPY"}`, "/amount too_many_fraction_digits"},
		{"sixteen digits", body("amount", `1000000000000000`), "/amount too_large"},
		{"words as amount", body("amount", `"much"`), "/amount not_decimal"},
		{"everything at once", `{"orderId":"","amount":"x","item":7,"quantity":0,"currency":"?","metadata":[]}`,
			"/orderId empty;/item wrong_type;/quantity out_of_range;/currency unknown_currency;/metadata wrong_type;/amount not_decimal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := decodeInput([]byte(c.body), dollars, time.Now)
			status, faults := faultsOf(t, err)
			got := strings.Join(faults, ";")
			assert.True(t, status == 422 && got == c.faults, status, got, "want 422 with", c.faults)
		})
	}
}

// Two names that look the same must not be two.
func TestNamesThatCanBeTold(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"widget": "", "a b": "", "Ångström": "", "שלום": "", "नमस्ते": "", "日本語": "", "한국어": "", "e\u0301": "", "5 € ≤ 6 ½": "", "\u0605١": "",
		"\U0001f600": "", "❤\ufe0f": "", "©\ufe0f": "", "1\ufe0f\u20e3": "", "#\ufe0f\u20e3": "", "👍🏽": "", "🇩🇪": "",
		"👩\u200d💻": "", "👩🏽\u200d💻": "", "❤\ufe0f\u200d🔥": "", "🏳\ufe0f\u200d🌈": "", "👨\u200d👩\u200d👧": "",

		" a": "outer_blank", "a\u00a0": "outer_blank", "\u2003a": "outer_blank",
		"a\u2028b": "invisible_character", "a\u2029b": "invisible_character", // lines
		"a\u00a0b": "invisible_character", "a\u1680b": "invisible_character", "a\u2003b": "invisible_character", "a\u202fb": "invisible_character",
		"a\u205fb": "invisible_character", "a\u3000b": "invisible_character", "a\u2800b": "invisible_character", // blanks
		"a\ufffdb": "invisible_character", "a\ufffcb": "invisible_character", "a\xff": "invisible_character", "\xf0\x9f": "invisible_character", // lost
		"a\ue000": "invisible_character", "\U000f0000": "invisible_character", "\U0010fffd": "invisible_character", // private
		"a\u0378": "invisible_character", "a\ufdd0": "invisible_character", "a\uffff": "invisible_character",
		"\U000e0fff": "invisible_character", // unassigned
		"a\u200bb":   "invisible_character", "a\u2060": "invisible_character", "\u202ea": "invisible_character", "a\u00ad": "invisible_character",
		"a\u034fb": "invisible_character", "a\u115f": "invisible_character", "a\u3164": "invisible_character", "\U0001d159": "invisible_character",
		"\ufe0f": "invisible_character", "a\ufe0f": "invisible_character", "1\ufe0f": "invisible_character", "a\ufe0f\u20e3": "invisible_character",
		"❤\ufe0e": "invisible_character", "❤\ufe0f\ufe0f": "invisible_character", "❤\ufe00": "invisible_character", "\u2800\ufe0f": "invisible_character",
		"👩\u200d": "invisible_character", "\u200d👩": "invisible_character", "👩\u200d\u200d💻": "invisible_character", "a\u200d💻": "invisible_character",
		"👩\u200da": "invisible_character", "1\u200d2": "invisible_character", "\u0915\u094d\u200d\u0937": "invisible_character",
		"🏴\U000e0067\U000e007f": "invisible_character",
	} {
		got, _ := checkVisible(text)
		assert.Equal(t, got, want, text)
		assert.Equal(t, possible(text), (want == ""), text, "in a path")
	}
}

// Readers that ignore case fold by Unicode's rules: U+017F is an s to them.
func TestNamesThatFoldToAKnownOneAreRefused(t *testing.T) {
	t.Parallel()
	_, err := decodeBody(&http.Request{}, []byte(`{"reaſon":"r"}`), checkVerb[VerbBody])
	_, faults := faultsOf(t, err)
	assert.True(t, len(faults) == 1 && faults[0] == "/reason name_case", faults)
}

// Who reads a fault in a log has no request beside it.
func TestDetailsOfFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ body, detail string }{
		{body("quantity", "0"), "must be from 1 to 1000000, not 0"},
		{body("quantity", "-99999999999999999999"), "must be from 1 to 1000000, not -99999999999999999999"},
		{body("quantity", strings.Repeat("9", 60_000)), "must be from 1 to 1000000, not a number of 60000 characters"},
		{body("amount", `"99.999"`), "must have at most 2 digits after the decimal point in USD, not 99.999"},
		{body("amount", "1e15"), "must have at most 15 digits before the decimal point, not 1e15"},
		{body("amount", "-0"), "must be 0 or more, not -0"},
		{body("amount", `"s3cret"`), "must be a decimal number"},
		{body("item", `"`+strings.Repeat("é", 256)+`"`), "must have at most 255 characters, not 256"},
		{body("startAt", `"9000-01-01T00:00:00Z"`), "must be at most one year in the future, not 9000-01-01T00:00:00Z"},
		{body("completeBy", `"2020-02-29T01:00:00+01:00"`), "must be in the future, not 2020-02-29T00:00:00Z"},
	} {
		_, _, err := decodeInput([]byte(c.body), dollars, time.Now)
		p := problemOf(err)
		assert.True(t, len(p.Errors) == 1 && p.Errors[0].Detail == c.detail, c.body, p.Errors)
	}
	_, _, err := decodeInput([]byte("{\"orderId\":\"o\",\xff\"amount\":1}"), dollars, time.Now)
	assert.Equal(t, problemOf(err).Detail, "the body is not valid UTF-8 at byte 15")
	_, err = decodeBody(&http.Request{}, []byte(`{"step":"pay","outcome":"done","onBehalfOf":"a","reason":"r"}`), checkVerb[stepResultBody])
	p := problemOf(err)
	assert.True(t, len(p.Errors) == 1 && p.Errors[0].Detail == "must be one of charge, reserve, confirm", p.Errors)
}

func TestRefusalsNeverEchoTexts(t *testing.T) {
	t.Parallel()
	const secret = "s3cret"
	for _, text := range []string{
		body("orderId", `"`+secret+`\u0000"`), body("amount", `"`+secret+`"`), body("currency", `"`+secret+`"`),
		body("metadata", `{"k":["`+secret+`"]}`), body("metadata", `{"`+secret+`\u0000":"v"}`), body("item", `["`+secret+`"]`),
		body("orderId", `"`+secret+`\ud800"`), body("item", secret),
	} {
		_, _, err := decodeInput([]byte(text), dollars, time.Now)
		p := problemOf(err)
		got := fmt.Sprintf("%+v", *p)
		assert.True(t, !strings.Contains(got, secret) && p.Status < 500, text, "is answered with", got)
	}
}

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
		agrees(t, data, in)
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
	assert.NoError(t, decoder.Decode(&other), "encoding/json refuses", data)
	assert.Require(t, other.OrderID == in.OrderID && other.Item == in.Item && other.Currency == in.Currency,
		data, "is read as", *in, "and by encoding/json as", other)
	n, _ := other.Quantity.Int64()
	assert.Require(t, int32(n) == in.Quantity, data, "quantity", in.Quantity, "not", other.Quantity)
	var metadata map[string]string
	if in.Metadata != nil {
		assert.NoError(t, json.Unmarshal(in.Metadata, &metadata), "metadata is stored as", in.Metadata)
	}
	assert.Require(t, len(metadata) == len(other.Metadata), data, "metadata", in.Metadata)
	for key, value := range other.Metadata {
		assert.Require(t, metadata[key] == value, data, "metadata", in.Metadata)
	}
	text := ""
	switch amount := other.Amount.(type) {
	case json.Number:
		text = amount.String()
	case string:
		text = amount
	}
	sameAmount(t, text, in.Amount.String())
	assert.Require(t, !strings.ContainsAny(in.OrderID+in.Item, "\x00\n\x7f") && utf8.ValidString(in.OrderID) && in.OrderID != "" &&
		in.OrderID == strings.TrimSpace(in.OrderID) && !strings.ContainsAny(in.OrderID+in.Item, "\u200b\u200d\u202e\ufeff") &&
		utf8.RuneCountInString(in.OrderID) <= maxText, "order id", in.OrderID, "was accepted")
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
	assert.True(t, ok && ok2 && want.Cmp(have) == 0, "amount", text, "is read as", got)
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
			assert.Require(t, detail != "", "a fault without detail")
			return
		}
		assert.Require(t, amount.Scale() == digits && amount.Prec()-amount.Scale() <= maxWhole && !amount.IsNeg(),
			text, "with", digits, "digits was accepted as", amount)
		sameAmount(t, text, amount.String())
	})
}

func TestParseAmount(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text   string
		digits int
		want   string // the amount, or the code of the fault
	}{
		{"99.99", 2, "99.99"},
		{"99.9", 2, "99.90"},
		{"99.90", 2, "99.90"},
		{"99.990", 2, "99.99"},
		{"99.9000000000000000000000000000000000", 2, "99.90"},
		{"12345678901.23", 2, "12345678901.23"},
		{"999999999999999", 2, "999999999999999.00"},
		{"999999999999999.99", 2, "999999999999999.99"},
		{"999999999999999.9999", 4, "999999999999999.9999"},
		{"922337203685477.5807", 4, "922337203685477.5807"},
		{"922337203685477.5808", 4, "922337203685477.5808"},
		{"0", 2, "0.00"},
		{"0.0", 2, "0.00"},
		{"0.00000", 2, "0.00"},
		{"0e0", 2, "0.00"},
		{"0", 0, "0"},
		{"0.00", 0, "0"},
		{"0e99999999999999999999", 2, "0.00"},
		{"0E-99999999999999999999", 2, "0.00"},
		{"0.01", 2, "0.01"},
		{"0.10", 2, "0.10"},
		{"1e2", 2, "100.00"},
		{"1E+2", 2, "100.00"},
		{"1.50e1", 2, "15.00"},
		{"1.5e0", 2, "1.50"},
		{"150e-2", 2, "1.50"},
		{"1e-2", 2, "0.01"},
		{"1e14", 2, "100000000000000.00"},
		{"999999999999999", 4, "999999999999999.0000"},
		{"100.00", 0, "100"},
		{"1.234", 3, "1.234"},
		{"0.0001", 4, "0.0001"},

		{"1e15", 2, "too_large"},
		{"1000000000000000", 2, "too_large"},
		{"1000000000000000.0", 2, "too_large"},
		{"1e400", 2, "too_large"},
		{"1e99999999999999999999", 2, "too_large"},
		{"0.001", 2, "too_many_fraction_digits"},
		{"1e-3", 2, "too_many_fraction_digits"},
		{"1e-99999999999999999999", 2, "too_many_fraction_digits"},
		{"99.995", 2, "too_many_fraction_digits"},
		{"0.5", 0, "too_many_fraction_digits"},
		{"-1", 2, "negative"},
		{"-0", 2, "negative"},
		{"-0.00", 2, "negative"},
		{"-0e5", 2, "negative"},
		{"", 2, "not_decimal"},
		{"-", 2, "not_decimal"},
		{"+1", 2, "not_decimal"},
		{" 1", 2, "not_decimal"},
		{"1 ", 2, "not_decimal"},
		{"01", 2, "not_decimal"},
		{".5", 2, "not_decimal"},
		{"5.", 2, "not_decimal"},
		{"1,000", 2, "not_decimal"},
		{"1_000", 2, "not_decimal"},
		{"1e", 2, "not_decimal"},
		{"0x10", 2, "not_decimal"},
		{"NaN", 2, "not_decimal"},
		{"Infinity", 2, "not_decimal"},
		{"１", 2, "not_decimal"},
	} {
		t.Run(c.text, func(t *testing.T) {
			t.Parallel()
			amount, code, _ := parseAmount(numberIn([]byte(c.text)), c.digits)
			got := code
			if code == "" {
				got = amount.String()
			}
			assert.Equal(t, got, c.want, c.text, "with", c.digits, "digits")
		})
	}
}
