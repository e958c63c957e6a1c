package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"pawl/fsm/diagram"
)

func diagramCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "diagram",
		Short:   "Print the machine of an order",
		Example: "  pawl diagram\n  pawl diagram --format svg > machine.svg",
		RunE: func(cmd *cobra.Command, _ []string) error {
			draw, ok := map[string]func() string{"mermaid": diagram.Mermaid, "svg": diagram.SVG, "markdown": diagram.Markdown}[format]
			if !ok {
				return usageError{fmt.Errorf("format %q: mermaid, svg or markdown", format)}
			}
			_, err := io.WriteString(cmd.OutOrStdout(), draw())
			return err
		},
	}
	cmd.Flags().StringVar(&format, "format", "mermaid", "mermaid, svg or markdown")
	return cmd
}
