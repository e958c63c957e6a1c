package cli

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"pawl/db"
	"pawl/httpapi"
	"pawl/internal/access"
)

func tokenTestCommand() *cobra.Command {
	cmd := tokenCommandOn("test", "Say what a token may do; exit 1 if it is not good", cobra.NoArgs,
		func(cmd *cobra.Command, _ []string, query *db.Queries) error {
			token, err := readToken(cmd.InOrStdin(), os.Getenv)
			if err != nil {
				return err
			}
			p, expires, err := access.Test(cmd.Context(), query, token)
			if p != nil {
				explainToken(cmd.OutOrStdout(), p, expires)
			}
			return err
		})
	cmd.Long = "Reads a token from PAWL_TOKEN or standard input, and says whose it is, when it expires, its limits, and each operation\n" +
		"of the API that it may do. It exits with 1 if the token is not known, has expired or was revoked."
	cmd.Example = "  pawl token test < token.txt"
	return cmd
}

// explainToken prints what a token may do, or might if it were good.
func explainToken(out io.Writer, p *access.Principal, expires time.Time) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "name\t%s\nroles\t%s\nexpires\t%s\n", p.Name, p.Roles, expires.UTC().Format(time.RFC3339))
	limit := func(name, unit string, most int64) {
		if most > 0 {
			fmt.Fprintf(table, "%s\tat most %d %s\n", name, most, unit)
			return
		}
		fmt.Fprintf(table, "%s\tno limit\n", name)
	}
	limit("rate", "requests in a second", int64(p.Limits.Rate))
	limit("in flight", "requests at one time", int64(p.Limits.InFlight))
	limit("bytes", "bytes of bodies in a second", p.Limits.Bytes)
	for _, operation := range httpapi.AllowedTo(p) {
		fmt.Fprintf(table, "may\t%s\n", operation)
	}
	_ = table.Flush()
}
