package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"strconv"
	"time"
)

// htmx.esm.min.js is htmx 4.0.1 (https://htmx.org, Zero-Clause BSD).
//
//go:embed static
var staticFiles embed.FS

// assets are what pages load. Each has a part of its hash in its URL, so that a browser keeps it for good.
type assets map[string]asset

type asset struct {
	body []byte
	hash string
}

func newAssets() assets {
	all := assets{}
	files, err := staticFiles.ReadDir("static")
	for _, file := range files {
		var body []byte
		if body, err = staticFiles.ReadFile("static/" + file.Name()); err != nil {
			break
		}
		sum := sha256.Sum256(body)
		all[file.Name()] = asset{body, hex.EncodeToString(sum[:6])}
	}
	if err != nil {
		panic("console: " + err.Error()) // they are in the program
	}
	return all
}

// path is the URL of a file.
func (a assets) path(name string) string { return "/console/static/" + name + "?" + a[name].hash }

// ServeHTTP answers with a file.
func (a assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	file, ok := a[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	header := w.Header()
	header.Set("ETag", strconv.Quote(file.hash))
	header.Set("Cache-Control", "no-cache")
	if r.URL.RawQuery == file.hash {
		header.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, r.PathValue("name"), time.Time{}, bytes.NewReader(file.body))
}
