// Package docs embeds the pages of this folder that the service shows.
package docs

import _ "embed" // the pages are files

// Runbook is docs/runbook.md: why an order waits, and what to do.
//
//go:embed runbook.md
var Runbook []byte
