package remote

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

func ordersCommand() *cobra.Command {
	commands := []*cobra.Command{ordersListCommand(), ordersShowCommand(), ordersWatchCommand(), ordersProcessCommand(), ordersRefundCommand()}
	return group("orders", "List, show, process and change orders",
		"  pawl orders process order-1 --amount 99.99 --item widget\n"+
			"  pawl orders list --status failed,canceled --since 24h\n"+
			"  pawl orders show order-1\n"+
			"  pawl orders cancel order-1 --reason \"the customer called\"\n"+
			"  pawl orders list --limit 0 -o json | jq -r .orderId", append(commands, verbCommands()...)...)
}

func ordersListCommand() *cobra.Command {
	var filter client.ListOrdersParams
	var statuses []string
	var since time.Duration
	var limit int
	cmd := asking(&cobra.Command{
		Use: "list", Short: "List orders, the newest first",
		Example: "  pawl orders list --hold attention\n  pawl orders list --item widget --status completed --limit 0 -o json",
	}, func(ctx context.Context, s *session, _ []string) error {
		for _, status := range statuses {
			filter.Status = append(filter.Status, client.Status(status))
		}
		if since > 0 {
			filter.CreatedFrom = time.Now().Add(-since)
		}
		filter.Limit = pageOf(limit)
		return orderRows.Print(s.out, s.format, first(limit, s.Orders(ctx, filter)))
	})
	f := cmd.Flags()
	f.StringSliceVar(&statuses, "status", nil, "only orders in one of these statuses, with commas between them")
	f.StringVar((*string)(&filter.Hold), "hold", "", "only orders that wait for this: attention, approval, callback, paused, queued, retry or scheduled")
	f.StringVar(&filter.HoldReason, "hold-reason", "", "with --hold: only orders with this reason, or with this before a colon in it")
	f.StringVar(&filter.CustomerID, "customer", "", "only orders of this customer")
	f.StringVar(&filter.Item, "item", "", "only orders for this item")
	f.DurationVar(&since, "since", 0, "only orders that were created within this time, such as 24h; 0: all")
	f.IntVar(&limit, "limit", 50, "most orders; 0: all")
	return cmd
}

// pageMost is the most that a page of the API has.
const pageMost = 200

func pageOf(limit int) int {
	if limit <= 0 {
		return pageMost
	}
	return min(limit, pageMost)
}

var orderRows = output.Columns[client.Order]{
	Titles: []any{"order", "status", "hold", "amount", "item", "quantity", "customer", "created"},
	Of: func(o *client.Order) []any {
		return []any{o.OrderID, o.Status, dash(o.Hold), o.Amount + " " + o.Currency, o.Item, o.Quantity, dash(o.CustomerID), moment(o.CreatedAt)}
	},
}

func ordersShowCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use: "show ORDER", Short: "Show an order, what it waits for, and its history", Args: cobra.ExactArgs(1),
		Example: "  pawl orders show order-1\n  pawl orders show order-1 -o json | jq .allowedActions",
	}, func(ctx context.Context, s *session, args []string) error {
		order, err := s.GetOrder(ctx, args[0], nil)
		return show(s, order, err, func(o *client.Order) error {
			if err := s.printFields(o); err != nil {
				return err
			}
			fmt.Fprintln(s.out)
			return historyRows.Print(s.out, output.Table, s.Transitions(ctx, args[0], 0))
		})
	})
}

var historyRows = output.Columns[client.Transition]{
	Titles: []any{"seq", "at", "from", "to", "what", "actor", "reason"},
	Of: func(t *client.Transition) []any {
		return []any{t.Seq, moment(t.At), dash(t.From), t.To, dash(t.Verb), t.Actor, dash(t.Reason)}
	},
}

// printFields prints what is known of an order.
func (s *session) printFields(o *client.Order) error {
	all := []field{
		{"order", o.OrderID},
		{"status", string(o.Status)},
		{"failure", strings.TrimSuffix(o.Failure.Code+": "+o.Failure.Detail, ": ")},
		{"hold", strings.TrimSuffix(string(o.Hold)+": "+o.HoldReason, ": ")},
		{"resumes", moment(o.ResumesAt)},
		{"may do", strings.Join(o.AllowedActions, ", ")},
		{"amount", o.Amount + " " + o.Currency},
		{"refunded", o.Refunded},
		{"item", fmt.Sprintf("%d of %s", o.Quantity, o.Item)},
		{"customer", o.CustomerID},
		{"submitted by", o.SubmittedBy},
		{"created", moment(o.CreatedAt)},
		{"finished", moment(o.FinishedAt)},
	}
	for _, name := range slices.Sorted(maps.Keys(o.Metadata)) {
		all = append(all, field{"metadata", name + "=" + o.Metadata[name]})
	}
	for _, r := range o.Refunds {
		all = append(all, field{fmt.Sprintf("refund %d", r.Refund), fmt.Sprintf("%s %s %s", r.State, r.Amount, r.Reason)})
	}
	return s.fields(all...)
}
