package house

import (
	"os"
	"testing"
)

// root is the repository, in which these tests run.
const root = "."

func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
