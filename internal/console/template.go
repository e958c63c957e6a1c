package console

import (
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"strings"
	"time"
	"unicode"

	"pawl/fsm"
)

//go:embed templates/*.html
var templateFiles embed.FS

// templates has a template for each screen, in the frame. layout.html is the frame; confirm.html and those that begin
// with _ are parts.
var templates = parseTemplates()

func parseTemplates() map[string]*template.Template {
	frame := template.Must(template.New("").Funcs(functions).ParseFS(templateFiles, "templates/layout.html", "templates/_*.html"))
	files, _ := fs.Glob(templateFiles, "templates/[a-z]*.html") // the pattern is right
	all := map[string]*template.Template{}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "templates/"), ".html")
		all[name] = template.Must(template.Must(frame.Clone()).ParseFS(templateFiles, file))
	}
	return all
}

var functions = template.FuncMap{
	"ago": ago, "past": func(at time.Time) bool { return at.Before(time.Now()) },
	"due": due, "deliveryState": deliveryState, "beingUndone": beingUndone, "beingCanceled": beingCanceled, "typesText": typesText,
	"operationsOf": operationsOf, "disputesIn": disputesIn, "plural": plural,
	"why": inWords, "clock": clock, "moveWords": func(verb string) string { return moveWords[verb] }, "whyHeld": whyHeld, "nextOf": nextOf, "answerTo": answerTo,

	"code":   codeInWords,
	"lasts":  lasts,
	"lasted": func(since, until time.Time) string { return length(until.Sub(since)) },
	"minute": func(at time.Time) string { return at.UTC().Format("15:04 UTC") },

	"sentence": sentence,
	"lines":    visibleLines,
	"id":       isolated,
	"orderLink": func(id string) template.HTML {
		return `<a href="` + template.HTML(orderURL(id)) + `">` + isolated(id) + `</a>`
	},
	"timeAt":    timeAt,
	"badge":     badge,
	"orderURL":  orderURL,
	"ordersURL": ordersURL,

	"requestURL":  requestURL,
	"rowID":       rowID,
	"actionURL":   actionURL,
	"customerURL": customerURL,
	"itemURL":     func(item string) string { return ordersURL("item:" + quoted(item)) },
	"termURL":     func(term string) string { return ordersURL(quoted(term)) },
	"holdURL":     holdURL,
	"holdWords":   func(hold string) string { return holdWords[hold] },
	"placedCells": placedCells,
	"totalCells":  totalCells,
	"movedCells":  movedCells,
	"moneyIn":     moneyIn,
	"keysOf":      keysOf,
	"placesOf":    placesOf,
	"others":      others,
	"refundedOf":  refundedOf,
	"refundable":  refundable,
	"capturable":  capturable,
	"over":        over,
	"uncaptured":  uncaptured,
	"holdersURL":  holdersURL,
	"mark":        mark,
	"restockOf":   restockOf,
	"duration":    duration,
	"atLeast":     atLeast,
	"count":       count,
	"upTo":        upTo,
	"capital":     capital,
	"short":       short,
	"list":        func(values ...any) []any { return values },
}

// isolated shows a name, whose direction does not change that of the text around it.
func isolated(name string) template.HTML {
	return template.HTML("<bdi>" + template.HTMLEscapeString(visible(name)) + "</bdi>")
}

// ago says how long ago a time was. A script keeps it up to date.
func ago(at time.Time) template.HTML { return moment(at, "", distance(time.Since(at))) }

// due says when something is due: now, if it was before.
func due(at time.Time) template.HTML {
	return moment(at, " data-due", distance(min(0, time.Since(at))))
}

// lasts says how long something has lasted, with a preposition.
func lasts(since time.Time) template.HTML {
	return moment(since, " data-lasts", "for "+length(time.Since(since)))
}

func moment(at time.Time, attribute, words string) template.HTML {
	if at.IsZero() {
		return ""
	}
	utc := at.UTC()
	return template.HTML(fmt.Sprintf(`<time%s datetime="%s" title="%s">%s</time>`,
		attribute, utc.Format(time.RFC3339Nano), utc.Format("2006-01-02 15:04:05 UTC"), words))
}

// holdWords say what orders wait for.
var holdWords = map[string]string{
	fsm.HoldRetry: "the next try of their step", fsm.HoldCallback: "the answer of the provider", fsm.HoldScheduled: "their time",
	fsm.HoldQueued: "another order with their concurrency key", fsm.HoldApproval: "a person who approves", fsm.HoldPaused: "a person who resumes them",
	fsm.HoldAttention: "a person, because Pawl can't go on by itself",
}

const putOff = "the provider keeps failing"

// moveWords say what moves of Pawl are that leave an order in its state, have no reason, and lead to the next move.
var moveWords = map[string]string{
	"answer": "the answer is recorded, and the step goes on", "wake": "the wait is over", "permit": "its turn has come",
	"take_over": "another replica goes on with it", "release_lease": "its replica has stopped",
	"callback": "the provider has answered", "webhook": "the provider has answered",
}

// inWords is a reason that the service gives as a code, for people.
func inWords(reason string) string {
	code, rest, _ := strings.Cut(reason, ": ")
	switch code {
	case "breaker_open":
		return putOff
	case "queue_full":
		return "too many calls wait for the provider"
	case fsm.AnotherApprover:
		return rest
	case "undo_refused":
		if code, recorded := strings.CutPrefix(rest, "step_result"); recorded {
			return "a person recorded that the provider refuses the undo" + code
		}
		return strings.TrimSuffix("the provider refuses the undo: "+codeInWords(rest), ": ")
	case "retries_exhausted":
		spent, last, _ := strings.Cut(strings.TrimPrefix(rest, "no success in "), ", last ")
		if d, err := time.ParseDuration(spent); err == nil {
			words := codeInWords(last)
			if words == putOff { // it may work again
				words = "the provider kept failing, so the last calls were not made"
			}
			return "no success in " + length(d) + ": " + words
		}
	case "retry_after":
		words, until, _ := strings.Cut(rest, " until ")
		if at, err := time.Parse(time.RFC3339, until); err == nil {
			return words + " until " + at.UTC().Format("2 Jan 15:04 UTC")
		}
	}
	if !strings.Contains(reason, " ") {
		return strings.ReplaceAll(reason, "_", " ")
	}
	return reason
}

// codeInWords is a code of a result, for people.
func codeInWords(code string) string { return cmp.Or(codeWords[code], inWords(code)) }

var codeWords = map[string]string{
	"timeout": "the provider did not answer in time", "error": "the provider answered with an error", "connection_failed": "the provider could not be reached",
	"connection_lost": "the connection to the provider was lost", "retries_exhausted": "retries are used up", "outcome_unknown": "the outcome is unknown",
	"policy_unusable": "the policy can't be used", "retry_after": "the provider asks to wait", "card_declined": "the card was declined",
	"expired_card": "the card has expired", "insufficient_funds": "there is not enough money on the card", "out_of_stock": "out of stock", "database_unavailable": "the database did not answer in time",
	"in_progress": "the provider is still working on it", "rejected": "a person rejected it", "deadline_exceeded": "its deadline has passed", "unseen": "the provider says that it was not done",
	"not_seen": "the provider says that it was not done", "stolen_card": "the card was reported stolen", "lost_card": "the card was reported lost",
	"do_not_honor": "the bank refuses the card", "generic_decline": "the bank refuses the card", "incorrect_cvc": "the security code of the card is wrong",
}

// timeAt is a time by the clock, in UTC.
func timeAt(at time.Time, layout string) template.HTML {
	utc := at.UTC()
	return template.HTML(fmt.Sprintf(`<time class="clock nowrap" datetime="%s">%s</time>`, utc.Format(time.RFC3339Nano), utc.Format(layout)))
}

// capital is a text as the beginning of a sentence. A code stays as it is.
func capital(text string) string {
	if first, _, _ := strings.Cut(text, " "); text == "" || strings.Contains(first, "_") {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// distance formats the time since an event; if negative, the time until it.
func distance(d time.Duration) string {
	if d.Abs() < time.Second {
		return "now"
	}
	if d < 0 {
		return "in " + length(-d)
	}
	return length(d) + " ago"
}

// length formats a duration, in seconds, minutes, hours or days.
func length(d time.Duration) string {
	for _, unit := range []struct {
		name     string
		most, is time.Duration
	}{{"s", 100 * time.Second, time.Second}, {"min", time.Hour, time.Minute}, {"h", 48 * time.Hour, time.Hour}} {
		if near := d.Round(unit.is); near < unit.most {
			return fmt.Sprint(int(near/unit.is), " ", unit.name)
		}
	}
	return fmt.Sprint(int(d.Round(24*time.Hour).Hours()/24), " days")
}

// badge shows a status, a hold or the like, in the color of its class in console.css. A code that says nothing to people
// is in its title.
func badge(word any) template.HTML {
	text := template.HTMLEscapeString(fmt.Sprint(word))
	if text == "" {
		return ""
	}
	if plain := badgeWords[text]; plain != "" {
		return template.HTML(`<span class="badge ` + text + `" title="` + text + `">` + plain + `</span>`)
	}
	return template.HTML(`<span class="badge ` + text + `">` + strings.ReplaceAll(text, "_", " ") + `</span>`)
}

// badgeWords say codes that say nothing to people.
var badgeWords = map[string]string{fsm.HoldAttention: "needs a person", fsm.HoldApproval: "waits for approval", fsm.HoldCallback: "waits for the provider"}

// rowID is the HTML ID of the element of an order, the same each time the page is rendered.
func rowID(orderID string) string { return fmt.Sprintf("order-%x", orderID) }

// countedTo is where the API stops counting.
const countedTo = 10_000

// count formats a number, the one of a pointer that is not nil, or a decimal with thousands separators.
func count(n any) string {
	if known, ok := n.(*int64); ok {
		n = *known
	}
	text, fraction, point := strings.Cut(fmt.Sprint(n), ".")
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	if point {
		text += "." + fraction
	}
	return strings.Replace(text, "-", "−", 1)
}

// atLeast formats a number of orders, with a + if there are more.
func atLeast(n int64, more bool) string {
	if more {
		return count(n) + "+"
	}
	return count(n)
}

// upTo formats a number that the API counts up to countedTo.
func upTo(n int64) string { return atLeast(n, n >= countedTo) }

// visible escapes invisible characters, and those that change the direction of text.
func visible(text string) string { return visibleBut(text, "") }

// visibleLines is visible for several lines, as of a policy.
func visibleLines(text string) string { return visibleBut(text, "\n\t") }

func visibleBut(text, kept string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) && !strings.ContainsRune(kept, r) {
			fmt.Fprintf(&b, "\\u%04x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
