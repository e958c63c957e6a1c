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

// consolePort is where a console is if nobody says otherwise. What a browser keeps for it, such as saved views, it keeps by port.
const consolePort = 3001

// remoteConsole is a console on this machine, of a service that may be anywhere.
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
		Long: "Serves the console of a service on an address of this machine, and prints that address. It has a key in it,\n" +
			"so that nobody else on this machine gets in. In the browser one may do what the token may do.\n" +
			"The service is that of --url, or PAWL_URL.",
		Example: "  pawl console --url https://pawl.shop.example --token-file ~/.pawl-token",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := refuseEmpty(cmd, args); err != nil {
				return err
			}
			c.url = strings.TrimSuffix(cmp.Or(c.url, os.Getenv("PAWL_URL"), defaultURL), "/")
			return c.serve(cmd.Context(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&c.url, "url", "", "URL of the service; default: PAWL_URL, or "+defaultURL)
	cmd.Flags().StringVar(&c.tokenFile, "token-file", "", "`file` with the token; else it is in PAWL_TOKEN. It is read again for every page")
	cmd.Flags().IntVar(&c.port, "port", consolePort, "port of this machine; 0 picks one")
	return cmd
}

// serve serves it until ctx ends.
func (c *remoteConsole) serve(ctx context.Context, out io.Writer) error {
	api, err := c.connect(nil)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
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
	for _, path := range []string{"GET /docs", "GET /problems/{code}"} { // to which pages link
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, c.url+r.URL.EscapedPath(), http.StatusSeeOther)
		})
	}
	local.Start(mux)
	fmt.Fprintf(out, "The console of %s, as %q: %s\n", c.url, me.Name, local.Link("/console"))
	select {
	case <-ctx.Done():
		return local.Close()
	case err := <-local.Failed():
		return err
	}
}

// connect returns the client of a page: another one when there is another token.
func (c *remoteConsole) connect(*http.Request) (*client.Client, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.api == nil || c.given != token {
		c.api, err = client.New(c.url, client.Options{Token: token, RetryFor: patience})
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
