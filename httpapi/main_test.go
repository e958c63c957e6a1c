package httpapi

import (
	"testing"

	"pawl/dbtest"
)

func TestMain(m *testing.M) {
	rules["POST /test"] = rule{class: alwaysOpen} // a route of tests
	Document()                                    // the first service makes the schemas by which bodies are read; two may not at the same time
	dbtest.Main(m)
}
