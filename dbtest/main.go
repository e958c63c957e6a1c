package dbtest

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package, stops the server, if one was started, removes its folder, and fails if a goroutine
// still runs. It does not return. A package without it leaves its server to the kernel (Linux ends it with the test
// binary) and its folder to the next run.
func Main(m *testing.M) {
	os.Exit(run(m)) //nolint:forbidigo // a TestMain ends so
}

func run(m *testing.M) int {
	code := m.Run()
	if err := finish(); err != nil {
		fmt.Fprintf(os.Stderr, "dbtest: %v\n", err)
		code = max(code, 1)
	}
	return code
}

func finish() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		if err := shared.server.close(); err != nil {
			return err
		}
	}
	return goleak.Find()
}
