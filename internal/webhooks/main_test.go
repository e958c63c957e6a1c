package webhooks_test

import (
	"testing"

	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }
