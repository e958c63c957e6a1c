// Command pawl is a retry-safe order service on PostgreSQL. It charges, reserves and confirms each order exactly
// once, whatever fails.
package main

import (
	"os"

	"pawl/internal/cli"
)

//go:generate sh -c "go run . openapi > httpapi/openapi.yaml"
//go:generate sh -c "go run . diagram --format markdown > docs/state-machine.md && go run . diagram --format svg > docs/state-machine.svg"

func main() { os.Exit(cli.Main()) }
