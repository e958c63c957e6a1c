package webhooks_test

import (
	"testing"

	"pawl/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }
