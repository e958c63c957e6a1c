package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"pawl/internal/demo"
)

// lastWriter calls stop when it can no longer write.
type lastWriter struct {
	out  io.Writer
	stop func()
}

func (w *lastWriter) Write(text []byte) (int, error) {
	n, err := w.out.Write(text)
	if err != nil {
		w.stop()
	}
	return n, err
}

// demoCommand has no settings of the service, because it must break only its own.
func demoCommand() *cobra.Command {
	var opt demo.Options
	var seconds int
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Demonstrate the service while a provider and replicas fail",
		Long: "Starts a database, two replicas and a simulated provider on this machine, sends orders, and causes a fault every few\n" +
			"seconds. At the end it compares the books of the service with those of the provider, and removes everything. Exits\n" +
			"with 1 if they differ. Ctrl-C skips to the comparison.\n\n" +
			"It uses free ports, and prints the address of a console with a lab to cause faults yourself. Once you do, it runs until\nCtrl-C.",
		Example: "  pawl demo\n" +
			"  pawl demo --seconds 0   # until Ctrl-C, without faults of its own\n" +
			"  pawl demo --seconds 120 --data-dir /tmp/pawl-demo",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if seconds < 0 || seconds > 86400 {
				return usageError{errors.New("--seconds must be from 0 to 86400")}
			}
			if opt.Program, err = os.Executable(); err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			opt.Length, opt.Out = time.Duration(seconds)*time.Second, cmd.OutOrStdout()
			file, ok := opt.Out.(*os.File)
			opt.Live = ok && term.IsTerminal(int(file.Fd()))
			ctx, stop := context.WithCancel(cmd.Context())
			defer stop()
			// A reader that closes the pipe (pawl demo | head) must end the whole demo, not only this process. SIGPIPE is ignored,
			// because requests to a killed replica raise it, too.
			signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
			opt.Out = &lastWriter{opt.Out, stop}
			err = demo.Run(ctx, opt)
			if errors.Is(err, demo.ErrNotEmpty) {
				err = usageError{fmt.Errorf("--data-dir: %w", err)}
			}
			if errors.Is(err, context.Canceled) && ctx.Err() != nil {
				err = nil // interrupted during the start
			}
			return err
		},
	}
	f := cmd.Flags()
	f.IntVar(&seconds, "seconds", 30, "how long to send orders; 0: until Ctrl-C, without faults of its own")
	f.StringVar(&opt.Dir, "data-dir", "", "new or empty `directory` for all files; empty: a temporary one")
	f.StringVar(&opt.PostgresBin, "pg-bin", "", "directory of the postgres and initdb to run; empty: search for one")
	f.StringVar(&opt.PostgresUser, "pg-user", "", "user to run PostgreSQL as when started by root; empty: pawl")
	return cmd
}
