package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"strconv"
)

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
