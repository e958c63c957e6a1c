package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

func webhooksCommand() *cobra.Command {
	return group("webhooks", "Have events sent to addresses, and see to their deliveries",
		"  pawl webhooks create https://shop.example/pawl --type order.completed,order.failed\n"+
			"  pawl webhooks test whe_1\n"+
			"  pawl webhooks deliveries whe_1 --state exhausted\n"+
			"  pawl webhooks recover whe_1 --since 24h",
		webhooksListCommand(), webhooksCreateCommand(), webhooksShowCommand(), webhooksChangeCommand(), webhooksDeleteCommand(), webhooksEnableCommand(), webhooksDisableCommand(),
		webhooksRotateCommand(), webhooksTestCommand(), deliveriesCommand(), deliveryResendCommand(), deliverySkipCommand(), deliveriesRecoverCommand())
}

func webhooksListCommand() *cobra.Command {
	return asking(&cobra.Command{Use: "list", Short: "List all endpoints", Example: "  pawl webhooks list"},
		func(ctx context.Context, s *session, _ []string) error {
			list, err := s.ListWebhookEndpoints(ctx)
			if err != nil {
				return err
			}
			return endpointRows.Print(s.out, s.format, output.All(list.Endpoints))
		})
}

var endpointRows = output.Columns[client.WebhookEndpoint]{
	Titles: []any{"endpoint", "state", "url", "types", "failures", "failing since"},
	Of: func(e *client.WebhookEndpoint) []any {
		return []any{e.ID, e.State, e.URL, typesOf(e), e.Failures, dash(moment(e.FailingSince))}
	},
}

func typesOf(e *client.WebhookEndpoint) string {
	if len(e.Types) == 0 {
		return "all"
	}
	return strings.Join(e.Types, ",")
}

// printEndpoint prints what is known of an endpoint that the service has answered with, and its secret where the answer has it.
func (s *session) printEndpoint(endpoint *client.WebhookEndpoint, err error) error {
	return show(s, endpoint, err, func(e *client.WebhookEndpoint) error {
		return s.fields(
			field{"endpoint", e.ID}, field{"url", e.URL}, field{"description", e.Description}, field{"types", typesOf(e)},
			field{"state", strings.TrimSpace(string(e.State) + " " + e.DisabledReason)}, field{"failing since", moment(e.FailingSince)},
			field{"paused until", moment(e.PausedUntil)}, field{"event", fmt.Sprint(e.EventNo)},
			field{"created", moment(e.CreatedAt) + " by " + e.CreatedBy},
			field{"secret", e.Secret}, field{"secret before", until(e.PreviousSecretUntil)})
	})
}

func until(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return "good until " + moment(at)
}

func webhooksCreateCommand() *cobra.Command {
	var body client.WebhookEndpointBody
	cmd := asking(&cobra.Command{
		Use: "create URL", Short: "Have events sent to a URL", Args: cobra.ExactArgs(1),
		Long: "Has every event from now on sent to a URL, those of an order in order. Prints the secret that they are signed with\n" +
			"(Standard Webhooks): it is not shown again.",
		Example: "  pawl webhooks create https://shop.example/pawl\n" +
			"  pawl webhooks create https://shop.example/pawl --type 'order.*' -o json | jq -r .secret",
	}, func(ctx context.Context, s *session, args []string) error {
		body.URL = args[0]
		return s.printEndpoint(s.CreateWebhookEndpoint(ctx, nil, body))
	})
	cmd.Flags().StringSliceVar(&body.Types, "type", nil, "only events of these types, with commas between them: order.completed, or order.* for all that begin so")
	cmd.Flags().StringVar(&body.Description, "description", "", "what it is for")
	return cmd
}

func webhooksShowCommand() *cobra.Command {
	return asking(&cobra.Command{Use: "show ENDPOINT", Short: "Show an endpoint", Args: cobra.ExactArgs(1), Example: "  pawl webhooks show whe_1"},
		func(ctx context.Context, s *session, args []string) error {
			return s.printEndpoint(s.GetWebhookEndpoint(ctx, args[0]))
		})
}

func webhooksChangeCommand() *cobra.Command {
	var types []string
	var allTypes bool
	var description string
	cmd := asking(&cobra.Command{
		Use: "change ENDPOINT [URL]", Short: "Have an endpoint be at another URL, or get other events", Args: cobra.RangeArgs(1, 2),
		Long: "Changes what is given, and leaves the rest as it is. What was not delivered yet goes to the new URL; the types\n" +
			"count for events that are to come. Ends with 1 if somebody else has changed the endpoint at the same moment.",
		Example: "  pawl webhooks change whe_1 https://shop.example/events\n" +
			"  pawl webhooks change whe_1 --type order.completed,order.failed",
	}, func(ctx context.Context, s *session, args []string) error {
		var was http.Response
		endpoint, err := s.GetWebhookEndpoint(ctx, args[0], client.WithResponse(&was))
		if err != nil {
			return err
		}
		body := client.WebhookEndpointBody{
			URL: append(args, endpoint.URL)[1], Types: endpoint.Types, Description: cmp.Or(description, endpoint.Description),
		}
		if allTypes {
			body.Types = nil
		} else if types != nil {
			body.Types = types
		}
		params := client.ChangeWebhookEndpointParams{IfMatch: was.Header.Get("ETag")}
		return s.printEndpoint(s.ChangeWebhookEndpoint(ctx, args[0], &params, body))
	})
	f := cmd.Flags()
	f.StringSliceVar(&types, "type", nil, "only events of these types, with commas between them, in the place of those before")
	f.BoolVar(&allTypes, "all-types", false, "events of all types")
	f.StringVar(&description, "description", "", "what it is for")
	cmd.MarkFlagsMutuallyExclusive("type", "all-types")
	return cmd
}

func webhooksDeleteCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use: "delete ENDPOINT", Short: "Remove an endpoint, and its deliveries", Args: cobra.ExactArgs(1),
		Long: "Removes an endpoint, and its deliveries. To stop for a while, disable it.", Example: "  pawl webhooks delete whe_1",
	}, func(ctx context.Context, s *session, args []string) error {
		return s.DeleteWebhookEndpoint(ctx, args[0], nil)
	})
}

func webhooksEnableCommand() *cobra.Command {
	var fromNow bool
	cmd := asking(&cobra.Command{
		Use: "enable ENDPOINT", Short: "Send to a disabled endpoint again, from where it stood", Args: cobra.ExactArgs(1),
		Example: "  pawl webhooks enable whe_1\n  pawl webhooks enable whe_1 --from-now",
	}, func(ctx context.Context, s *session, args []string) error {
		var body client.EnableBody
		if fromNow {
			body.From = client.EnableBodyFromNow
		}
		return s.printEndpoint(s.EnableWebhookEndpoint(ctx, args[0], nil, body))
	})
	cmd.Flags().BoolVar(&fromNow, "from-now", false, "skip what happened meanwhile")
	return cmd
}

func webhooksDisableCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use: "disable ENDPOINT", Short: "Send nothing to an endpoint for a while", Args: cobra.ExactArgs(1), Example: "  pawl webhooks disable whe_1",
	}, func(ctx context.Context, s *session, args []string) error {
		return s.printEndpoint(s.DisableWebhookEndpoint(ctx, args[0], nil, client.AskBody{}))
	})
}

func webhooksRotateCommand() *cobra.Command {
	overlap := 24 * time.Hour
	cmd := asking(&cobra.Command{
		Use: "rotate ENDPOINT", Short: "Give an endpoint another secret, and print it", Args: cobra.ExactArgs(1),
		Example: "  pawl webhooks rotate whe_1 --overlap 1h",
	}, func(ctx context.Context, s *session, args []string) error {
		seconds := int(overlap / time.Second)
		return s.printEndpoint(s.RotateWebhookSecret(ctx, args[0], nil, client.RotateSecretBody{OverlapSeconds: &seconds}))
	})
	cmd.Flags().DurationVar(&overlap, "overlap", overlap, "for how long deliveries are signed with the secret before, too")
	return cmd
}

func webhooksTestCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use: "test ENDPOINT", Short: "Send a test event to an endpoint now", Args: cobra.ExactArgs(1),
		Long: "Sends an event of the type webhook_endpoint.test to an endpoint, now, and prints what came back.\nEnds with 1 if it was not answered with 2xx.", Example: "  pawl webhooks test whe_1",
	}, func(ctx context.Context, s *session, args []string) error {
		outcome, err := s.TestWebhookEndpoint(ctx, args[0])
		err = show(s, outcome, err, func(o *client.TestOutcome) error {
			return s.fields(field{"event", o.EventID}, field{"status", answered(o.Status, o.Error)},
				field{"latency", fmt.Sprintf("%d ms", o.LatencyMs)}, field{"answer", o.Answer})
		})
		if err == nil && !outcome.Delivered {
			err = errors.New("the test event was not delivered")
		}
		return err
	})
}

// answered is the status of an answer, or why there was none.
func answered[N ~int | ~int32 | ~int64](status N, why string) string {
	if status == 0 {
		return "no answer: " + why
	}
	return fmt.Sprint(status)
}
