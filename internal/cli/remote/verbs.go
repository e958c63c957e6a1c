package remote

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

// verb is what a person asks of an order.
type verb struct {
	name, short string
	send        func(ctx context.Context, c *client.Client, orderID string, w wish) (*client.Order, error)
}

// wish is how a verb is asked for.
type wish struct {
	client.VerbBody
	dryRun bool
}

var verbs = []verb{
	{"cancel", "Stop an order, and undo what was done", func(ctx context.Context, c *client.Client, id string, w wish) (*client.Order, error) {
		return c.CancelOrder(ctx, id, &client.CancelOrderParams{DryRun: w.dryRun}, w.VerbBody)
	}},
	{"retry", "Try the step of an order again now, or start a failed order again", func(ctx context.Context, c *client.Client, id string, w wish) (*client.Order, error) {
		return c.RetryOrder(ctx, id, &client.RetryOrderParams{DryRun: w.dryRun}, client.RetryBody{Reason: w.Reason, RequestID: w.RequestID})
	}},
	{"pause", "Keep an order where it is", func(ctx context.Context, c *client.Client, id string, w wish) (*client.Order, error) {
		return c.PauseOrder(ctx, id, &client.PauseOrderParams{DryRun: w.dryRun}, w.VerbBody)
	}},
	{"resume", "Let a paused order go on", func(ctx context.Context, c *client.Client, id string, w wish) (*client.Order, error) {
		return c.ResumeOrder(ctx, id, &client.ResumeOrderParams{DryRun: w.dryRun}, w.VerbBody)
	}},
	{"approve", "Let an order start that waits for approval", func(ctx context.Context, c *client.Client, id string, w wish) (*client.Order, error) {
		return c.ApproveOrder(ctx, id, &client.ApproveOrderParams{DryRun: w.dryRun}, w.VerbBody)
	}},
	{"reject", "Refuse an order that waits for approval", func(ctx context.Context, c *client.Client, id string, w wish) (*client.Order, error) {
		return c.RejectOrder(ctx, id, &client.RejectOrderParams{DryRun: w.dryRun}, w.VerbBody)
	}},
}

func verbCommands() (commands []*cobra.Command) {
	for _, v := range verbs {
		commands = append(commands, v.command())
	}
	return commands
}

// command does a verb to orders, one after the other. It goes on after one that refuses it.
func (v verb) command() *cobra.Command {
	var w wish
	cmd := asking(&cobra.Command{
		Use: v.name + " ORDER...", Short: v.short, Args: cobra.MinimumNArgs(1),
		Example: "  pawl orders " + v.name + " order-1 --reason \"the customer called\"\n  pawl orders " + v.name + " order-1 --dry-run",
	}, func(ctx context.Context, s *session, args []string) error {
		var done []client.Order
		var errs []error
		for _, id := range args {
			order, err := v.send(ctx, s.Client, id, w)
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("order %q: %w", id, err))
			case s.format == output.JSON:
				errs = append(errs, output.Line(s.out, order))
			default:
				done = append(done, *order)
			}
		}
		if len(done) > 0 {
			errs = append(errs, orderRows.Print(s.out, s.format, output.All(done)), s.printDryRun(w.dryRun))
		}
		return errors.Join(errs...)
	})
	f := cmd.Flags()
	f.StringVar(&w.Reason, "reason", "", "why; kept in the history")
	f.StringVar(&w.RequestID, "request-id", "", "name of the request, so that it is done once however often it is given; without it, a new one")
	f.BoolVar(&w.dryRun, "dry-run", false, "say whether it applies, and do nothing")
	return cmd
}

func ordersRefundCommand() *cobra.Command {
	var body client.RefundBody
	var amount string
	var dryRun bool
	cmd := asking(&cobra.Command{
		Use: "refund ORDER --reason TEXT", Short: "Give money of a completed order back", Args: cobra.ExactArgs(1),
		Long: "Gives money of a completed order back. A refund with a --request-id is done once, however often it is given.",
		Example: "  pawl orders refund order-1 --amount 12.50 --reason \"one is broken\" --request-id ticket-1\n" +
			"  pawl orders refund order-1 --reason \"sent back\" --restock 1 --dry-run",
	}, func(ctx context.Context, s *session, args []string) error {
		if amount != "" { // empty, it was refused
			body.Amount = &amount
		}
		order, err := s.RefundOrder(ctx, args[0], &client.RefundOrderParams{DryRun: dryRun}, body)
		return show(s, order, err, func(o *client.Order) error {
			return errors.Join(s.printFields(o), s.printDryRun(dryRun))
		})
	})
	f := cmd.Flags()
	f.StringVar(&amount, "amount", "", "how much, as a decimal; without it, all that is left")
	f.StringVar(&body.Reason, "reason", "", "why; kept in the history, and told to an http provider")
	f.StringVar(&body.RequestID, "request-id", "", "name of the refund, so that it is done once; without it, a new one")
	f.IntVar(&body.Restock, "restock", 0, "how many units to put back into stock")
	f.BoolVar(&dryRun, "dry-run", false, "say whether it applies, and do nothing")
	return requiring(cmd, "reason")
}
