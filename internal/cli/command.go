// Package cli is the command line of pawl: its commands, settings and exit codes, and what the process of a service
// needs: a database, listeners, metrics and traces. It holds no rule about orders.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pawl/fsm/diagram"
	"pawl/httpapi"
	"pawl/internal/books"
	"pawl/internal/cli/output"
	"pawl/internal/cli/remote"
	"pawl/internal/spelling"
	"pawl/internal/version"
)

// Main runs the command that the arguments name, and returns its exit code. SIGTERM or SIGINT shuts it down gracefully;
// a second signal ends the process at once. pages has the documentation, by its paths in the repository.
func Main(pages fs.FS) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop)
	err := Command(pages).ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "pawl:", err)
	return exitCode(err)
}

// Command returns the command line. Without a command it serves. A release makes its manual pages from it, without the
// documentation (nil).
func Command(pages fs.FS) *cobra.Command {
	serve := serveCommand()
	root := &cobra.Command{
		Use:   "pawl",
		Short: "A retry-safe order service on PostgreSQL",
		Long: "Pawl charges, reserves and confirms each order exactly once, whatever fails.\n" +
			"Without a command it runs serve.",
		Version:       version.Build(),
		PreRunE:       serve.PreRunE,
		RunE:          serve.RunE,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.Flags().AddFlagSet(serve.Flags())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		text := err.Error()
		if number, ok := errors.AsType[*strconv.NumError](err); ok {
			why := strings.Replace(number.Err.Error(), "invalid syntax", "it is not a number", 1)
			text = strings.Replace(text, number.Error(), why, 1) // without the name of a function
		}
		return usageError{errors.New(text + flagHint(cmd, err))}
	})
	root.AddCommand(serve, migrateCommand(), diagramCommand(), verifyCommand(), simulateCommand(), policyCommand(),
		tokenCommand(), adoptCommand(), divideCommand(), archiveCommand(), doctorCommand(), demoCommand(), docsCommand(pages),
		printCommand("openapi", "Print the API description (OpenAPI 3.1, YAML)", httpapi.Document))
	root.AddCommand(remote.Commands()...)
	checkUsage(root)
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Args = func(_ *cobra.Command, args []string) error {
		about, rest, err := root.Find(args)
		if err == nil && len(rest) > 0 {
			err = about.Args(about, rest)
		}
		return err
	}
	return root
}

// checkUsage turns the mistakes that cobra finds in arguments and flags into usageErrors, for a command and those below
// it. A command without Args takes none, and one without RunE needs a subcommand.
func checkUsage(cmd *cobra.Command) {
	wanted, before := cmd.Args, cmd.PreRunE
	if wanted == nil {
		wanted = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := wanted(cmd, args); err != nil {
			return usageError{fmt.Errorf("%w%s", err, hint(cmd, args, err))}
		}
		return nil
	}
	if cmd.RunE == nil {
		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
			return usageError{fmt.Errorf("%s needs a command: see %[1]s --help", cmd.CommandPath())}
		}
	}
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if err := errors.Join(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); err != nil {
			return usageError{err}
		}
		if before == nil {
			return nil
		}
		return before(cmd, args)
	}
	for _, sub := range cmd.Commands() {
		checkUsage(sub)
	}
}

// hint suggests commands for a misspelled one, or shows the expected arguments.
func hint(cmd *cobra.Command, args []string, err error) string {
	if !strings.HasPrefix(err.Error(), "unknown command") {
		return ": " + cmd.UseLine()
	}
	cmd.SuggestionsMinimumDistance = 2 // the default of cobra
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return seeHelp(cmd)
}

// flagHint suggests a flag for a misspelled one.
func flagHint(cmd *cobra.Command, err error) string {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return ""
	}
	if everyFlag[unknown.GetSpecifiedName()] && cmd.Flags().Lookup("url") != nil {
		return "; this command asks a running service: --url"
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	if meant := spelling.Meant(unknown.GetSpecifiedName(), known); meant != "" {
		return "; did you mean --" + meant + "?"
	}
	return seeHelp(cmd)
}

func seeHelp(cmd *cobra.Command) string { return "; see " + cmd.CommandPath() + " --help" }

func printCommand(use, short string, text func() string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, RunE: func(cmd *cobra.Command, _ []string) error {
		_, err := io.WriteString(cmd.OutOrStdout(), text())
		return err
	}}
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
	errDatabaseExited = errors.New("the database server has exited")
)

func exitCode(err error) int {
	several, _ := errors.AsType[output.CellErrors](err)
	switch {
	case len(several) > 0: // a failure counts more than a cell that could not be asked
		codes := make([]int, len(several))
		for i, err := range several {
			codes[i] = exitCode(err)
		}
		return slices.Min(codes)
	case is[usageError](err), errors.Is(err, remote.ErrUsage):
		return exitUsage
	case is[configError](err), is[*pgconn.ParseConfigError](err):
		return exitConfig
	case errors.Is(err, errUnavailable), errors.Is(err, errNoVerdict), errors.Is(err, books.ErrProvider), errors.Is(err, remote.ErrUnavailable),
		is[*pgconn.ConnectError](err):
		return exitUnavailable
	case errors.Is(err, errDatabaseExited):
		return exitSoftware
	default:
		return exitFailure
	}
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func diagramCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "diagram",
		Short:   "Print the state machine of an order",
		Example: "  pawl diagram\n  pawl diagram --format svg > machine.svg",
		RunE: func(cmd *cobra.Command, _ []string) error {
			formats := map[string]func() string{"mermaid": diagram.Mermaid, "svg": diagram.SVG, "markdown": diagram.Markdown}
			draw, ok := formats[format]
			if !ok {
				return usageError{fmt.Errorf("--format must be mermaid, svg or markdown, not %q", format)}
			}
			_, err := io.WriteString(cmd.OutOrStdout(), draw())
			return err
		},
	}
	cmd.Flags().StringVar(&format, "format", "mermaid", "mermaid, svg or markdown")
	return cmd
}
