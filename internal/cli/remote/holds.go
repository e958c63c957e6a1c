package remote

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

// holds are all that an order can wait for: first what waits for people.
var holds = []client.OrderHold{
	client.OrderHoldAttention, client.OrderHoldApproval, client.OrderHoldPaused, client.OrderHoldCallback,
	client.OrderHoldRetry, client.OrderHoldQueued, client.OrderHoldScheduled,
}

func holdsCommand() *cobra.Command {
	only := ""
	limit := 50
	cmd := asking(&cobra.Command{
		Use: "holds", Short: "List the orders that wait: for what, why, and what one may do",
		Long: "Lists the orders that wait, the oldest first: for what, why, and what one may do. The runbook\n" +
			"(docs/runbook.md) has a section on each hold and reason.",
		Example: "  pawl holds --hold attention\n  pawl holds --limit 0 -o json | jq -r 'select(.hold==\"attention\") | .orderId'",
	}, func(ctx context.Context, s *session, _ []string) error {
		wanted := holds
		if only != "" {
			wanted = []client.OrderHold{client.OrderHold(only)}
		}
		waiting, err := s.waiting(ctx, wanted)
		if err != nil {
			return err
		}
		err = heldRows.Print(s.out, s.format, first(limit, output.All(waiting)))
		if more := len(waiting) - limit; err == nil && limit > 0 && more > 0 && s.format == output.Table {
			fmt.Fprintf(s.out, "and %d more\n", more)
		}
		return err
	})
	cmd.Flags().StringVar(&only, "hold", "", "only orders that wait for this: attention, approval, callback, paused, queued, retry or scheduled")
	cmd.Flags().IntVar(&limit, "limit", limit, "most orders; 0: all")
	return cmd
}

// waiting are the orders on hold, the oldest first.
func (s *session) waiting(ctx context.Context, holds []client.OrderHold) (orders []client.Order, _ error) {
	for _, hold := range holds {
		for order, err := range s.Orders(ctx, client.ListOrdersParams{Hold: client.ListOrdersParamsHold(hold), Limit: pageMost}) {
			if err != nil {
				return nil, err
			}
			orders = append(orders, order)
		}
	}
	slices.SortStableFunc(orders, func(a, b client.Order) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return orders, nil
}

var heldRows = output.Columns[client.Order]{
	Titles: []any{"order", "hold", "created", "resumes", "may do", "reason"},
	Of: func(o *client.Order) []any {
		return []any{o.OrderID, o.Hold, moment(o.CreatedAt), dash(moment(o.ResumesAt)), dash(strings.Join(o.AllowedActions, ",")), dash(o.HoldReason)}
	},
}
