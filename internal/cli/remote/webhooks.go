package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
		endpointsCommand(), createCommand(), changeCommand(), enableCommand(), rotateCommand(), testCommand(),
		onEndpoint("show ENDPOINT", "Show an endpoint", (*client.Client).GetWebhookEndpoint),
		onEndpoint("disable ENDPOINT", "Disable an endpoint",
			func(c *client.Client, ctx context.Context, id string, _ ...client.CallOption) (*client.WebhookEndpoint, error) {
				return c.DisableWebhookEndpoint(ctx, id, client.VerbBody{})
			}),
		asking(&cobra.Command{
			Use: "delete ENDPOINT", Short: "Delete an endpoint and its deliveries", Args: cobra.ExactArgs(1),
			Long: "Deletes an endpoint and its deliveries. To stop deliveries for a while, disable it.",
		}, func(ctx context.Context, s *session, args []string) error {
			return s.DeleteWebhookEndpoint(ctx, args[0])
		}),
		deliveriesCommand(), recoverCommand(),
		changeDelivery("resend ENDPOINT DELIVERY", "Send a delivery again", (*client.Client).ResendDelivery),
		requiring(changeDelivery("skip ENDPOINT DELIVERY --reason TEXT", "Skip a delivery, so that the ones behind it proceed",
			(*client.Client).SkipDelivery), "reason"))
}

// onEndpoint returns a command about the endpoint in its argument. It prints the endpoint that do returns.
func onEndpoint(use, short string, do func(*client.Client, context.Context, string, ...client.CallOption) (*client.WebhookEndpoint, error),
) *cobra.Command {
	return asking(&cobra.Command{Use: use, Short: short, Args: cobra.ExactArgs(1)},
		func(ctx context.Context, s *session, args []string) error {
			return s.printEndpoint(do(s.Client, ctx, args[0]))
		})
}

func endpointsCommand() *cobra.Command {
	return asking(&cobra.Command{Use: "list", Short: "List all endpoints"}, func(ctx context.Context, s *session, _ []string) error {
		list, err := s.ListWebhookEndpoints(ctx)
		if err != nil {
			return err
		}
		return endpointRows.Print(s.out, s.format, output.All(list.Endpoints))
	})
}

var endpointRows = output.Columns[client.WebhookEndpoint]{
	Titles: []any{"endpoint", "state", "url", "types", "undelivered", "failures", "failing since"},
	Of: func(e *client.WebhookEndpoint) []any {
		return []any{e.ID, e.State, e.URL, typesOf(e), atLeast(e.Undelivered, e.MoreUndelivered), e.Failures, dash(moment(e.FailingSince))}
	},
}

func typesOf(e *client.WebhookEndpoint) string { return cmp.Or(strings.Join(e.Types, ","), "all") }

// printEndpoint prints an endpoint, and its secret if the answer has it.
func (s *session) printEndpoint(endpoint *client.WebhookEndpoint, err error) error {
	return show(s, endpoint, err, func(e *client.WebhookEndpoint) error {
		previous := strings.TrimSuffix("valid until "+moment(e.PreviousSecretUntil), "valid until ")
		return s.fields("endpoint", e.ID, "url", e.URL, "description", e.Description, "types", typesOf(e),
			"state", strings.TrimSpace(string(e.State)+" "+e.DisabledReason), "failing since", moment(e.FailingSince),
			"paused until", moment(e.PausedUntil), "event", fmt.Sprint(e.EventNo), "undelivered", atLeast(e.Undelivered, e.MoreUndelivered),
			"created", moment(e.CreatedAt)+" by "+e.CreatedBy, "secret", e.Secret, "previous secret", previous)
	})
}

func createCommand() *cobra.Command {
	var body client.WebhookEndpointBody
	cmd := asking(&cobra.Command{
		Use: "create URL", Short: "Create an endpoint that receives events at a URL", Args: cobra.ExactArgs(1),
		Long: "Sends new events to a URL, in order for each order, and prints the secret that signs them (Standard Webhooks), which is\n" +
			"not shown again. Without --type, it sends all changes of orders and of stock, but no tries and calls, such as\n" +
			"order.step_called: --type must name those. See docs/events.md.",
		Example: "  pawl webhooks create https://shop.example/pawl\n" +
			"  pawl webhooks create https://shop.example/pawl --type 'order.*' -o json | jq -r .secret",
	}, func(ctx context.Context, s *session, args []string) error {
		body.URL = args[0]
		return s.printEndpoint(s.CreateWebhookEndpoint(ctx, body))
	})
	cmd.Flags().StringSliceVar(&body.Types, "type", nil, typesHelp)
	cmd.Flags().StringVar(&body.Description, "description", "", "purpose of the endpoint")
	return cmd
}

const typesHelp = "only events of these types, comma-separated: order.completed, or order.* for all changes of orders"

func changeCommand() *cobra.Command {
	var types []string
	var allTypes bool
	var description string
	cmd := asking(&cobra.Command{
		Use: "change ENDPOINT [URL]", Short: "Change the URL, event types or description of an endpoint", Args: cobra.RangeArgs(1, 2),
		Long: "Changes only what is given. Undelivered events go to the new URL; the types apply to new events. Exits with 1 if the\n" +
			"endpoint was changed at the same time.",
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
		if types != nil || allTypes {
			body.Types = types
		}
		params := client.ChangeWebhookEndpointParams{IfMatch: was.Header.Get("ETag")}
		return s.printEndpoint(s.ChangeWebhookEndpoint(ctx, args[0], body, params))
	})
	f := cmd.Flags()
	f.StringSliceVar(&types, "type", nil, typesHelp)
	f.BoolVar(&allTypes, "all-types", false, "all changes of orders and of stock")
	f.StringVar(&description, "description", "", "purpose of the endpoint")
	cmd.MarkFlagsMutuallyExclusive("type", "all-types")
	return cmd
}

func enableCommand() *cobra.Command {
	var fromNow bool
	cmd := onEndpoint("enable ENDPOINT", "Enable a disabled endpoint, and resume where it stopped",
		func(c *client.Client, ctx context.Context, id string, _ ...client.CallOption) (*client.WebhookEndpoint, error) {
			from := map[bool]client.EnableBodyFrom{true: client.EnableBodyFromNow}[fromNow]
			return c.EnableWebhookEndpoint(ctx, id, client.EnableBody{From: from})
		})
	cmd.Flags().BoolVar(&fromNow, "from-now", false, "skip the events that occurred while it was disabled")
	return cmd
}

func rotateCommand() *cobra.Command {
	var overlap time.Duration
	cmd := onEndpoint("rotate ENDPOINT", "Rotate the secret of an endpoint, and print the new one",
		func(c *client.Client, ctx context.Context, id string, _ ...client.CallOption) (*client.WebhookEndpoint, error) {
			return c.RotateWebhookSecret(ctx, id, client.RotateSecretBody{OverlapSeconds: new(int(overlap / time.Second))})
		})
	cmd.Flags().DurationVar(&overlap, "overlap", 24*time.Hour, "how long deliveries are also signed with the previous secret")
	return cmd
}

func testCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use: "test ENDPOINT", Short: "Send a test event to an endpoint now", Args: cobra.ExactArgs(1),
		Long: "Sends an event of the type webhook_endpoint.test to an endpoint now, and prints the answer.\n" +
			"Exits with 1 if it is not 2xx.",
	}, func(ctx context.Context, s *session, args []string) error {
		outcome, err := s.TestWebhookEndpoint(ctx, args[0])
		err = show(s, outcome, err, func(o *client.TestOutcome) error {
			status := cmp.Or(statusOf(o.Status), "no answer: "+o.Error)
			return s.fields("event", o.EventID, "status", status, "latency", fmt.Sprintf("%d ms", o.LatencyMs), "answer", o.Answer)
		})
		if err == nil && !outcome.Delivered {
			err = errors.New("the test event was not delivered")
		}
		return err
	})
}

func deliveriesCommand() *cobra.Command {
	var filter client.ListDeliveriesParams
	var limit int
	cmd := asking(&cobra.Command{
		Use: "deliveries ENDPOINT [DELIVERY]", Short: "List the deliveries of an endpoint, newest first, or show one with its attempts",
		Args:    cobra.RangeArgs(1, 2),
		Example: "  pawl webhooks deliveries whe_1 --state exhausted\n  pawl webhooks deliveries whe_1 1042",
	}, func(ctx context.Context, s *session, args []string) error {
		if len(args) == 2 {
			return onDelivery((*client.Client).GetDelivery)(ctx, s, args)
		}
		filter.Limit = pageOf(limit)
		return deliveryRows.Print(s.out, s.format, first(limit, s.Deliveries(ctx, args[0], filter)))
	})
	f := cmd.Flags()
	f.StringVar((*string)(&filter.State), "state", "", "only deliveries in this state: pending, delivered, exhausted or skipped")
	f.StringVar(&filter.OrderID, "order", "", "only deliveries about this order")
	f.StringVar(&filter.Item, "item", "", "only deliveries about the stock of this item")
	f.IntVar(&limit, "limit", 50, "maximum number of deliveries; 0: all")
	return cmd
}

var deliveryRows = output.Columns[client.Delivery]{
	Titles: []any{"delivery", "event", "type", "about", "state", "attempts", "status", "at"},
	Of: func(d *client.Delivery) []any {
		at := cmp.Or(d.FinishedAt, d.DueAt, d.CreatedAt)
		return []any{d.Delivery, d.EventID, d.Type, cmp.Or(d.OrderID, d.Item), d.State, d.Attempts, dash(statusOf(d.Status)), moment(at)}
	},
}

// statusOf is the HTTP status of an answer; empty: there was none.
func statusOf[N ~int | ~int64](code N) string { return strings.TrimPrefix(fmt.Sprint(code), "0") }

// onDelivery runs do with the delivery that two arguments name, and prints the one that it returns.
func onDelivery(do func(*client.Client, context.Context, string, int64, ...client.CallOption) (*client.Delivery, error)) action {
	return func(ctx context.Context, s *session, args []string) error {
		number, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return usage("DELIVERY must be a number, not %q", args[1])
		}
		d, err := do(s.Client, ctx, args[0], number)
		return show(s, d, err, s.printDelivery)
	}
}

// changeDelivery returns a command that changes a delivery, with a reason.
func changeDelivery[B client.VerbBody | client.SkipBody](use, short string,
	do func(*client.Client, context.Context, string, int64, B, ...client.CallOption) (*client.Delivery, error),
) *cobra.Command {
	var body client.VerbBody
	cmd := asking(&cobra.Command{Use: use, Short: short, Args: cobra.ExactArgs(2)},
		onDelivery(func(c *client.Client, ctx context.Context, endpoint string, number int64, _ ...client.CallOption) (*client.Delivery, error) {
			return do(c, ctx, endpoint, number, B(body))
		}))
	cmd.Flags().StringVar(&body.Reason, "reason", "", "reason, for the log of the delivery")
	return cmd
}

func (s *session) printDelivery(d *client.Delivery) error {
	err := deliveryRows.Print(s.out, output.Table, output.All([]client.Delivery{*d}))
	if err != nil || len(d.Log)+len(d.Changes) == 0 {
		return err
	}
	fmt.Fprintln(s.out)
	attempts := output.NewRows(s.out, "at", "status", "ms", "answer")
	for _, a := range d.Log {
		attempts.Add(moment(a.At), dash(statusOf(a.Status)), a.LatencyMs, dash(cmp.Or(a.Error, a.Answer)))
	}
	for _, c := range d.Changes {
		attempts.Add(moment(c.At), c.Verb, "-", c.Actor+" "+c.Reason)
	}
	return attempts.Flush()
}

func recoverCommand() *cobra.Command {
	var since time.Duration
	var body client.RecoverBody
	cmd := asking(&cobra.Command{Use: "recover ENDPOINT --since DURATION", Short: "Resend exhausted deliveries", Args: cobra.ExactArgs(1)},
		func(ctx context.Context, s *session, args []string) error {
			body.Since = time.Now().Add(-since)
			sum := client.Recovery{More: true}
			for sum.More {
				some, err := s.RecoverDeliveries(ctx, args[0], body)
				if err != nil {
					return err
				}
				sum.Recovered, sum.More = sum.Recovered+some.Recovered, some.More
			}
			return show(s, &sum, nil, func(r *client.Recovery) error {
				return s.fields("recovered", strconv.FormatInt(r.Recovered, 10))
			})
		})
	cmd.Flags().DurationVar(&since, "since", 0, "only deliveries last tried within this time, such as 24h")
	cmd.Flags().StringVar(&body.Reason, "reason", "", "reason, for the access log")
	return requiring(cmd, "since")
}
