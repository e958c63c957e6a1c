// Package cli is the command line of pawl: its commands, settings and exit codes, and what a process needs around the
// service: the database to use, metrics, traces. main calls it, nobody else does. It holds no rule about orders.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"pawl/fsm/diagram"
	"pawl/httpapi"
	"pawl/internal/cli/remote"
)

// Main runs the command that the arguments of the process name and returns its exit code. SIGTERM and SIGINT ask it to
// end; a second one ends it at once.
func Main() int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2) // a second one is kept that comes right after the first
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go endBy(signals, cancel)
	err := command().ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "pawl:", err)
	return exitCode(err)
}

// endBy has the first signal end what runs, and the second one the process, as if nobody had listened to it.
func endBy(signals chan os.Signal, cancel context.CancelFunc) {
	<-signals
	cancel()
	second := <-signals
	signal.Reset()
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Signal(second)
	}
}

// command is the whole command line. Without a command it serves.
func command() *cobra.Command {
	serve := serveCommand()
	root := &cobra.Command{
		Use:           "pawl",
		Short:         "A retry-safe order service on PostgreSQL",
		Long:          "Pawl charges, reserves and confirms each order exactly once, whatever fails.\nWithout a command it runs serve.",
		Version:       version(),
		PreRunE:       serve.PreRunE,
		RunE:          serve.RunE,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.Flags().AddFlagSet(serve.Flags())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(serve, migrateCommand(), diagramCommand(), verifyCommand(), loadCommand(), simulateCommand(), policyCommand(), tokenCommand(),
		adoptCommand(), doctorCommand(), demoCommand(),
		printCommand("openapi", "Print the API description (OpenAPI 3.1, YAML)", httpapi.Document))
	root.AddCommand(remote.Commands()...)
	refuseArguments(root)
	return root
}

// refuseArguments makes a word too many, as a misspelt command, an error of usage.
// Commands that say nothing of their arguments have none.
func refuseArguments(cmd *cobra.Command) {
	wanted := cmd.Args
	if wanted == nil {
		wanted = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := wanted(cmd, args); err != nil {
			return usageError{fmt.Errorf("%w%s", err, hint(cmd, args, err))}
		}
		return nil
	}
	for _, sub := range cmd.Commands() {
		refuseArguments(sub)
	}
}

// hint is what helps after a word too many or too few.
func hint(cmd *cobra.Command, args []string, err error) string {
	if strings.HasPrefix(err.Error(), "unknown command") {
		return suggestion(cmd, args)
	}
	return ": " + cmd.UseLine()
}

// suggestion is what a misspelt command may have meant.
func suggestion(cmd *cobra.Command, args []string) string {
	cmd.SuggestionsMinimumDistance = 2 // letters to change, as cobra does for commands without arguments of their own
	if len(args) == 0 {
		return ""
	}
	near := cmd.SuggestionsFor(args[0])
	if len(near) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(near, " or ") + "?"
}

// printCommand is a command that prints what the program knows.
func printCommand(use, short string, text func() string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, RunE: func(cmd *cobra.Command, _ []string) error {
		_, err := io.WriteString(cmd.OutOrStdout(), text())
		return err
	}}
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}

// Exit codes, after sysexits(3).
const (
	exitFailure     = 1
	exitUsage       = 2
	exitUnavailable = 69
	exitSoftware    = 70
	exitConfig      = 78
)

type (
	usageError  struct{ error }
	configError struct{ error }
)

var (
	errUnavailable    = errors.New("database unavailable")
	errDatabaseExited = errors.New("the database server has ended")
)

func exitCode(err error) int {
	var usage usageError
	var config configError
	var url *pgconn.ParseConfigError
	var connect *pgconn.ConnectError
	switch {
	case errors.As(err, &usage), errors.Is(err, remote.ErrUsage):
		return exitUsage
	case errors.As(err, &config), errors.As(err, &url):
		return exitConfig
	case errors.Is(err, errUnavailable), errors.Is(err, errNoVerdict), errors.Is(err, remote.ErrUnavailable), errors.As(err, &connect):
		return exitUnavailable
	case errors.Is(err, errDatabaseExited):
		return exitSoftware
	default:
		return exitFailure
	}
}

func diagramCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "diagram",
		Short:   "Print the state machine of an order",
		Example: "  pawl diagram\n  pawl diagram --format svg > machine.svg",
		RunE: func(cmd *cobra.Command, _ []string) error {
			draw, ok := map[string]func() string{"mermaid": diagram.Mermaid, "svg": diagram.SVG, "markdown": diagram.Markdown}[format]
			if !ok {
				return usageError{fmt.Errorf("format %q: mermaid, svg or markdown", format)}
			}
			_, err := io.WriteString(cmd.OutOrStdout(), draw())
			return err
		},
	}
	cmd.Flags().StringVar(&format, "format", "mermaid", "mermaid, svg or markdown")
	return cmd
}
