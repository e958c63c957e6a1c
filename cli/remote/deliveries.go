package remote

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pawl/cli/output"
	"pawl/client"
)

func deliveriesCommand() *cobra.Command {
	var filter client.ListDeliveriesParams
	var limit int
	cmd := asking(&cobra.Command{
		Use: "deliveries ENDPOINT [DELIVERY]", Short: "List the deliveries of an endpoint, the newest first, or show one with its attempts", Args: cobra.RangeArgs(1, 2),
		Example: "  pawl webhooks deliveries whe_1 --state exhausted\n  pawl webhooks deliveries whe_1 1042",
	}, func(ctx context.Context, s *session, args []string) error {
		if len(args) == 2 {
			return s.showDelivery(ctx, args)
		}
		return s.listDeliveries(ctx, args[0], filter, limit)
	})
	f := cmd.Flags()
	f.StringVar((*string)(&filter.State), "state", "", "only deliveries in this state: pending, delivered, exhausted or skipped")
	f.StringVar(&filter.OrderID, "order", "", "only deliveries about this order")
	f.StringVar(&filter.Item, "item", "", "only deliveries about the stock of this item")
	f.IntVar(&limit, "limit", 50, "most deliveries; 0: all")
	return cmd
}

func (s *session) listDeliveries(ctx context.Context, endpoint string, filter client.ListDeliveriesParams, limit int) error {
	rows := s.deliveryRows()
	filter.Limit = pageOf(limit)
	for left := limit; ; {
		page, err := s.ListDeliveries(ctx, endpoint, &filter)
		if err != nil {
			return err
		}
		for _, d := range page.Deliveries {
			if err := rows.add(&d); err != nil {
				return err
			}
			if left--; left == 0 {
				return rows.flush()
			}
		}
		if filter.Cursor = page.NextCursor; filter.Cursor == "" {
			return rows.flush()
		}
	}
}

func (s *session) deliveryRows() *list[client.Delivery] {
	return newList(s, []any{"delivery", "event", "type", "about", "state", "attempts", "status", "at"}, func(d *client.Delivery) []any {
		return []any{d.Delivery, d.EventID, d.Type, cmp.Or(d.OrderID, d.Item), d.State, d.Attempts, dash(status(d.Status)), moment(latest(d))}
	})
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

// deliveryOf reads the two arguments that name a delivery.
func deliveryOf(args []string) (endpoint string, number int64, err error) {
	number, err = strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return "", 0, fmt.Errorf("%w: delivery %q: want its number", ErrUsage, args[1])
	}
	return args[0], number, nil
}

func (s *session) showDelivery(ctx context.Context, args []string) error {
	endpoint, number, err := deliveryOf(args)
	if err != nil {
		return err
	}
	d, err := s.GetDelivery(ctx, endpoint, number)
	if err != nil {
		return err
	}
	return s.printDelivery(d)
}

func (s *session) printDelivery(d *client.Delivery) error {
	if s.format == output.JSON {
		return output.Indented(s.out, d)
	}
	rows := s.deliveryRows()
	_ = rows.add(d) // a line of a table
	if err := rows.flush(); err != nil || len(d.Log)+len(d.Changes) == 0 {
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
	}, func(ctx context.Context, s *session, args []string) error {
		endpoint, number, err := deliveryOf(args)
		if err != nil {
			return err
		}
		d, err := s.ResendDelivery(ctx, endpoint, number, nil, body)
		if err != nil {
			return err
		}
		return s.printDelivery(d)
	})
	cmd.Flags().StringVar(&body.Reason, "reason", "", "why; kept with the delivery")
	return cmd
}

func deliverySkipCommand() *cobra.Command {
	var body client.SkipBody
	cmd := asking(&cobra.Command{
		Use: "skip ENDPOINT DELIVERY --reason TEXT", Short: "Give up a delivery, so that those behind it go on", Args: cobra.ExactArgs(2),
		Example: "  pawl webhooks skip whe_1 1042 --reason \"done by hand\"",
	}, func(ctx context.Context, s *session, args []string) error {
		endpoint, number, err := deliveryOf(args)
		if err != nil {
			return err
		}
		d, err := s.SkipDelivery(ctx, endpoint, number, nil, body)
		if err != nil {
			return err
		}
		return s.printDelivery(d)
	})
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
		if s.format == output.JSON {
			return output.Indented(s.out, sum)
		}
		return s.fields(field{"recovered", strconv.FormatInt(sum.Recovered, 10)})
	})
	cmd.Flags().DurationVar(&since, "since", 0, "what was tried last within this time, such as 24h")
	cmd.Flags().StringVar(&body.Reason, "reason", "", "why; kept in the access log")
	return requiring(cmd, "since")
}
