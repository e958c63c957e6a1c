// Package remote has the commands that use the API of a running service: orders, holds, events, webhooks and console.
package remote

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pawl/client"
	"pawl/internal/cli/output"
)

var (
	// ErrUsage is wrapped by errors about the command line.
	ErrUsage = errors.New("wrong usage")
	// ErrUnavailable is wrapped by errors of a service that does not answer, or is unavailable.
	ErrUnavailable = errors.New("service unavailable")
)

// Commands returns the commands that use the API.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		overviewCommand(), ordersCommand(), holdsCommand(), stockCommand(), customersCommand(), eventsCommand(), webhooksCommand(), booksCommand(), movementsCommand(),
		consoleCommand(),
	}
}

// session connects a command to a service and to its output.
type session struct {
	*client.Client
	address, token string
	all            bool // address lists the URLs of all cells, and token may list a token for each
	out            io.Writer
	format         output.Format
}

const defaultURL = "http://127.0.0.1:3000"

// retryFor is how long a command retries while the service does not answer.
const retryFor = 5 * time.Second

// asking adds the flags of a session to a command, which do then runs with.
func asking(cmd *cobra.Command, do action) *cobra.Command { return (&session{}).command(cmd, do) }

// askingAll is asking for a command that --all runs for each cell.
func askingAll(cmd *cobra.Command, do action) *cobra.Command {
	s := &session{}
	cmd.Flags().BoolVar(&s.all, "all", false,
		"run for each cell: --url lists the URLs of all cells, separated by spaces, and PAWL_TOKEN a token for all or for each")
	return s.command(cmd, do)
}

type action func(ctx context.Context, s *session, args []string) error

func (s *session) command(cmd *cobra.Command, do action) *cobra.Command {
	cmd.Flags().StringVar(&s.address, "url", "", "URL of the service; default: PAWL_URL, or "+defaultURL)
	s.format.AddTo(cmd.Flags())
	_ = cmd.RegisterFlagCompletionFunc("output", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return output.Formats(cmd.Flags()), cobra.ShellCompDirectiveNoFileComp
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		s.out, s.address = cmd.OutOrStdout(), cmp.Or(s.address, os.Getenv("PAWL_URL"), defaultURL)
		s.token = os.Getenv("PAWL_TOKEN")
		if err = rejectEmpty(cmd, args); err != nil {
			return err
		}
		if s.all {
			return s.eachCell(cmd.Context(), args, do)
		}
		if s.Client, err = s.connect(retryFor); err != nil {
			return err
		}
		return explained(do(cmd.Context(), s, args))
	}
	return cmd
}

// cells returns a session for each of the URLs, with the cell of its service. errs has why a service could not be asked.
func (s *session) cells(ctx context.Context) (each []session, names []output.Cell, errs []error) {
	urls, tokens := strings.Fields(s.address), strings.Fields(s.token)
	for i, url := range urls {
		one, name := *s, output.Cell{URL: url}
		if one.address = url; len(tokens) == len(urls) {
			one.token = tokens[i]
		}
		var err error
		if one.Client, err = one.connect(retryFor); err == nil {
			var me *client.Caller
			if me, err = one.GetCaller(ctx); err == nil {
				name.Cell = me.Cell
			}
		}
		each, names, errs = append(each, one), append(names, name), append(errs, explained(err))
	}
	return each, names, errs
}

func (s *session) eachCell(ctx context.Context, args []string, do action) error {
	each, names, errs := s.cells(ctx)
	return output.EachCell(s.out, s.format, names, func(i int) error {
		if errs[i] != nil {
			return errs[i]
		}
		return explained(do(ctx, &each[i], args))
	})
}

// connect makes a client that retries for some time while the service does not answer.
func (s *session) connect(retryFor time.Duration) (*client.Client, error) {
	c, err := client.New(s.address, client.Options{Token: s.token, RetryFor: retryFor})
	if err != nil {
		return nil, usage("%w", err)
	}
	return c, nil
}

func usage(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUsage, fmt.Errorf(format, args...))
}

// rejectEmpty rejects empty values, as of unset variables in a script: an order without an ID would be a new one each
// time, and a refund without an amount a full one. It also rejects negative numbers.
func rejectEmpty(cmd *cobra.Command, args []string) (err error) {
	if slices.Contains(args, "") {
		return usage("arguments must not be empty")
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch value := f.Value.String(); {
		case value == "", value == "[]":
			err = usage("--%s must not be empty", f.Name)
		case strings.HasPrefix(value, "-") && (f.Value.Type() == "int" || f.Value.Type() == "duration"):
			err = usage("--%s must not be negative", f.Name)
		}
	})
	return err
}

func requiring(cmd *cobra.Command, flags ...string) *cobra.Command {
	for _, flag := range flags {
		_ = cmd.MarkFlagRequired(flag) // the flag exists
	}
	return cmd
}

// explained adds advice to an error, and distinguishes a rejected request from an unavailable service.
func explained(err error) error {
	problem, answered := errors.AsType[*client.Problem](err)
	_, lost := errors.AsType[*url.Error](err)
	switch {
	case answered && problem.Status == http.StatusUnauthorized:
		return fmt.Errorf("%w: put a token into PAWL_TOKEN, see pawl token create --help", err)
	case answered && problem.Code == client.ProblemCodeCursorExpired:
		return fmt.Errorf("%w: to continue, use --after %s", err, problem.NextCursor)
	case answered && problem.Status >= http.StatusBadGateway && problem.Status <= http.StatusGatewayTimeout:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case !answered && lost && !errors.Is(err, context.Canceled):
		return fmt.Errorf("%w: %w: is it running? Set --url or PAWL_URL to use another address", ErrUnavailable, err)
	}
	return err
}

// completing lets shells complete the values of a flag.
func completing(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// holdWords are what orders wait for, beginning with people.
var holdWords = []string{"attention", "approval", "paused", "callback", "retry", "queued", "scheduled"}

// statusWords are all statuses of orders.
var statusWords = []string{"pending", "charging", "reserving", "confirming", "completed", "releasing", "refunding", "failed", "canceled"}

func group(use, short, example string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Example: example,
		Long: short + ".\nSet the service with --url or PAWL_URL, and a token with PAWL_TOKEN.",
	}
	cmd.AddCommand(commands...)
	return cmd
}

// first yields the first values, or all if limit is 0.
func first[T any](limit int, values iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		n := 0
		for value, err := range values {
			if n++; !yield(value, err) || n == limit {
				return
			}
		}
	}
}

// show prints an answer of the service: as JSON, or by table.
func show[T any](s *session, value *T, err error, table func(*T) error) error {
	switch {
	case err != nil:
		return err
	case s.format == output.JSON:
		return output.Indented(s.out, value)
	default:
		return table(value)
	}
}

// printCSV prints pages of lines, of which the first names the columns: the first limit of the others, or all if it is 0.
func (s *session) printCSV(pages iter.Seq2[[]byte, error], limit int) error {
	lines := 0
	for text, err := range pages {
		if err != nil {
			return err
		}
		for line := range bytes.Lines(text) {
			if lines++; limit > 0 && lines > limit+1 {
				return nil
			}
			if _, err := s.out.Write(line); err != nil {
				return err
			}
		}
	}
	return nil
}

// fields prints pairs of names and values, one per line. It leaves out empty values.
func (s *session) fields(namesAndValues ...string) error {
	rows := output.NewRows(s.out)
	for pair := range slices.Chunk(namesAndValues, 2) {
		if pair[1] != "" {
			rows.Add(pair[0], pair[1])
		}
	}
	return rows.Flush()
}

func dryRunFlag(f *pflag.FlagSet, dryRun *bool) {
	f.BoolVar(dryRun, "dry-run", false, "check whether the request would succeed, without changing anything")
}

// printDryRun says below a table that nothing was done. In JSON, the order has dryRun.
func (s *session) printDryRun(dryRun bool) (err error) {
	if dryRun && s.format == output.Table {
		_, err = fmt.Fprintln(s.out, "dry run: the request would succeed; nothing was changed")
	}
	return err
}

// dash replaces an empty cell, so that columns can be counted.
func dash[T ~string](text T) string {
	if text == "" {
		return "-"
	}
	return string(text)
}

// moment formats a time; a zero time is empty.
func moment(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}
