package remote

import (
	"cmp"
	"context"
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
		var results []client.RequestedOrder
		var request *client.RequestPage // its first page
		for params := (client.GetRequestParams{Limit: pageOf(limit)}); request == nil || params.Cursor != "" && (limit <= 0 || len(results) < limit); {
			page, err := s.GetRequest(ctx, args[0], params)
			if err != nil {
				return err
			}
			request, params.Cursor = cmp.Or(request, page), page.NextCursor
			results = append(results, page.Results...)
		}
		err := requestedRows.Print(s.out, s.format, first(limit, output.All(results)))
		if err != nil || s.format == output.JSON {
			return err
		}
		totals := request.Totals
		for _, t := range request.RefusedTotals {
			totals = append(totals, client.RequestTotal{State: "refused", Currency: t.Currency, Orders: t.Orders, Amount: t.Amount})
		}
		fmt.Fprintln(s.out)
		if err := totalRows.Print(s.out, output.Table, output.All(totals)); err != nil || len(request.Refused) == 0 {
			return err
		}
		fmt.Fprintln(s.out)
		return refusedRows.Print(s.out, output.Table, output.All(request.Refused))
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
	cmd := verbOfOne("step-result", &body, &cobra.Command{
		Use: "step-result ORDER --step STEP --outcome OUTCOME --reason TEXT", Short: "Record the outcome of a step for which Pawl has no answer",
		Long: "Records the outcome of a step, or of its undo, as if the provider had answered. Look at the provider first: if you\n" +
			"record a charge that never happened, the order is not paid. It requires the role settle.",
		Example: "  pawl orders step-result order-1 --step charge --outcome done --reference ch_3P8xZq --reason \"seen in the dashboard\"\n" +
			"  pawl orders step-result order-1 --step charge --outcome refused --code card_declined --reason \"asked by phone\" --dry-run\n" +
			"  pawl orders step-result order-1 --step charge --refund 1 --outcome done --reason \"seen in the dashboard\"",
	})
	f := cmd.Flags()
	f.StringVar((*string)(&body.Step), "step", "", "charge, reserve or confirm")
	f.StringVar((*string)(&body.Outcome), "outcome", "", "done; refused: it has not happened, and never will; not_done: it has not, and is retried")
	f.StringVar(&body.Reference, "reference", "", "the provider's reference, such as the ID of the charge")
	f.StringVar(&body.Code, "code", "", "why it is not done, for programs")
	f.StringVar(&body.Detail, "detail", "", "why it is not done, for people")
	f.IntVar(&body.Refund, "refund", 0, "the outcome is that of this open refund, by its number")
	f.IntVar(&body.Capture, "capture", 0, "the outcome is that of this open capture, by its number")
	f.IntVar(&body.Void, "void", 0, "the outcome is that of this open void, by its number")
	f.StringVar(&body.Reason, "reason", "", "how you know, for the history")
	requestIDFlag(f, "request", &body.RequestID)
	completing(cmd, "step", "charge", "reserve", "confirm")
	completing(cmd, "outcome", "done", "refused", "not_done")
	return requiring(cmd, "step", "outcome", "reason")
}
