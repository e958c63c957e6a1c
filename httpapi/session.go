package httpapi

import (
	"context"
	_ "embed"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"pawl/internal/access"
)

//go:embed login.html
var loginHTML string

// sessionCookie is the name of the session cookie. Because of the prefix, browsers accept it only over TLS (or from this
// machine), and only for the exact host that sets it.
const sessionCookie = "__Host-pawl-session"

// sessionOf returns the session cookie of a request. It is ignored if it could have been read in transit, or if the
// request may come from a page of another site. (A request with a cookie gets here only under an allowed host name.)
func (s *server) sessionOf(w http.ResponseWriter, r *http.Request) string {
	if r.Header["Cookie"] == nil || !fromOf(w).secure {
		return ""
	}
	cookie, err := r.Cookie(sessionCookie)
	if err != nil {
		return ""
	}
	asWrite := *r // the check skips reads
	asWrite.Method = http.MethodPost
	if s.crossOrigin.Check(&asWrite) != nil {
		return ""
	}
	return cookie.Value
}

// returnCookie begins the names of the cookies of the pages that a person asked for before the login, as the console sets
// them: one of the last page, and one of each form.
const returnCookie = "__Host-pawl-return"

// asked is a page that the login leads to.
type asked struct{ Page, About string }

// askedFor are the pages of the console in the cookies, or the start page.
func askedFor(r *http.Request) (all []asked) {
	for _, cookie := range r.Cookies() {
		values, err := url.ParseQuery(cookie.Value)
		page := values.Get("page")
		to, wrong := url.Parse(page)
		if strings.HasPrefix(cookie.Name, returnCookie) && err == nil && wrong == nil && strings.HasPrefix(page, "/console") && path.Clean(to.Path) == to.Path {
			all = append(all, asked{page, values.Get("about")})
		}
	}
	if all == nil {
		return []asked{{Page: "/"}}
	}
	return all
}

func (s *server) sessionRoutes() {
	s.handle("GET /login", s.page(s.showLogin))                         // people: who am I?
	s.handle("GET /login/{link}", s.page(s.showLink))                   // people with a link of pawl token link
	s.handle("POST /login/{link}", s.page(s.sameOrigin(s.openSession))) // its button
	s.handle("POST /logout", s.page(s.sameOrigin(s.endSession)))
}

// page shows errors as a page to browsers, and as a problem to others. A link that does not work is a page for all.
func (s *server) page(h handler) http.HandlerFunc {
	return s.answered(func(w http.ResponseWriter, r *http.Request) error {
		err := h(w, r)
		if errors.Is(err, access.ErrLink) {
			text := "It was used, has expired, or does not exist. If you have signed in with it, you still are."
			return login{Title: "This link does not work", Text: text, To: askedFor(r)}.show(w, r, http.StatusNotFound)
		}
		if err == nil || !strings.Contains(r.Header.Get("Accept"), "text/html") {
			return err
		}
		p := problemOf(err)
		s.logFault(w.Header().Get("X-Request-Id"), p, err)
		for name, values := range p.GetHeaders() {
			w.Header()[name] = values
		}
		return login{Title: p.Title, Text: p.Detail, Status: p.Status}.show(w, r, p.Status)
	})
}

// login is the data of the pages about sessions.
type login struct {
	Title  string
	Name   string // of the principal
	Open   bool   // everyone on this machine may do everything
	Until  time.Time
	Link   bool    // the page asks to confirm a link
	To     []asked // the pages to go on to
	Text   string
	Status int    // of the problem that the page is about; otherwise 0
	Origin string // the URL of the service
}

// show writes a page with a form. It must not be cached, because it is for one person.
func (l login) show(w http.ResponseWriter, r *http.Request, status int) error {
	l.Origin = originOf(r)
	header := w.Header()
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Referrer-Policy", "same-origin") // without one, a browser does not say where a form was sent from
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	w.Write(render("login", l)) //nolint:errcheck // the caller has gone
	return nil
}

// showLogin shows who is signed in.
func (s *server) showLogin(w http.ResponseWriter, r *http.Request) error {
	caller := s.credentialsOf(w, r)
	caller.Authorization = "" // a page is about the browser's own session
	p, err := s.Access.Identify(r.Context(), caller)
	if _, refused := errors.AsType[*access.NotIdentified](err); refused || p == access.Anonymous {
		return login{Title: "You are not signed in."}.show(w, r, http.StatusOK)
	}
	if err != nil {
		return err
	}
	return login{Title: "You are signed in", Open: p == access.Local, Name: p.Name, To: []asked{{Page: "/"}}}.show(w, r, http.StatusOK)
}

// showLink does not use up the link, because programs that preview messages open it. The form is sent to the URL of the
// page: with the link in its action, a link such as ..%2Fapi%2F… could make it lead anywhere.
func (s *server) showLink(w http.ResponseWriter, r *http.Request) error {
	if err := s.Access.CheckLink(r.Context(), r.PathValue("link"), fromOf(w).address); err != nil {
		return err
	}
	return login{Title: "Sign in to Pawl", Link: true}.show(w, r, http.StatusOK)
}

func (s *server) openSession(w http.ResponseWriter, r *http.Request) error {
	if !fromOf(w).secure {
		return newProblem("tls_required", "")
	}
	session, err := s.Access.OpenSession(r.Context(), r.PathValue("link"), s.sessionOf(w, r), fromOf(w).address)
	if err != nil {
		return err
	}
	setSession(w, session.Cookie)
	return login{Title: "You are signed in", Name: session.Name, Until: session.ExpiresAt, To: askedFor(r)}.show(w, r, http.StatusOK)
}

func (s *server) endSession(w http.ResponseWriter, r *http.Request) error {
	if err := s.Access.EndSession(r.Context(), s.sessionOf(w, r), fromOf(w).address); err != nil {
		return err
	}
	setSession(w, "")
	return login{Title: "You are signed out."}.show(w, r, http.StatusOK)
}

// setSession sets the session cookie, or removes it. Only the service knows when a session expires.
func setSession(w http.ResponseWriter, value string) {
	cookie := http.Cookie{Name: sessionCookie, Value: value, Path: "/", HttpOnly: true, Secure: true, SameSite: http.SameSiteLaxMode}
	if value == "" {
		cookie.MaxAge = -1
	}
	http.SetCookie(w, &cookie)
}

// consolePatterns are the routes of the console: its pages, their stream, and its forms.
var consolePatterns = []string{"GET /console", "GET /console/", streamOfPages, "POST /console/"}

const streamOfPages = "GET /console/live"

// The memory that pages take until they are sent. A page of a thousand orders with long ids takes pageBytes. Others take
// less memory, but also processor time: sixteen are made at a time, eight for one caller.
const (
	pagesBytes = 64 << 20
	pageBytes  = 4 << 20
	maxForm    = 4 << 20 // longer forms are rejected
	formTakes  = 4       // memory of a form, as a multiple of its length: as received, as parsed, and in the page that answers
)

// console answers the console's requests to the API. This handler has the whole API, even if it is served at two
// addresses.
type console struct{ *server }

// ServeHTTP answers a request.
func (c console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.serve(w, r, c.inside) }

// serveConsole serves the console at the address for operations. Everything it reads and does is checked as an
// operation of the API.
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

// paged makes a page wait until there is memory for it and for the form that was sent.
func (s *server) paged(pages http.Handler) http.HandlerFunc {
	return s.answered(newShares(pagesBytes).first(func(r *http.Request) int64 {
		form := r.ContentLength
		if form < 0 || form > maxForm {
			form = maxForm
		}
		return pageBytes + formTakes*form
	}, pages.ServeHTTP))
}

// pageStream answers pages that listen for changes. Like the event stream, it leaves some connections for others, and
// ends after a while and when the service stops.
func (s *server) pageStream(pages http.Handler) http.HandlerFunc {
	return s.answered(func(w http.ResponseWriter, r *http.Request) error {
		_, _ = s.identify(w, r) // the page reports invalid credentials
		place, ok := placeToWait(w, r)
		if !ok {
			return newProblem("overloaded", "Too many requests are waiting.")
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

// home redirects to the console, or to the API description if this address has no console.
func (s *server) home(w http.ResponseWriter, r *http.Request) {
	to := "/docs"
	at := r.Clone(r.Context())
	at.URL.Path = "/console"
	if _, pattern := recordOf(w).mux.Handler(at); pattern == consolePatterns[0] {
		to = at.URL.Path
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}
