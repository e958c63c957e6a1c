package httpapi

import (
	"context"
	"math/rand/v2"
	"net/http"
)

// consolePatterns are those of the console: its pages, their stream, and its forms.
var consolePatterns = []string{"GET /console", "GET /console/", streamOfPages, "POST /console/"}

const streamOfPages = "GET /console/live"

// What pages take of the memory until their readers have them. One with a thousand orders, whose ids are long and in it several
// times, takes pageBytes. The others take less, but also the processor: sixteen are made at a time, eight for one caller.
const (
	pagesBytes = 64 << 20
	pageBytes  = 4 << 20
	maxForm    = 4 << 20 // more of one the console does not read
	formTakes  = 4       // times its length: as it came, as it was read, and in the page that answers
)

// console answers what the console asks for its user: at this one handler there is all of the API, also where that has two addresses.
type console struct{ *server }

// ServeHTTP answers a request.
func (c console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.serve(w, r, c.inside) }

// serveConsole has its pages where operations are. What they read and do goes through the rules of the API, one operation at a time.
func (s *server) serveConsole(pages http.Handler) {
	paged := s.paged(pages)
	for _, pattern := range consolePatterns {
		if pattern == streamOfPages {
			s.handleAnyQuery(pattern, s.pageStream(pages))
		} else {
			s.handleAnyQuery(pattern, paged)
		}
	}
}

// paged has a page wait until there is memory for it, and for the form that was sent.
func (s *server) paged(pages http.Handler) http.HandlerFunc {
	return s.answered(newShares(pagesBytes).first(func(r *http.Request) int64 {
		form := r.ContentLength
		if form < 0 || form > maxForm {
			form = maxForm
		}
		return pageBytes + formTakes*form
	}, pages.ServeHTTP))
}

// pageStream answers pages that listen for changes. It is a stream as that of events is: some connections are left for others, it
// ends after a while, and when the service does.
func (s *server) pageStream(pages http.Handler) http.HandlerFunc {
	return s.answered(func(w http.ResponseWriter, r *http.Request) error {
		_, _ = s.identify(w, r) // the page says what is wrong with a credential
		place, ok := placeToWait(w, r)
		if !ok {
			return newProblem("overloaded", "Too many requests wait already.")
		}
		defer place.leave()
		ctx, cancel := context.WithTimeout(r.Context(), streamLasts+rand.N(streamLasts/4))
		defer cancel()
		if s.Events != nil {
			ctx, cancel = s.Events.Until(ctx)
			defer cancel()
		}
		pages.ServeHTTP(w, r.WithContext(ctx))
		return nil
	})
}

// home leads to the console, or where the address has none to the description of the API.
func (s *server) home(w http.ResponseWriter, r *http.Request) {
	to := "/docs"
	at := r.Clone(r.Context())
	at.URL.Path = "/console"
	if _, pattern := recordOf(w).mux.Handler(at); pattern == consolePatterns[0] {
		to = at.URL.Path
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}
