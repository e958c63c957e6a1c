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

// lastWriter writes until it can't any more, and then calls stop.
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

// demoCommand has none of the settings of the service: what it breaks must be its own.
func demoCommand() *cobra.Command {
	var opt demo.Options
	var seconds int
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Demonstrate the service while a provider and replicas fail",
		Long: "Starts a database, two replicas of the service and a simulated provider, sends orders, and has a fault\n" +
			"every few seconds: the provider is slow, silent or wrong, a replica is killed or stands still. It tells what\n" +
			"happens, and in the end it compares the books of the service with those of the provider. Ends with 1 if they\n" +
			"do not balance. Everything runs on this machine, on free ports, and is removed afterwards. Ctrl-C has it come to\n" +
			"the books at once.\n\n" +
			"It prints the address of its console, with a lab where you break things yourself. As soon as you do, nothing breaks\n" +
			"by itself any more, and it goes on until Ctrl-C.",
		Example: "  pawl demo\n  pawl demo --seconds 0   # until Ctrl-C, and all faults are yours\n  pawl demo --seconds 120 --data-dir /tmp/pawl-demo",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if seconds < 0 || seconds > 86400 {
				return usageError{errors.New("seconds: from 0 to 86400")}
			}
			if opt.Program, err = os.Executable(); err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			opt.Length, opt.Out = time.Duration(seconds)*time.Second, cmd.OutOrStdout()
			file, ok := opt.Out.(*os.File)
			opt.Live = ok && term.IsTerminal(int(file.Fd()))
			ctx, stop := context.WithCancel(cmd.Context())
			defer stop()
			// Whoever reads it may leave before the end (pawl demo | head). That ends it as Ctrl-C does, and not this process alone.
			// The signal itself says nothing: a request to a replica that was killed raises it, too.
			signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
			opt.Out = &lastWriter{opt.Out, stop}
			err = demo.Run(ctx, opt)
			if errors.Is(err, demo.ErrNotEmpty) {
				err = usageError{fmt.Errorf("data-dir: %w", err)}
			}
			if errors.Is(err, context.Canceled) && ctx.Err() != nil {
				err = nil // asked to end before it had begun
			}
			return err
		},
	}
	f := cmd.Flags()
	f.IntVar(&seconds, "seconds", 30, "how long orders are sent; 0: until Ctrl-C, and nothing breaks by itself")
	f.StringVar(&opt.Dir, "data-dir", "", "new or empty `folder` to keep everything in; empty: a temporary one")
	f.StringVar(&opt.PostgresBin, "pg-bin", "", "directory of the postgres and initdb to run; empty: search for one")
	f.StringVar(&opt.PostgresUser, "pg-user", "", "user that PostgreSQL runs as when started by root; empty: pawl")
	return cmd
}
