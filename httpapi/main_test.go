package httpapi

import (
	"testing"

	"pawl/test/dbtest"
)

func TestMain(m *testing.M) {
	rules["POST /test"] = rule{class: alwaysOpen} // a route of tests
	dbtest.Main(m)
}
