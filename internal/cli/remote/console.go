package remote

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/internal/console"
)

// remoteConsole is a console on this machine for a service that may be elsewhere.
type remoteConsole struct {
	url       string // of the service
	tokenFile string // empty: the token is in PAWL_TOKEN
	port      int

	mu    sync.Mutex
	api   *client.Client
	given string // its token
}

func consoleCommand() *cobra.Command {
	var c remoteConsole
	cmd := &cobra.Command{
		Use: "console", Short: "Serve the console of a remote service on this machine",
		Long: "Serves the console of the service at --url or PAWL_URL on this machine, with the rights of the token. Prints its\n" +
			"address, which contains a key against other users of this machine.",
		Example: "  pawl console --url https://pawl.shop.example --token-file ~/.pawl-token",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := rejectEmpty(cmd, args); err != nil {
				return err
			}
			c.url = strings.TrimSuffix(cmp.Or(c.url, os.Getenv("PAWL_URL"), defaultURL), "/")
			return c.serve(cmd.Context(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&c.url, "url", "", "URL of the service; default: PAWL_URL, or "+defaultURL)
	cmd.Flags().StringVar(&c.tokenFile, "token-file", "", "`file` with the token, read again for every page; default: PAWL_TOKEN")
	cmd.Flags().IntVar(&c.port, "port", 3001, "port to listen on; 0 picks one") // browsers keep saved views by port
	return cmd
}

func (c *remoteConsole) serve(ctx context.Context, out io.Writer) error {
	api, err := c.connect(nil)
	if err != nil {
		return usage("%w", err)
	}
	me, err := api.GetCaller(ctx)
	if err != nil {
		return explained(err)
	}
	local, err := console.ListenLocal(c.port)
	if err != nil {
		return err
	}
	pages := local.Private(console.New(console.Config{Client: c.connect}))
	mux := http.NewServeMux()
	mux.Handle("/console", pages)
	mux.Handle("/console/", pages)
	mux.Handle("GET /{$}", http.RedirectHandler("/console", http.StatusSeeOther))
	for _, path := range []string{"GET /docs", "GET /docs/{page}", "GET /problems/{code}"} { // linked by pages
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, c.url+r.URL.EscapedPath(), http.StatusSeeOther)
		})
	}
	local.Start(mux)
	fmt.Fprintf(out, "console of %s, as %q: %s\n", c.url, me.Name, local.Link("/console"))
	select {
	case <-ctx.Done():
		return local.Close()
	case err := <-local.Failed():
		return err
	}
}

// connect returns the client for a page, and makes a new one if the token has changed.
func (c *remoteConsole) connect(*http.Request) (*client.Client, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.api == nil || c.given != token {
		c.api, err = client.New(c.url, client.Options{Token: token, RetryFor: retryFor})
		c.given = token
	}
	return c.api, err
}

func (c *remoteConsole) token() (string, error) {
	if c.tokenFile == "" {
		return os.Getenv("PAWL_TOKEN"), nil
	}
	text, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
