package httpapi

import (
	"strings"
	"testing"

	"pawl/test/assert"
)

func TestLines(t *testing.T) {
	t.Parallel()
	b := setup(t)
	t.Run("are in the answer in the place of item and quantity", func(t *testing.T) {
		t.Parallel()
		body := `{"orderId":"basket","amount":"20","lines":[{"item":"tea","quantity":2,"amount":12.5},{"item":"<cup>","amount":"5"},
			{"item":"by air","amount":"4.9","kind":"shipping"},{"item":"spring","amount":"-2.40","kind":"discount"}]}`
		a := b.process(t, body)
		const want = `"currency":"USD","lines":[{"item":"tea","quantity":2,"amount":"12.50"},{"item":"<cup>","quantity":1,"amount":"5.00"},` +
			`{"item":"by air","quantity":1,"amount":"4.90","kind":"shipping"},{"item":"spring","quantity":1,"amount":"-2.40","kind":"discount"}],"generation"`
		a.wantStatus(t, 200)
		assert.True(t, strings.Contains(a.body, want) && !strings.Contains(a.body, `"quantity":4`), a.body)
		again := b.process(t, body)
		assert.True(t, again.body == a.body && b.get(t, "/api/orders/basket").body == a.body, again.body, a.body)
		p := b.process(t, strings.Replace(body, `"quantity":2`, `"quantity":3`, 1)).wantProblem(t, 409, "order_conflict")
		assert.True(t, len(p.Errors) == 1 && p.Errors[0].Pointer == "/lines/0/quantity" && *p.Errors[0].Stored == "2" && *p.Errors[0].Sent == "3",
			p.Errors)
		assert.Equal(t, len(b.get(t, "/api/orders?item=%3Ccup%3E").wantStatus(t, 200).Orders), 1, "orders for the cup")
	})
	t.Run("one line without an amount is an item", func(t *testing.T) {
		t.Parallel()
		one := b.process(t, `{"orderId":"one","amount":1,"lines":[{"item":"i","quantity":3,"kind":"item"}]}`)
		one.wantStatus(t, 200)
		assert.Contains(t, one.body, `"currency":"USD","item":"i","quantity":3,"generation"`)
		assert.Equal(t, b.process(t, `{"orderId":"one","amount":1,"item":"i","quantity":3}`).body, one.body)
		b.process(t, `{"orderId":"one","amount":1,"lines":[{"item":"i","quantity":2}]}`).wantProblem(t, 409, "order_conflict")
	})
	t.Run("that are wrong are named", func(t *testing.T) {
		t.Parallel()
		for body, want := range map[string]string{
			`"amount":1`:            "/item required",
			`"amount":1,"lines":[]`: "/lines out_of_range",
			`"amount":1,"item":"i","lines":[{"item":"i"}]`:                                              "/lines exclusive",
			`"amount":1,"quantity":1,"lines":[{"item":"i"}]`:                                            "/lines exclusive",
			`"amount":1,"lines":[{"quantity":1}]`:                                                       "/lines/0/item required",
			`"amount":1,"lines":[{"item":" i"}]`:                                                        "/lines/0/item outer_blank",
			`"amount":1,"lines":[{"item":"i","quantity":0}]`:                                            "/lines/0/quantity out_of_range",
			`"amount":1,"lines":[{"item":"i","size":1}]`:                                                "/lines/0/size unknown_field",
			`"amount":1,"lines":[{"item":"i"},{"item":"f","kind":"fee"}]`:                               "/lines/1/amount required",
			`"amount":1,"lines":[{"item":"f","kind":"fee","amount":1}]`:                                 "/lines no_item",
			`"amount":1,"lines":[{"item":"i","amount":1},{"item":"j"}]`:                                 "/lines amounts",
			`"amount":1,"lines":[{"item":"i","amount":"x"}]`:                                            "/lines/0/amount not_decimal",
			`"amount":1,"lines":[{"item":"i","amount":-1}]`:                                             "/lines/0/amount negative",
			`"amount":1,"lines":[{"item":"i","amount":1.001}]`:                                          "/lines/0/amount too_many_fraction_digits",
			`"amount":1,"lines":[{"item":"i","amount":2},{"item":"d","kind":"discount","amount":1}]`:    "/lines/1/amount positive",
			`"amount":1.5,"lines":[{"item":"i","amount":2},{"item":"d","kind":"discount","amount":-1}]`: "/amount not_the_sum",
		} {
			p := b.process(t, `{"orderId":"wrong",`+body+`}`).wantProblem(t, 422, "invalid_input")
			assert.True(t, len(p.Errors) == 1 && p.Errors[0].Pointer+" "+p.Errors[0].Code == want, body, p.Errors, want)
		}
		p := b.process(t, `{"orderId":"sum","amount":1.5,"lines":[{"item":"i","amount":2}]}`).wantProblem(t, 422, "invalid_input")
		d := p.Errors[0].Detail
		assert.True(t, strings.Contains(d, "2.00") && strings.Contains(d, "1.50"), d)
	})
}
