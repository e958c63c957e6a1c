package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"pawl/fsm"
	"pawl/internal/policy"
)

func policyCheckCommand() *cobra.Command {
	var order string
	cfg := config{Listen: "127.0.0.1"} // as `serve` does
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Find every mistake in a policy, and try it on an order",
		Long: "Reads a policy (- is standard input), prints every mistake with its line and column, and exits with 1 if\n" +
			"there is one. It needs no database and calls nobody. Give it the settings that the service has: they bound which\n" +
			"secrets and addresses a policy may name.",
		Example: `  pawl policy check shop.yaml --order '{"amount": 700, "item": "car", "customerId": "bob"}'`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := checkPolicy(args[0], cmd.InOrStdin(), cmd.OutOrStdout())
			if err != nil {
				return err
			}
			explainBounds(cmd.OutOrStdout(), p, cfg.Bounds)
			explainStock(cmd.OutOrStdout(), p)
			if order == "" {
				return nil
			}
			o, err := parseOrder(order, cfg.Currency)
			if err != nil {
				return usageError{fmt.Errorf("order: %w", err)}
			}
			explainOrder(cmd.OutOrStdout(), p, o)
			return nil
		},
	}
	cfg.boundsFlags(cmd.Flags())
	cmd.PreRunE = cfg.loadFirst
	cmd.Flags().StringVar(&order, "order", "", "an order as `JSON`, as POST /api/orders/process takes it: print what would happen to it")
	cmd.Flags().StringVar(&cfg.Currency, "currency", "USD", "currency of an order that names none")
	return cmd
}

// checkPolicy prints what is wrong with a policy file, or what it comes to.
func checkPolicy(path string, in io.Reader, out io.Writer) (*policy.Policy, error) {
	source, err := readPolicy(path, in)
	if err != nil {
		return nil, err
	}
	p, err := policy.Parse(source)
	var problems policy.Problems
	if errors.As(err, &problems) {
		for _, problem := range problems {
			fmt.Fprintf(out, "%s:%d:%d: %s\n", path, problem.Line, problem.Column, problem.Says())
		}
		return nil, fmt.Errorf("%s: mistakes: %d", path, len(problems))
	}
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "%s is a policy: charge %s, reserve %s, confirm %s\n", path, p.Charge.Executor, p.Reserve.Executor, p.Confirm.Executor)
	return p, nil
}

// explainBounds prints which steps could not be done with these settings, on this machine.
func explainBounds(out io.Writer, p *policy.Policy, bounds policy.Bounds) {
	for _, s := range fsm.Steps() {
		if err := bounds.Usable(p, s); err != nil {
			fmt.Fprintf(out, "here it could not %v\n", err)
		}
	}
}

// explainStock prints where stock that is tracked in the database does not count. Whether any is, only the database knows.
func explainStock(out io.Writer, p *policy.Policy) {
	if p.Reserve.Executor.Remote() {
		fmt.Fprintf(out, "reserve is done by %s: orders take nothing from stock that is tracked here (PUT /api/inventory/…)\n", p.Reserve.Executor)
	}
}

// maxPolicyFile bounds what is read of a file named by mistake; Parse says what is too long.
const maxPolicyFile = 1 << 20

// readPolicy reads a policy file; - is in.
func readPolicy(path string, in io.Reader) ([]byte, error) {
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read policy: %w", err)
		}
		defer file.Close()
		in = file
	}
	source, err := io.ReadAll(io.LimitReader(in, maxPolicyFile))
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return source, nil
}
