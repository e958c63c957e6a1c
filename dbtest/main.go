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
func Main(m *testing.M, ignored ...goleak.Option) {
	os.Exit(run(m, ignored...)) //nolint:forbidigo // a TestMain ends so
}

func run(m *testing.M, ignored ...goleak.Option) int {
	code := m.Run()
	if err := finish(ignored...); err != nil {
		fmt.Fprintf(os.Stderr, "dbtest: %v\n", err)
		code = max(code, 1)
	}
	return code
}

func finish(ignored ...goleak.Option) error {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		if err := shared.server.close(); err != nil {
			return err
		}
	}
	return goleak.Find(ignored...)
}
