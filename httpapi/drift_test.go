package httpapi

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	"pawl/dbtest"
)

// The document lists words that only the database knows: what an order can wait for, and the like.
func TestWordsAreThoseOfTheDatabase(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	var check string
	if err := database.Pool.QueryRow(t.Context(),
		`SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'orders_words'`).Scan(&check); err != nil {
		t.Fatal(err)
	}
	order := dig(theContract().document, "components", "schemas", "Order", "properties")
	failure := dig(theContract().document, "components", "schemas", "Failure", "properties")
	for column, documented := range map[string]any{
		"hold": order["hold"], "stop_requested": order["stopRequested"], "failure_step": failure["step"],
	} {
		list := regexp.MustCompile(`\b` + column + ` = ANY \(ARRAY\[(.*?)\]\)`).FindStringSubmatch(check)
		if list == nil {
			t.Errorf("%s is not in %s", column, check)
			continue
		}
		var stored, shown []string
		for _, word := range regexp.MustCompile(`'(.*?)'`).FindAllStringSubmatch(list[1], -1) {
			stored = append(stored, word[1])
		}
		words, _ := dig(documented)["enum"].([]any)
		for _, word := range words {
			shown = append(shown, fmt.Sprint(word))
		}
		if !slices.Equal(stored, shown) {
			t.Errorf("%s can be %q, documented is %q", column, stored, shown)
		}
	}
}
