package httpapi

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	"pawl/test/dbtest"
)

// The document lists words that only the database knows: what an order can wait for, and the like.
func TestWordsAreThoseOfTheDatabase(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	order := dig(theContract().document, "components", "schemas", "Order", "properties")
	failure := dig(theContract().document, "components", "schemas", "Failure", "properties")
	for domain, documented := range map[string]any{
		"order_hold": order["hold"], "order_stop": order["stopRequested"], "order_step": failure["step"],
	} {
		var check string
		if err := database.Pool.QueryRow(t.Context(),
			`SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = $1`, domain).Scan(&check); err != nil {
			t.Fatal(err)
		}
		var stored, shown []string
		for _, word := range regexp.MustCompile(`'(.*?)'`).FindAllStringSubmatch(check, -1) {
			stored = append(stored, word[1])
		}
		words, _ := dig(documented)["enum"].([]any)
		for _, word := range words {
			shown = append(shown, fmt.Sprint(word))
		}
		if !slices.Equal(stored, shown) {
			t.Errorf("%s can be %q, documented is %q", domain, stored, shown)
		}
	}
}
