package remote

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

// notDone is the end of an order that is not what was asked for.
type notDone struct{ order *client.Order }

func (e *notDone) Error() string {
	text := fmt.Sprintf("order %q is %s", e.order.OrderID, e.order.Status)
	if e.order.Failure.Code != "" {
		text += ": " + e.order.Failure.Code
	}
	return text
}

// ended is nil for an order that was done, or may still be.
func ended(o *client.Order) error {
	if o.Status == client.StatusFailed || o.Status == client.StatusCanceled {
		return &notDone{o}
	}
	return nil
}

func ordersProcessCommand() *cobra.Command {
	body := client.ProcessBody{Quantity: new(1)}
	var wait bool
	cmd := asking(&cobra.Command{
		Use: "process [ORDER] --amount AMOUNT --item ITEM", Short: "Process an order", Args: cobra.MaximumNArgs(1),
		Long: "Processes an order and prints what became of it. To give it again is safe: an order is done once. Without a\n" +
			"name for the order, it gets a new one each time. Ends with 1 if the order failed or was canceled.",
		Example: "  pawl orders process order-1 --amount 99.99 --item widget\n" +
			"  pawl orders process order-1 --amount 99.99 --item widget --wait",
	}, func(ctx context.Context, s *session, args []string) (err error) {
		if len(args) > 0 {
			body.OrderID = args[0]
		}
		if *body.Quantity < 1 {
			return fmt.Errorf("%w: --quantity must be 1 or more", ErrUsage)
		}
		process := s.Process
		if wait {
			process = s.ProcessAndWait
		}
		order, err := process(ctx, body)
		if order == nil {
			return err
		}
		printed := show(s, order, nil, func(o *client.Order) error {
			return orderRows.Print(s.out, output.Table, output.All([]client.Order{*o}))
		})
		return errors.Join(printed, err, ended(order))
	})
	f := cmd.Flags()
	f.StringVar(&body.Amount, "amount", "", "how much to charge, as a decimal")
	f.StringVar(&body.Currency, "currency", "", "ISO 4217; without it, the default of the service")
	f.StringVar(&body.Item, "item", "", "what is ordered")
	f.IntVar(body.Quantity, "quantity", 1, "how many of it")
	f.StringVar(&body.CustomerID, "customer", "", "who buys")
	f.StringToStringVar(&body.Metadata, "metadata", nil, "strings to keep with the order: name=value")
	f.BoolVar(&wait, "wait", false, "wait until the order has ended, also if a person must approve it")
	return requiring(cmd, "amount", "item")
}

// look is how long a look at an order waits for a change.
const look = "30s"

func ordersWatchCommand() *cobra.Command {
	return asking(&cobra.Command{
		Use: "watch ORDER", Short: "Print an order whenever it changes, until it has ended", Args: cobra.ExactArgs(1),
		Long:    "Prints an order now and whenever it changes, until it has ended.\nEnds with 1 if the order failed or was canceled.",
		Example: "  pawl orders watch order-1\n  pawl orders watch order-1 -o json | jq --unbuffered .status",
	}, func(ctx context.Context, s *session, args []string) error {
		order, err := s.GetOrder(ctx, args[0], nil)
		if err != nil {
			return err
		}
		lasting, err := s.connect(patienceForever)
		if err != nil {
			return err
		}
		s.printChange(order)
		for !order.Status.Final() {
			began := time.Now()
			next, err := lasting.GetOrder(ctx, args[0], &client.GetOrderParams{Wait: look, IfNoneMatch: order.ETag()})
			switch {
			case errors.Is(err, client.ErrNotModified):
				err = pauseUnless(ctx, time.Since(began) > time.Second)
			case err == nil:
				order = next
				s.printChange(order)
			}
			if err != nil {
				return err
			}
		}
		return ended(order)
	})
}

// pauseUnless waits a second, so that a service that does not let its callers wait is not asked without a pause.
func pauseUnless(ctx context.Context, waited bool) error {
	if waited {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second):
		return nil
	}
}

func (s *session) printChange(o *client.Order) {
	if s.format == output.JSON {
		_ = output.Line(s.out, o)
		return
	}
	line := fmt.Sprintf("%s  %-10s", moment(time.Now()), o.Status)
	if o.Hold != "" {
		line += fmt.Sprintf("  %s %s", o.Hold, o.HoldReason)
	}
	if o.Failure.Code != "" {
		line += fmt.Sprintf("  %s %s", o.Failure.Code, o.Failure.Detail)
	}
	fmt.Fprintln(s.out, output.Clean(line))
}
