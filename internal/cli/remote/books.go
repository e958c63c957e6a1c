package remote

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/cli/output"
)

func booksCommand() *cobra.Command {
	table := string(client.GetVerificationReportParamsTableDays)
	cmd := asking(&cobra.Command{
		Use: "books [NUMBER]", Short: "List stored verifications of the books, or show the money of one by day", Args: cobra.MaximumNArgs(1),
		Long: "Lists the verifications of the books that servers or pawl verify --store have stored, newest first, and\n" +
			"the newest comparison with each provider. With NUMBER, shows what was charged, refunded and kept\n" +
			"of the orders of each day, or with --table when it was captured and refunded.",
		Example: "  pawl books\n  pawl books 12 -o csv",
	}, func(ctx context.Context, s *session, args []string) error {
		if len(args) == 0 {
			list, err := s.ListVerifications(ctx)
			if err != nil {
				return err
			}
			if s.format == output.CSV {
				return usage("-o csv needs the NUMBER of a verification")
			}
			if err := verificationRows.Print(s.out, s.format, output.All(list.Verifications)); err != nil || s.format != output.Table {
				return err
			}
			state, err := s.GetVerification(ctx)
			if err != nil || len(state.Comparisons) == 0 {
				return err
			}
			fmt.Fprintln(s.out)
			return comparisonRows.Print(s.out, output.Table, output.All(state.Comparisons))
		}
		number, err := strconv.ParseInt(args[0], 10, 64)
		if err != nil {
			return usage("NUMBER must be a number")
		}
		if s.format == output.CSV {
			text, err := s.BooksCSV(ctx, number, client.GetVerificationReportParamsTable(table))
			if err == nil {
				_, err = s.out.Write(text)
			}
			return err
		}
		report, err := s.GetVerificationReport(ctx, number)
		return show(s, report, err, func(r *client.VerificationReport) error {
			switch table {
			case "movements":
				return movedRows.Print(s.out, output.Table, output.All(r.Movements))
			case "months":
				return movedRows.Print(s.out, output.Table, output.All(r.Months))
			}
			return dayRows.Print(s.out, output.Table, output.All(r.Days))
		})
	})
	cmd.Flags().StringVar(&table, "table", table, "with NUMBER: days, on which orders were placed; or movements or months, when money moved")
	completing(cmd, "table", "days", "movements", "months")
	output.AllowCSV(cmd.Flags())
	return cmd
}

func movementsCommand() *cobra.Command {
	var filter client.ListMoneyMovementsParams
	cmd := asking(&cobra.Command{
		Use: "movements MONTH", Short: "List each charge, capture, refund and lost dispute of a month", Args: cobra.ExactArgs(1),
		Long:    "Lists what moved money in a month (UTC), such as 2026-11, or on a day: for bookkeeping. Negative amounts went back.",
		Example: "  pawl movements 2026-11 -o csv\n  pawl movements 2026-11-26 --currency USD",
	}, func(ctx context.Context, s *session, args []string) (err error) {
		if filter.From, filter.To, err = client.Period(args[0]); err != nil {
			return usage("%s", err)
		}
		if s.format == output.CSV {
			return s.printCSV(s.MoneyMovementsCSV(ctx, filter), 0)
		}
		return movementRows.Print(s.out, s.format, s.MoneyMovements(ctx, filter))
	})
	cmd.Flags().StringVar(&filter.Currency, "currency", "", "only movements in this currency")
	output.AllowCSV(cmd.Flags())
	return cmd
}

var movementRows = output.Columns[client.MoneyMovement]{
	Titles: []any{"at", "order", "kind", "amount", "currency", "reference"},
	Of: func(m *client.MoneyMovement) []any {
		return []any{moment(m.At), m.OrderID, m.Kind, m.Amount, m.Currency, dash(m.Reference)}
	},
}

var verificationRows = output.Columns[client.StoredVerification]{
	Titles: []any{"number", "started", "by", "result", "provider", "wrong", "not Pawl's"},
	Of: func(v *client.StoredVerification) []any {
		result, compared := string(v.State), "-"
		if v.State == client.StoredVerificationStateDone {
			result = "right"
		}
		if len(v.Wrong) > 0 {
			result = "wrong"
		}
		if v.Compared {
			compared = "compared"
		}
		return []any{v.Number, moment(v.StartedAt), v.StartedBy, result, compared, dash(strings.Join(v.Wrong, ",")), v.Others}
	},
}

var comparisonRows = output.Columns[client.Comparison]{
	Titles: []any{"number", "compared", "by", "result", "wrong", "with"},
	Of: func(c *client.Comparison) []any {
		result := "right"
		if !c.Right {
			result = "wrong"
		}
		var wrong []string
		for _, check := range c.Wrong {
			wrong = append(wrong, fmt.Sprintf("%s:%d", check.Name, check.Violations))
		}
		return []any{c.Number, moment(c.FinishedAt), c.StartedBy, result, dash(strings.Join(wrong, ",")), strings.Join(c.Providers, " ")}
	},
}

var movedRows = output.Columns[client.VerificationMoved]{
	Titles: []any{"period", "currency", "captured", "undone", "refunded", "lost", "kept"},
	Of: func(m *client.VerificationMoved) []any {
		return []any{m.Period, m.Currency, m.Captured, m.Undone, m.Refunded, m.Lost, m.Kept}
	},
}

var dayRows = output.Columns[client.VerificationMoney]{
	Titles: []any{"day", "currency", "orders", "charges", "charged", "refunded", "authorized", "voided", "kept", "under way", "disputed", "lost", "forgotten"},
	Of: func(d *client.VerificationMoney) []any {
		return []any{d.Day, d.Currency, d.Orders, d.Charges, d.Charged, d.Refunded, d.Authorized, d.Voided, d.Kept, d.UnderWay, d.Disputed, d.Lost, d.Forgotten}
	},
}
