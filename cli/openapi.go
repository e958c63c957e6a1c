package cli

import (
	"github.com/spf13/cobra"

	"pawl/httpapi"
)

// openapiCommand prints the description that the service serves, which is made from its types.
func openapiCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "openapi",
		Short:   "Print the description of the API (OpenAPI 3.1, YAML)",
		Example: "  pawl openapi > pawl.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(httpapi.Document())
			return err
		},
	}
}
