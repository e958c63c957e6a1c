// Package console is the web console of people who run the service: pages of links and forms, made on the server. It knows
// the service by its public API alone, through the Go client, with the rights of whoever looks at it; so it can do nothing that
// its user could not do with curl.
//
// A file is a screen. The state of a page is its URL. An order's id is in the query and never in the path: browsers take some
// ids, such as "..", for a way up.
package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"

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
	c.screens()
	all := http.NewServeMux()
	all.Handle("/", gzhttp.GzipHandler(c.mux))
	// Not compressed: that would wait for more to send.
	all.HandleFunc("GET /console/live", c.answered((*visit).pokes))
	if c.Lab != nil {
		c.mux.HandleFunc("GET /console/lab", c.inLab((*visit).showLab))
		c.mux.HandleFunc("POST /console/lab", c.inLab((*visit).doInLab))
		all.HandleFunc("GET /console/lab/live", c.inLab((*visit).labPokes))
	}
	return secured(http.NewCrossOriginProtection().Handler(all))
}

// screens serves all that there is of every service.
func (c *console) screens() {
	c.mux.Handle("GET /console/static/{name}", c.assets)
	c.mux.HandleFunc("/", c.answered(func(*visit) error { return errNoPage }))
	c.getLive("/console", (*visit).overview)
	c.getLive("/console/attention", (*visit).attention)
	c.getLive("/console/orders", (*visit).orders)
	c.get("/console/order", (*visit).showOrder)
	c.get("/console/order/{verb}", (*visit).askVerb)
	c.post("/console/order/{verb}", (*visit).submitVerb)
	c.form("/console/bulk", (*visit).bulk)
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
	c.get("/console/policy/activate", (*visit).activation)
	c.post("/console/policy/activate", (*visit).activate)
	c.getLive("/console/stock", (*visit).showStock)
	c.getLive("/console/item", (*visit).showItem)
	c.form("/console/item/{task}", (*visit).doItem)
	c.get("/console/books", (*visit).showBooks)
	c.post("/console/books", (*visit).proveBooks)
	c.get("/console/runbook", (*visit).showRunbook)
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

// form serves a screen that is a form, and the form.
func (c *console) form(path string, serve func(*visit) error) {
	c.get(path, serve)
	c.post(path, serve)
}

// htmx.esm.min.js is htmx 4.0.1 (https://htmx.org, Zero-Clause BSD).
//
//go:embed static
var staticFiles embed.FS

// assets are what pages load, each with a part of its hash, which is in its URL, so that a browser keeps it for good.
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
		panic("console: " + err.Error()) // they are in the program
	}
	return all
}

// path is the URL of a file.
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
