// Package docs has the pages of this folder that the service shows itself.
package docs

import _ "embed" // the pages are files

// Runbook is docs/runbook.md: what an order waits for, and what to do.
//
//go:embed runbook.md
var Runbook []byte
