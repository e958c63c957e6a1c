package httpapi

import "net/http"

// consolePatterns are those of the console.
var consolePatterns = []string{"GET /console", "GET /console/", "POST /console/"}

// console answers what the console asks for its user: at this one handler there is all of the API, also where that has two addresses.
type console struct{ *server }

// ServeHTTP answers a request.
func (c console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.serve(w, r, c.inside) }

// serveConsole has its pages where operations are. What they read and do goes through the rules of the API, one operation at a time.
func (s *server) serveConsole(pages http.Handler) {
	for _, pattern := range consolePatterns {
		s.handleAnyQuery(pattern, pages.ServeHTTP)
	}
}

// home leads to the console, or where the address has none to the description of the API.
func (s *server) home(w http.ResponseWriter, r *http.Request) {
	to := "/docs"
	if rec, ok := w.(*Recorder); ok {
		at := r.Clone(r.Context())
		at.URL.Path = "/console"
		if _, pattern := rec.mux.Handler(at); pattern == consolePatterns[0] {
			to = at.URL.Path
		}
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}
