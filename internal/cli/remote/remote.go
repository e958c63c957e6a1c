// Package remote has the commands that ask a running service over its API: orders, holds, events, webhooks, and a console. They know of
// the service what every client knows.
package remote

import (
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
	// ErrUnavailable is wrapped where there was no answer, or only that the service can't answer now.
	ErrUnavailable = errors.New("service unavailable")
)

// Commands are those of this package, for the command line.
func Commands() []*cobra.Command {
	return []*cobra.Command{ordersCommand(), holdsCommand(), eventsCommand(), webhooksCommand(), consoleCommand()}
}

// session is what a command works with.
type session struct {
	*client.Client
	address string
	out     io.Writer
	format  output.Format
}

// defaultURL is where a service on this machine is.
const defaultURL = "http://127.0.0.1:3000"

// How long to try again where the service does not answer: while somebody waits for the command, and once he follows
// something that goes on for hours.
const (
	patience        = 5 * time.Second
	patienceForever = 365 * 24 * time.Hour
)

// asking makes a command ask a service, and gives it the flags for that.
func asking(cmd *cobra.Command, do func(ctx context.Context, s *session, args []string) error) *cobra.Command {
	s := &session{}
	cmd.Flags().StringVar(&s.address, "url", "", "URL of the service; default: PAWL_URL, or "+defaultURL)
	s.format.AddTo(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		s.out, s.address = cmd.OutOrStdout(), cmp.Or(s.address, os.Getenv("PAWL_URL"), defaultURL)
		if err = refuseEmpty(cmd, args); err != nil {
			return err
		}
		if s.Client, err = s.connect(patience); err != nil {
			return fmt.Errorf("%w: %w", ErrUsage, err)
		}
		return explained(do(cmd.Context(), s, args))
	}
	return cmd
}

func (s *session) connect(retryFor time.Duration) (*client.Client, error) {
	return client.New(s.address, client.Options{Token: os.Getenv("PAWL_TOKEN"), RetryFor: retryFor})
}

// refuseEmpty refuses what a variable of a script leaves that was never set: an order without a name would be another one
// each time, and a refund without an amount all that is left. A number below the least makes no sense.
func refuseEmpty(cmd *cobra.Command, args []string) (err error) {
	if slices.Contains(args, "") {
		return fmt.Errorf("%w: %s: an argument is empty", ErrUsage, cmd.CommandPath())
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch value := f.Value.String(); {
		case value == "", value == "[]":
			err = fmt.Errorf("%w: %s: --%s is empty: leave it out, or give it a value", ErrUsage, cmd.CommandPath(), f.Name)
		case strings.HasPrefix(value, "-") && (f.Value.Type() == "int" || f.Value.Type() == "duration"):
			err = fmt.Errorf("%w: %s: --%s can't be less than 0", ErrUsage, cmd.CommandPath(), f.Name)
		}
	})
	return err
}

// requiring makes a command refuse to run without some flags.
func requiring(cmd *cobra.Command, flags ...string) *cobra.Command {
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		for _, flag := range flags {
			if !cmd.Flags().Changed(flag) {
				return fmt.Errorf("%w: %s: it needs --%s", ErrUsage, cmd.CommandPath(), flag)
			}
		}
		return nil
	}
	return cmd
}

// explained tells an answer that says no from none.
func explained(err error) error {
	var problem *client.Problem
	var lost *url.Error
	switch {
	case errors.As(err, &problem) && problem.Status == http.StatusUnauthorized:
		return fmt.Errorf("%w: put a token into PAWL_TOKEN, see pawl token create --help", err)
	case errors.As(err, &problem) && problem.Code == client.ProblemCodeCursorExpired:
		return fmt.Errorf("%w: to go on, use --after %s", err, problem.NextCursor)
	case errors.As(err, &problem) && problem.Status >= http.StatusBadGateway && problem.Status <= http.StatusGatewayTimeout:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case problem == nil && errors.As(err, &lost) && !errors.Is(err, context.Canceled):
		return fmt.Errorf("%w: %w: is it running? Set --url or PAWL_URL to use another address", ErrUnavailable, err)
	}
	return err
}

// group is a command that only has others.
func group(use, short, example string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Example: example,
		Long: short + ".\nThe service is that of --url, or PAWL_URL, and a token for it is in PAWL_TOKEN.",
	}
	cmd.AddCommand(commands...)
	cmd.RunE = func(*cobra.Command, []string) error {
		return fmt.Errorf("%w: %s: it needs a command, see pawl %[2]s --help", ErrUsage, use)
	}
	return cmd
}

// first are the first values; all of them with a limit of 0.
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

// show prints the one value that a command is about, if the service has answered with it: as JSON, or as table does.
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

// field is a fact about what a command shows.
type field struct{ name, value string }

// fields prints facts, each in a line. Those without a value are left out.
func (s *session) fields(all ...field) error {
	rows := output.NewRows(s.out)
	for _, f := range all {
		if f.value != "" {
			rows.Add(f.name, f.value)
		}
	}
	return rows.Flush()
}

// printDryRun says in a table that what it shows was not done. In JSON the order has dryRun.
func (s *session) printDryRun(dryRun bool) (err error) {
	if dryRun && s.format == output.Table {
		_, err = fmt.Fprintln(s.out, "dry run: the request would succeed; nothing was changed")
	}
	return err
}

// dash stands where there is nothing, so that columns can be counted.
func dash[T ~string](text T) string {
	if text == "" {
		return "-"
	}
	return string(text)
}

// moment writes a time; nothing if there is none.
func moment(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}
