// Command pawl is a retry-safe order service on PostgreSQL. It charges, reserves and confirms each order exactly
// once, whatever fails.
package main

import (
	"embed"
	"os"

	"pawl/internal/cli"
)

//go:generate sh -c "go run . openapi > httpapi/openapi.yaml"
//go:generate sh -c "go run . diagram --format markdown > docs/state-machine.md && go run . diagram --format svg > docs/state-machine.svg"

// pages are the documentation, with the files that it links to.
//
//go:embed README.md CHANGELOG.md client/README.md client/typescript/README.md docs/*.md docs/*.svg docs/console docs/operations
var pages embed.FS

func main() { os.Exit(cli.Main(pages)) }
