// Package console is the web console of people who run the service: pages of links and forms, made on the server. It knows
// the service by its public API alone, through the Go client, with the rights of whoever looks at it; so it can do nothing that
// its user could not do with curl.
//
// A file is a screen. The state of a page is its URL. An order's id is in the query and never in the path: browsers take some
// ids, such as "..", for a way up.
package console

import (
	"net/http"
	"net/url"

	"github.com/klauspost/compress/gzhttp"

	"pawl/client"
)

// Config says whose console it is.
type Config struct {
	// Client returns the API with the rights of whoever sends the request. See InMemory.
	Client func(*http.Request) (*client.Client, error)
	// Lab is what can be broken here. Nil, and so for a service that matters: nothing.
	Lab *Lab
}

type console struct {
	Config
	mux    *http.ServeMux
	assets assets
}

// New returns the handler of /console and all paths below it. Requests under names that are not the service's must have been
// refused before. It is safe for concurrent use and keeps nothing of anybody.
func New(cfg Config) http.Handler {
	c := &console{Config: cfg, mux: http.NewServeMux(), assets: newAssets()}
	c.mux.Handle("GET /console/static/{name}", c.assets)
	c.overviewRoutes()
	c.orderRoutes()
	c.labRoutes()
	c.webhookRoutes()
	c.stockRoutes()
	c.booksRoutes()
	c.attentionRoutes()
	c.ordersRoutes()
	c.runbookRoutes()
	c.bulkRoutes()
	c.policiesRoutes()
	c.errorRoutes()
	c.mux.HandleFunc("/", c.answered(func(*visit) error { return errNoPage }))
	all := http.NewServeMux()
	all.Handle("/", gzhttp.GzipHandler(c.mux))
	// Not compressed: that would wait for more to send.
	all.HandleFunc("GET /console/live", c.answered((*visit).pokes))
	if c.Lab != nil {
		all.HandleFunc("GET /console/lab/live", c.inLab((*visit).labPokes))
	}
	return secured(http.NewCrossOriginProtection().Handler(all))
}

// contentPolicy lets a page load what the service itself has, and nothing written into the page runs or counts as style.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", contentPolicy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "same-origin") // without one, a browser does not say where a form was sent from
		next.ServeHTTP(w, r)
	})
}

// get serves a screen.
func (c *console) get(path string, show func(*visit) error) {
	c.mux.HandleFunc("GET "+path, c.answered(show))
}

// getLive serves a screen that keeps itself up to date with everything that happens.
func (c *console) getLive(path string, show func(*visit) error) {
	c.get(path, func(v *visit) error {
		if v.may("listEvents") {
			after, _ := v.latest(v.r.Context()) // a page that does not know loads itself once more
			v.live = "/console/live?after=" + url.QueryEscape(after)
		}
		return show(v)
	})
}

// post serves the forms of a screen. Nothing is read of those of somebody who may do nothing.
func (c *console) post(path string, do func(*visit) error) {
	c.mux.HandleFunc("POST "+path, c.answered(func(v *visit) error {
		if len(v.me.Operations) == 0 {
			return errUnknown
		}
		return do(v)
	}))
}
