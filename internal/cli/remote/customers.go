package remote

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

func customersCommand() *cobra.Command {
	return group("customers", "Erase customers, and list erasures",
		"  pawl customers erase customer-9 --reason \"request 4711\" --request-id erasure-4711\n"+
			"  pawl customers erasures", customersEraseCommand(), customersErasuresCommand())
}

func customersEraseCommand() *cobra.Command {
	var body client.ErasureBody
	cmd := askingAll(&cobra.Command{
		Use: "erase CUSTOMER --reason TEXT --request-id ID", Short: "Replace what is stored about a customer by a pseudonym", Args: cobra.ExactArgs(1),
		Long: "Replaces the customer's id, payment methods, metadata, and all texts about the customer's orders. It can't be undone. All\n" +
			"orders must have ended. If it is interrupted, run it again with the same request ID. The reason and the ID are kept,\n" +
			"so they must not name the customer. It requires the role erase. See docs/security.md.",
		Example: "  pawl customers erase customer-9 --reason \"request 4711\" --request-id erasure-4711",
	}, func(ctx context.Context, s *session, args []string) error {
		body.CustomerID = args[0]
		done, err := s.CreateErasure(ctx, body)
		return show(s, done, err, s.printErasure)
	})
	f := cmd.Flags()
	f.StringVar(&body.Reason, "reason", "", "why; it is kept")
	f.StringVar(&body.RequestID, "request-id", "", "ID of the request, which makes repeating it safe; it is kept")
	return requiring(cmd, "reason", "request-id")
}

// printErasure prints an erasure, and who else has to erase the customer.
func (s *session) printErasure(e *client.Erasure) error {
	fmt.Fprintf(s.out, "%d orders are now of %s. Others who got data of the customer must erase it, too:\n", e.Orders, e.Pseudonym)
	for _, p := range e.Sent.Providers {
		fmt.Fprintf(s.out, "  %s of %d orders: %s, policy %d\n", p.Step, p.Orders, dash(p.Provider), p.Policy)
	}
	for _, w := range e.Sent.WebhookEndpoints {
		fmt.Fprintf(s.out, "  events of %d orders: %s %s\n", w.Orders, w.ID, w.URL)
	}
	_, err := fmt.Fprintf(s.out, "  %d files of pawl archive, readers of the feed, and backups\n", e.Sent.ArchiveFiles)
	return err
}

func customersErasuresCommand() *cobra.Command {
	return askingAll(&cobra.Command{Use: "erasures", Short: "List erasures of customers, newest first"},
		func(ctx context.Context, s *session, _ []string) error {
			page, err := s.ListErasures(ctx)
			if err != nil {
				return err
			}
			return erasureRows.Print(s.out, s.format, output.All(page.Erasures))
		})
}

var erasureRows = output.Columns[client.Erasure]{
	Titles: []any{"number", "requested", "by", "finished", "orders", "pseudonym", "reason"},
	Of: func(e *client.Erasure) []any {
		return []any{e.Number, moment(e.RequestedAt), e.Actor, dash(moment(e.FinishedAt)), e.Orders, e.Pseudonym, e.Reason}
	},
}
