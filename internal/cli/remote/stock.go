package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

func stockCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "stock", Short: "Move stock between cells"}
	cmd.AddCommand(stockMoveCommand())
	return cmd
}

func stockMoveCommand() *cobra.Command {
	var m stockMove
	var from, to string
	s := &session{}
	cmd := &cobra.Command{
		Use: "move ITEM UNITS --from URL --to URL --request-id ID", Short: "Move units of an item from one cell to another",
		Args: cobra.ExactArgs(2),
		Long: "Takes units from one cell, and then gives them to another. In between nobody can sell them. If it fails or is killed,\n" +
			"repeat the command with the same request ID and token: what is done already is not done again. PAWL_TOKEN has a token\n" +
			"for both cells, or one for each, separated by a space.",
		Example: "  pawl stock move cup 20 --from http://cell0:3000 --to http://cell1:3000 --request-id monday-1",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		s.out, s.token, s.address = cmd.OutOrStdout(), os.Getenv("PAWL_TOKEN"), from+" "+to
		if err := rejectEmpty(cmd, args); err != nil {
			return err
		}
		m.item = args[0]
		if m.units, err = strconv.ParseInt(args[1], 10, 64); err != nil || m.units < 1 {
			return usage("UNITS must be 1 or more")
		}
		each, names, errs := s.cells(cmd.Context())
		switch err := errors.Join(errs...); {
		case err != nil:
			return fmt.Errorf("nothing was moved: %w", err)
		case len(each) != 2 || names[0].Cell == names[1].Cell:
			return usage("--from and --to must be two cells")
		}
		return m.run(cmd.Context(), s, each)
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "`URL` of the cell that has the units")
	f.StringVar(&to, "to", "", "`URL` of the cell that gets them")
	f.StringVar(&m.requestID, "request-id", "", "ID of the move, which makes repeating it safe")
	s.format.AddTo(f)
	return requiring(cmd, "from", "to", "request-id")
}

// stockMove is two changes of stock under one request id, of which each cell has one.
type stockMove struct {
	item, requestID string
	units           int64
}

// run takes before it gives: what is given first could be sold twice.
func (m stockMove) run(ctx context.Context, s *session, cells []session) error {
	taken, err := m.change(ctx, &cells[0], -m.units, "moved to another cell")
	if err != nil {
		return fmt.Errorf("take from %s: %w", cells[0].address, err)
	}
	given, err := m.change(ctx, &cells[1], m.units, "moved from another cell")
	if err != nil {
		return fmt.Errorf("%d of %q were taken from %s, and must still get to %s: repeat the command with the same request ID: %w",
			m.units, m.item, cells[0].address, cells[1].address, err)
	}
	rows := output.Columns[stockOfCell]{
		Titles: []any{"cell", "item", "on hand", "reserved", "available"},
		Of: func(c *stockOfCell) []any {
			return []any{c.URL, c.Item.Item, c.OnHand, c.Reserved, c.OnHand - c.Reserved}
		},
	}
	return rows.Print(s.out, s.format, output.All([]stockOfCell{{cells[0].address, *taken}, {cells[1].address, *given}}))
}

func (m stockMove) change(ctx context.Context, at *session, units int64, reason string) (*client.Item, error) {
	item, err := at.AdjustInventory(ctx, m.item, client.AdjustInventoryBody{Change: units, Reason: reason, RequestID: m.requestID})
	return item, explained(err)
}

// stockOfCell is the stock of an item after a move.
type stockOfCell struct {
	URL string `json:"url"`
	client.Item
}
