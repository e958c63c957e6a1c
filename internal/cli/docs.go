package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pawl/docs"
	"pawl/internal/console"
)

func docsCommand(pages fs.FS) *cobra.Command {
	var listen, dir string
	cmd := &cobra.Command{
		Use: "docs", Short: "Serve the documentation to a browser, or write it as a site",
		Long: "Serves the documentation of this version, which is part of the program, until it is interrupted. With --to, it writes\n" +
			"the same pages into a new directory instead, for any server of static files. They have no scripts and load nothing from\n" +
			"elsewhere.",
		Example: "  pawl docs\n  pawl docs --to /var/www/pawl",
		RunE: func(cmd *cobra.Command, _ []string) error {
			files, err := docs.Site(pages, console.Stylesheet())
			if err != nil {
				return err
			}
			if dir != "" {
				return os.CopyFS(dir, files)
			}
			return serveFiles(cmd.Context(), files, listen, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:3002", "`host:port` to listen on; port 0 picks one")
	cmd.Flags().StringVar(&dir, "to", "", "new `directory` to write the pages into")
	cmd.MarkFlagsMutuallyExclusive("listen", "to")
	return cmd
}

// serveFiles serves a site until ctx ends.
func serveFiles(ctx context.Context, files fs.FS, listen string, out io.Writer) error {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{Handler: pagesOf(files), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	fmt.Fprintf(out, "documentation at http://%s/\n", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// pagesOf serves a site, and a page for what it does not have, such as a list of a folder.
func pagesOf(files fs.FS) http.Handler {
	site := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := cmp.Or(strings.Trim(path.Clean(r.URL.Path), "/"), ".")
		found, err := fs.Stat(files, name)
		if err == nil && found.IsDir() {
			_, err = fs.Stat(files, path.Join(name, "index.html"))
		}
		if err == nil {
			site.ServeHTTP(w, r)
			return
		}
		missing, _ := fs.ReadFile(files, docs.Missing) // every site has it
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write(missing) // the browser may have gone
	})
}
