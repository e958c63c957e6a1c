package console

import (
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"strings"
	"time"
)

//go:embed templates/*.html
var templateFiles embed.FS

// templates are the screens, each in the frame. layout.html is the frame, confirm.html and those that begin with _ are parts.
var templates = parseTemplates()

func parseTemplates() map[string]*template.Template {
	frame := template.Must(template.New("").Funcs(functions).ParseFS(templateFiles, "templates/layout.html", "templates/_*.html"))
	files, err := fs.Glob(templateFiles, "templates/[a-z]*.html")
	if err != nil {
		panic("console: " + err.Error())
	}
	all := map[string]*template.Template{}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "templates/"), ".html")
		all[name] = template.Must(template.Must(frame.Clone()).ParseFS(templateFiles, file))
	}
	return all
}

// functions are what templates may call.
var functions = template.FuncMap{
	"ago":   ago,
	"clock": clock,
	"lines": visibleLines,
	"id": func(id string) template.HTML {
		return template.HTML("<bdi>" + template.HTMLEscapeString(visible(id)) + "</bdi>")
	},
	"badge":     badge,
	"orderURL":  orderURL,
	"ordersURL": ordersURL,
	"rowID":     rowID,
	"actionURL": actionURL,
	"holdURL":   holdURL,
	"duration":  duration,
	"atLeast":   atLeast,
	"count":     count,
	"upTo":      upTo,
	"list":      func(values ...any) []any { return values },
}

// ago is a time, as how long ago it was. A script keeps it true; without one it is what it was when the page was made.
func ago(at time.Time) template.HTML {
	if at.IsZero() {
		return ""
	}
	text, utc := distance(time.Since(at)), at.UTC()
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s">%s</time>`,
		utc.Format(time.RFC3339Nano), utc.Format("2006-01-02 15:04:05 UTC"), text))
}

// clock is the minute of a time.
func clock(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format("15:04 UTC")
}

// distance puts a time before now into words, or with a negative one a time that will come.
func distance(d time.Duration) string {
	form := "%s ago"
	if d < 0 {
		form, d = "in %s", -d
	}
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf(form, fmt.Sprintf("%d s", int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf(form, fmt.Sprintf("%d min", int(d.Minutes())))
	case d < 48*time.Hour:
		return fmt.Sprintf(form, fmt.Sprintf("%d h", int(d.Hours())))
	}
	return fmt.Sprintf(form, fmt.Sprintf("%d days", int(d.Hours()/24)))
}

// badge shows a status, a hold or another word that stands for a state, in the colour of its class in console.css.
func badge(word any) template.HTML {
	text := template.HTMLEscapeString(fmt.Sprint(word))
	if text == "" {
		return ""
	}
	return template.HTML(`<span class="badge ` + text + `">` + strings.ReplaceAll(text, "_", " ") + `</span>`)
}

// rowID is the id of an element that shows an order: it stays the same when the page is made anew.
func rowID(orderID string) string { return fmt.Sprintf("order-%x", orderID) }

// countedTo is where the API stops counting.
const countedTo = 10_000

// count is a number that is easy to read.
func count(n any) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// upTo is a number that the API has counted up to countedTo.
func upTo(n int64) string { return atLeast(n, n >= countedTo) }

// visible shows what can't be seen: an id may hold characters that have no look, or that turn others around.
func visible(text string) string { return visibleBut(text, "") }

// visibleLines is visible for a text of lines: somebody who reads a policy before it is activated must see what it says, in its order.
func visibleLines(text string) string { return visibleBut(text, "\n\t") }

func visibleBut(text, kept string) string {
	var b strings.Builder
	for _, r := range text {
		if hidden(r) && !strings.ContainsRune(kept, r) {
			fmt.Fprintf(&b, "\\u%04x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func hidden(r rune) bool {
	return r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x200b && r <= 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2060 && r <= 0x206f || r == 0xfeff
}
