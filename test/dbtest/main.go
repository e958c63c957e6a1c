package dbtest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package, more of them at a time than go test would, stops the server, if one was started, removes its folder, and fails if a goroutine
// still runs. It does not return. A package without it leaves its server to the kernel (Linux ends it with the test
// binary) and its folder to the next run.
func Main(m *testing.M) {
	os.Exit(run(m)) //nolint:forbidigo // a TestMain ends so
}

func run(m *testing.M) int {
	raiseParallel()
	code := m.Run()
	if err := finish(); err != nil {
		fmt.Fprintf(os.Stderr, "dbtest: %v\n", err)
		code = max(code, 1)
	}
	return code
}

// atOnce is how many tests of a package run at a time on one core. Most of them wait: for a lease to end, a provider that
// is slow, a server that restarts. With one test per core, as go test would have it, the cores wait with them.
const atOnce = 3

// raiseParallel lets more tests run at a time, unless -parallel says how many.
func raiseParallel() {
	flag.Parse()
	told := false
	flag.Visit(func(f *flag.Flag) { told = told || f.Name == "test.parallel" })
	if told {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(atOnce*runtime.GOMAXPROCS(0))); err != nil {
		panic(err) // the testing package has the flag
	}
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
