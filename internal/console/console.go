// Package console is the web console: pages of links and forms, rendered on the server. It uses only the public API,
// through the Go client and with the rights of its user, so it can do nothing that the user could not do with curl.
//
// Each screen has a file; task.go has the form of everything that people do. The state of a page is its URL. IDs are in
// the query, not in the path, because browsers resolve IDs such as "..".
package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/klauspost/compress/gzhttp"

	"pawl/client"
	"pawl/docs"
)

// Config configures a console.
type Config struct {
	// Client returns a client of the API with the rights of the sender of the request. See InMemory.
	Client func(*http.Request) (*client.Client, error)
	// Lab is the lab of a demonstration. Nil: none.
	Lab *Lab
}

type console struct {
	Config
	mux    *http.ServeMux
	assets assets
}

// New returns the handler of /console and the paths below it. Requests with the Host of another site must already have
// been rejected. It is safe for concurrent use, and has no state.
func New(cfg Config) http.Handler {
	c := &console{Config: cfg, mux: http.NewServeMux(), assets: newAssets()}
	c.screens()
	all := http.NewServeMux()
	all.Handle("/", gzhttp.GzipHandler(c.mux))
	// A compressor would buffer the events.
	all.HandleFunc("GET /console/live", c.answered((*visit).pokes))
	if c.Lab != nil {
		c.mux.HandleFunc("GET /console/lab", c.inLab((*visit).showLab))
		c.mux.HandleFunc("POST /console/lab", c.inLab((*visit).doInLab))
		c.mux.HandleFunc("GET /console/lab/faults", c.inLab(manualOf("Simulated provider", docs.Simulator)))
		all.HandleFunc("GET /console/lab/live", c.inLab((*visit).labPokes))
	}
	return secured(http.NewCrossOriginProtection().Handler(all))
}

func (c *console) screens() {
	c.mux.Handle("GET /console/static/{name}", c.assets)
	c.mux.HandleFunc("/", c.answered(func(*visit) error { return errNoPage }))
	c.getLive("/console", (*visit).overview)
	c.mux.Handle("GET /console/{$}", http.RedirectHandler("/console", http.StatusPermanentRedirect))
	c.getLive("/console/attention", (*visit).attention)
	c.getLive("/console/orders", (*visit).orders)
	c.get("/console/order", (*visit).showOrder)
	c.form("/console/order/{task}", (*visit).doVerb)
	c.form("/console/bulk", (*visit).bulk)
	c.getLive("/console/bulk/request", (*visit).showRequest)
	c.getLive("/console/errors", (*visit).errorGroups)
	c.getLive("/console/webhooks", (*visit).showEndpoints)
	c.getLive("/console/webhook", (*visit).showEndpoint)
	c.form("/console/webhook/{task}", (*visit).doEndpoint)
	c.getLive("/console/delivery", (*visit).showDelivery)
	c.form("/console/delivery/{task}", (*visit).doDelivery)
	c.get("/console/policies", (*visit).policies)
	c.get("/console/policy", (*visit).policy)
	c.get("/console/policy/new", (*visit).writePolicy)
	c.post("/console/policy/new", (*visit).checkPolicy)
	c.form("/console/policy/{task}", (*visit).activatePolicy)
	c.get("/console/policies/manual", manualOf("Policies", docs.Policy))
	c.getLive("/console/stock", (*visit).showStock)
	c.getLive("/console/item", (*visit).showItem)
	c.form("/console/item/{task}", (*visit).doItem)
	c.get("/console/orders.csv", (*visit).ordersCSV)
	c.get("/console/books", (*visit).showBooks)
	c.get("/console/books.csv", (*visit).booksCSV)
	c.get("/console/movements", (*visit).showMovements)
	c.get("/console/movements.csv", (*visit).movementsCSV)
	c.post("/console/books", (*visit).proveBooks)
	c.get("/console/runbook", (*visit).showRunbook)
}

// contentPolicy lets a page load only files of the service. Inline scripts and styles have no effect.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", contentPolicy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "same-origin") // otherwise, a form would not say which page sent it
		next.ServeHTTP(w, r)
	})
}

func (c *console) get(path string, show func(*visit) error) {
	c.mux.HandleFunc("GET "+path, c.answered(show))
}

// getLive serves a screen that reloads after every event, and every few seconds.
func (c *console) getLive(path string, show func(*visit) error) {
	c.get(path, func(v *visit) error {
		if slices.Contains(v.me.Roles, "read") { // others may follow only their own orders
			after, _ := v.latest(v.r.Context()) // without it, the page reloads once more
			v.live = "/console/live?after=" + url.QueryEscape(after)
		}
		return show(v)
	})
}

// post serves the forms of a screen. It does not read forms of people without rights.
func (c *console) post(path string, do func(*visit) error) {
	c.mux.HandleFunc("POST "+path, c.answered(func(v *visit) error {
		if len(v.me.Operations) == 0 {
			return errUnknown
		}
		return do(v)
	}))
}

// form serves a page with a form, and the form itself.
func (c *console) form(path string, serve func(*visit) error) {
	c.get(path, serve)
	c.post(path, serve)
}

// htmx.esm.min.js is htmx 4.0.1 (https://htmx.org, Zero-Clause BSD).
//
//go:embed static
var staticFiles embed.FS

// Stylesheet is the style sheet of the pages.
func Stylesheet() string {
	text, err := staticFiles.ReadFile("static/console.css")
	if err != nil {
		panic("console: " + err.Error()) // it is embedded
	}
	return string(text)
}

// assets are the static files and a part of their hash, which is in their URLs so that browsers cache them forever.
type assets map[string]string

func newAssets() assets {
	all := assets{}
	err := fs.WalkDir(staticFiles, "static", func(name string, file fs.DirEntry, err error) error {
		if err != nil || file.IsDir() {
			return err
		}
		body, err := staticFiles.ReadFile(name)
		sum := sha256.Sum256(body)
		all[file.Name()] = hex.EncodeToString(sum[:6])
		return err
	})
	if err != nil {
		panic("console: " + err.Error()) // the files are embedded
	}
	return all
}

func (a assets) path(name string) string { return "/console/static/" + name + "?" + a[name] }

// ServeHTTP answers with a file.
func (a assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	hash, ok := a[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	header := w.Header()
	header.Set("ETag", strconv.Quote(hash))
	header.Set("Cache-Control", "no-cache")
	if r.URL.RawQuery == hash {
		header.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeFileFS(w, r, staticFiles, "static/"+name)
}
