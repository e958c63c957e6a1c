package remote

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

func ordersRequestCommand() *cobra.Command {
	var limit int
	cmd := asking(&cobra.Command{
		Use: "request REQUEST-ID", Short: "Show what a bulk request did, and how far its orders are", Args: cobra.ExactArgs(1),
		Long: "Shows the orders to which requests with this ID were applied, as they are now, and their totals, and what bulk\n" +
			"requests were refused in the last month.",
		Example: "  pawl orders request incident-42\n  pawl orders request incident-42 --limit 0 -o json | jq -r 'select(.state==\"failed\") | .orderId'",
	}, func(ctx context.Context, s *session, args []string) error {
		var totals []client.RequestTotal
		var refused []client.RefusedOrder
		var refusedTotals []client.CurrencyTotal
		rows := func(yield func(client.RequestedOrder, error) bool) {
			for params := (client.GetRequestParams{Limit: pageOf(limit)}); ; {
				page, err := s.GetRequest(ctx, args[0], params)
				if err != nil {
					yield(client.RequestedOrder{}, err)
					return
				}
				if totals = page.Totals; params.Cursor == "" {
					refused, refusedTotals = page.Refused, page.RefusedTotals
				}
				for _, row := range page.Results {
					if !yield(row, nil) {
						return
					}
				}
				if params.Cursor = page.NextCursor; params.Cursor == "" {
					return
				}
			}
		}
		err := requestedRows.Print(s.out, s.format, first(limit, rows))
		if err != nil || s.format == output.JSON {
			return err
		}
		fmt.Fprintln(s.out)
		for _, t := range refusedTotals {
			totals = append(totals, client.RequestTotal{State: "refused", Currency: t.Currency, Orders: t.Orders, Amount: t.Amount})
		}
		err = totalRows.Print(s.out, output.Table, output.All(totals))
		if err != nil || len(refused) == 0 {
			return err
		}
		fmt.Fprintln(s.out)
		return refusedRows.Print(s.out, output.Table, output.All(refused))
	})
	cmd.Flags().IntVar(&limit, "limit", 50, "maximum number of orders; 0: all")
	return cmd
}

var requestedRows = output.Columns[client.RequestedOrder]{
	Titles: []any{"order", "state", "status", "hold", "amount", "code", "detail"},
	Of: func(r *client.RequestedOrder) []any {
		return []any{r.OrderID, r.State, r.Status, dash(r.Hold), r.Amount + " " + r.Currency, dash(r.Code), dash(r.Detail)}
	},
}

var totalRows = output.Columns[client.RequestTotal]{
	Titles: []any{"state", "orders", "amount"},
	Of:     func(t *client.RequestTotal) []any { return []any{t.State, t.Orders, t.Amount + " " + t.Currency} },
}

var refusedRows = output.Columns[client.RefusedOrder]{
	Titles: []any{"refused", "code", "detail"},
	Of:     func(r *client.RefusedOrder) []any { return []any{r.OrderID, dash(r.Code), dash(r.Detail)} },
}

func ordersStepResultCommand() *cobra.Command {
	var body client.StepResultBody
	var dryRun bool
	cmd := asking(&cobra.Command{
		Use: "step-result ORDER --step STEP --outcome OUTCOME --reason TEXT", Short: "Record the outcome of a step for which Pawl has no answer", Args: cobra.ExactArgs(1),
		Long: "Records the outcome of a step, or of its undo, as if the provider had answered. Look at the provider first: if you\n" +
			"record a charge that never happened, the order is not paid. It requires the role settle.",
		Example: "  pawl orders step-result order-1 --step charge --outcome done --reference ch_3P8xZq --reason \"seen in the dashboard\"\n" +
			"  pawl orders step-result order-1 --step charge --outcome refused --code card_declined --reason \"asked by phone\" --dry-run\n" +
			"  pawl orders step-result order-1 --step charge --refund 1 --outcome done --reason \"seen in the dashboard\"",
	}, func(ctx context.Context, s *session, args []string) error {
		order, err := s.SettleStepOfOrder(ctx, args[0], body, client.SettleStepOfOrderParams{DryRun: dryRun})
		return s.showChanged(order, err, dryRun)
	})
	f := cmd.Flags()
	f.StringVar((*string)(&body.Step), "step", "", "charge, reserve or confirm")
	f.StringVar((*string)(&body.Outcome), "outcome", "", "done; refused: it has not happened, and never will; not_done: it has not, and is retried")
	f.StringVar(&body.Reason, "reason", "", "how you know, for the history")
	f.StringVar(&body.Reference, "reference", "", "the provider's reference, such as the ID of the charge")
	f.StringVar(&body.Code, "code", "", "why it is not done, for programs")
	f.StringVar(&body.Detail, "detail", "", "why it is not done, for people")
	f.IntVar(&body.Refund, "refund", 0, "the outcome is that of this open refund, by its number")
	f.IntVar(&body.Capture, "capture", 0, "the outcome is that of this open capture, by its number")
	f.IntVar(&body.Void, "void", 0, "the outcome is that of this open void, by its number")
	f.StringVar(&body.RequestID, "request-id", "", "ID of the request, which makes repeating it safe; empty: a new one")
	dryRunFlag(f, &dryRun)
	completing(cmd, "step", "charge", "reserve", "confirm")
	completing(cmd, "outcome", "done", "refused", "not_done")
	return requiring(cmd, "step", "outcome", "reason")
}

// showChanged shows an order that a request has changed, or would change.
func (s *session) showChanged(order *client.Order, err error, dryRun bool) error {
	return show(s, order, err, func(o *client.Order) error { return errors.Join(s.printFields(o), s.printDryRun(dryRun)) })
}
