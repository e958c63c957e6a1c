package remote

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

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
		Use: "skip ENDPOINT DELIVERY --reason TEXT", Short: "Give up a delivery, so that those behind it go on", Args: cobra.ExactArgs(2),
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
		Use: "recover ENDPOINT --since DURATION", Short: "Send again what was given up", Args: cobra.ExactArgs(1),
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
