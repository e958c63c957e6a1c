package cli

import (
	"net/http"

	"pawl/console"
)

// consoleOf is the console of the service of this process.
func consoleOf(api http.Handler) http.Handler {
	return console.New(console.Config{Client: console.InMemory(api)})
}
