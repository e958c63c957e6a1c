package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

func webhooksCommand() *cobra.Command {
	return group("webhooks", "Manage webhook endpoints and deliveries",
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
		Use: "create URL", Short: "Create an endpoint that receives events at a URL", Args: cobra.ExactArgs(1),
		Long: "Has every event from now on sent to a URL, those of an order in order. Prints the secret that they are signed with\n" +
			"(Standard Webhooks): it is not shown again.",
		Example: "  pawl webhooks create https://shop.example/pawl\n" +
			"  pawl webhooks create https://shop.example/pawl --type 'order.*' -o json | jq -r .secret",
	}, func(ctx context.Context, s *session, args []string) error {
		body.URL = args[0]
		return s.printEndpoint(s.CreateWebhookEndpoint(ctx, nil, body))
	})
	cmd.Flags().StringSliceVar(&body.Types, "type", nil, "only events of these types, comma-separated: order.completed, or order.* for all with that prefix")
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
		Use: "change ENDPOINT [URL]", Short: "Change the URL, event types or description of an endpoint", Args: cobra.RangeArgs(1, 2),
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
	f.StringSliceVar(&types, "type", nil, "only events of these types, comma-separated, in the place of those before")
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
		Use: "enable ENDPOINT", Short: "Enable a disabled endpoint, and resume where it stopped", Args: cobra.ExactArgs(1),
		Example: "  pawl webhooks enable whe_1\n  pawl webhooks enable whe_1 --from-now",
	}, func(ctx context.Context, s *session, args []string) error {
		var body client.EnableBody
		if fromNow {
			body.From = client.EnableBodyFromNow
		}
		return s.printEndpoint(s.EnableWebhookEndpoint(ctx, args[0], nil, body))
	})
	cmd.Flags().BoolVar(&fromNow, "from-now", false, "skip the events that occurred while it was disabled")
	return cmd
}

func webhooksDisableCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use: "disable ENDPOINT", Short: "Disable an endpoint", Args: cobra.ExactArgs(1), Example: "  pawl webhooks disable whe_1",
	}, func(ctx context.Context, s *session, args []string) error {
		return s.printEndpoint(s.DisableWebhookEndpoint(ctx, args[0], nil, client.AskBody{}))
	})
}

func webhooksRotateCommand() *cobra.Command {
	overlap := 24 * time.Hour
	cmd := asking(&cobra.Command{
		Use: "rotate ENDPOINT", Short: "Rotate the secret of an endpoint, and print the new one", Args: cobra.ExactArgs(1),
		Example: "  pawl webhooks rotate whe_1 --overlap 1h",
	}, func(ctx context.Context, s *session, args []string) error {
		seconds := int(overlap / time.Second)
		return s.printEndpoint(s.RotateWebhookSecret(ctx, args[0], nil, client.RotateSecretBody{OverlapSeconds: &seconds}))
	})
	cmd.Flags().DurationVar(&overlap, "overlap", overlap, "how long deliveries are also signed with the previous secret")
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

func deliveriesCommand() *cobra.Command {
	var filter client.ListDeliveriesParams
	var limit int
	cmd := asking(&cobra.Command{
		Use: "deliveries ENDPOINT [DELIVERY]", Short: "List the deliveries of an endpoint, the newest first, or show one with its attempts", Args: cobra.RangeArgs(1, 2),
		Example: "  pawl webhooks deliveries whe_1 --state exhausted\n  pawl webhooks deliveries whe_1 1042",
	}, func(ctx context.Context, s *session, args []string) error {
		if len(args) == 2 {
			return showDelivery(ctx, s, args)
		}
		filter.Limit = pageOf(limit)
		return deliveryRows.Print(s.out, s.format, first(limit, s.deliveries(ctx, args[0], filter)))
	})
	f := cmd.Flags()
	f.StringVar((*string)(&filter.State), "state", "", "only deliveries in this state: pending, delivered, exhausted or skipped")
	f.StringVar(&filter.OrderID, "order", "", "only deliveries about this order")
	f.StringVar(&filter.Item, "item", "", "only deliveries about the stock of this item")
	f.IntVar(&limit, "limit", 50, "most deliveries; 0: all")
	return cmd
}

// deliveries goes through the deliveries that a filter finds. It ends after the first error.
func (s *session) deliveries(ctx context.Context, endpoint string, filter client.ListDeliveriesParams) iter.Seq2[client.Delivery, error] {
	return func(yield func(client.Delivery, error) bool) {
		for {
			page, err := s.ListDeliveries(ctx, endpoint, &filter)
			if err != nil {
				yield(client.Delivery{}, err)
				return
			}
			for _, d := range page.Deliveries {
				if !yield(d, nil) {
					return
				}
			}
			if filter.Cursor = page.NextCursor; filter.Cursor == "" {
				return
			}
		}
	}
}

var deliveryRows = output.Columns[client.Delivery]{
	Titles: []any{"delivery", "event", "type", "about", "state", "attempts", "status", "at"},
	Of: func(d *client.Delivery) []any {
		return []any{d.Delivery, d.EventID, d.Type, cmp.Or(d.OrderID, d.Item), d.State, d.Attempts, dash(status(d.Status)), moment(latest(d))}
	},
}

// latest is when something became of a delivery, or will.
func latest(d *client.Delivery) time.Time {
	for _, at := range []time.Time{d.FinishedAt, d.DueAt} {
		if !at.IsZero() {
			return at
		}
	}
	return d.CreatedAt
}

func status(code int) string {
	if code == 0 {
		return ""
	}
	return strconv.Itoa(code)
}

// onDelivery is what a command does with the delivery that two arguments name: it prints what the service answers.
func onDelivery(do func(ctx context.Context, s *session, endpoint string, number int64) (*client.Delivery, error)) func(context.Context, *session, []string) error {
	return func(ctx context.Context, s *session, args []string) error {
		number, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return fmt.Errorf("%w: delivery %q: want its number", ErrUsage, args[1])
		}
		d, err := do(ctx, s, args[0], number)
		return show(s, d, err, s.printDelivery)
	}
}

// showDelivery shows a delivery as it is.
var showDelivery = onDelivery(func(ctx context.Context, s *session, endpoint string, number int64) (*client.Delivery, error) {
	return s.GetDelivery(ctx, endpoint, number)
})

func (s *session) printDelivery(d *client.Delivery) error {
	err := deliveryRows.Print(s.out, output.Table, output.All([]client.Delivery{*d}))
	if err != nil || len(d.Log)+len(d.Changes) == 0 {
		return err
	}
	fmt.Fprintln(s.out)
	attempts := output.NewRows(s.out, "at", "status", "ms", "answer")
	for _, a := range d.Log {
		attempts.Add(moment(a.At), dash(status(int(a.Status))), a.LatencyMs, dash(cmp.Or(a.Error, a.Answer)))
	}
	for _, c := range d.Changes {
		attempts.Add(moment(c.At), c.Verb, "-", c.Actor+" "+c.Reason)
	}
	return attempts.Flush()
}

func deliveryResendCommand() *cobra.Command {
	var body client.AskBody
	cmd := asking(&cobra.Command{
		Use: "resend ENDPOINT DELIVERY", Short: "Send a delivery again", Args: cobra.ExactArgs(2), Example: "  pawl webhooks resend whe_1 1042",
	}, onDelivery(func(ctx context.Context, s *session, endpoint string, number int64) (*client.Delivery, error) {
		return s.ResendDelivery(ctx, endpoint, number, nil, body)
	}))
	cmd.Flags().StringVar(&body.Reason, "reason", "", "why; kept with the delivery")
	return cmd
}

func deliverySkipCommand() *cobra.Command {
	var body client.SkipBody
	cmd := asking(&cobra.Command{
		Use: "skip ENDPOINT DELIVERY --reason TEXT", Short: "Skip a delivery, so that the ones behind it proceed", Args: cobra.ExactArgs(2),
		Example: "  pawl webhooks skip whe_1 1042 --reason \"done by hand\"",
	}, onDelivery(func(ctx context.Context, s *session, endpoint string, number int64) (*client.Delivery, error) {
		return s.SkipDelivery(ctx, endpoint, number, nil, body)
	}))
	cmd.Flags().StringVar(&body.Reason, "reason", "", "why; kept with the delivery")
	return requiring(cmd, "reason")
}

func deliveriesRecoverCommand() *cobra.Command {
	var since time.Duration
	var body client.RecoverBody
	cmd := asking(&cobra.Command{
		Use: "recover ENDPOINT --since DURATION", Short: "Resend exhausted deliveries", Args: cobra.ExactArgs(1),
		Example: "  pawl webhooks recover whe_1 --since 24h",
	}, func(ctx context.Context, s *session, args []string) error {
		body.Since = time.Now().Add(-since)
		sum := client.Recovery{More: true}
		for sum.More {
			some, err := s.RecoverDeliveries(ctx, args[0], nil, body)
			if err != nil {
				return err
			}
			sum.Recovered, sum.More = sum.Recovered+some.Recovered, some.More
		}
		return show(s, &sum, nil, func(r *client.Recovery) error {
			return s.fields(field{"recovered", strconv.FormatInt(r.Recovered, 10)})
		})
	})
	cmd.Flags().DurationVar(&since, "since", 0, "what was tried last within this time, such as 24h")
	cmd.Flags().StringVar(&body.Reason, "reason", "", "why; kept in the access log")
	return requiring(cmd, "since")
}
