package provider

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Withheld are the texts that a call was made with and that are never shown. Providers repeat them in their answers, by
// mistake or to find out who reads them: in what they say, as a reference, in data, as they are, escaped, or in capitals.
type Withheld []string

const (
	mask    = "***"
	telling = 8 // characters; a shorter text, such as "card", is a word of many others and tells nothing
)

// Withheld are the payment method of a call, the tokens of its callbacks, and the given texts, which may be empty.
func (c *Call) Withheld(secrets ...string) Withheld {
	return WithheldOf(slices.Concat(secrets, c.Tokens, []string{c.PaymentMethod})...)
}

// WithheldOf are these texts, in all forms in which they are looked for, the longest first.
func WithheldOf(secrets ...string) (w Withheld) {
	for _, secret := range secrets {
		if secret == "" {
			continue
		}
		quoted := string(appendString(nil, secret))
		escaped, _ := json.Marshal(secret) // strings can always be encoded
		w = append(w, secret, printable(secret), quoted[1:len(quoted)-1], string(escaped[1:len(escaped)-1]), url.QueryEscape(secret), url.PathEscape(secret))
	}
	slices.SortFunc(w, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	return slices.Compact(w)
}

// Text is the function Text, with *** in place of what is withheld.
func (w Withheld) Text(words string) string { return Text(w.Hide(printable(words))) }

// clientSecret is what Stripe calls so: who has it can pay in the name of the customer. Only an action shows it, to whom it is for.
var clientSecret = regexp.MustCompile(`\b[A-Za-z]{2,8}_[A-Za-z0-9]+_secret_[A-Za-z0-9]+`)

// Hide puts *** in place of what is withheld.
func (w Withheld) Hide(words string) string {
	words = clientSecret.ReplaceAllString(words, mask)
	for _, secret := range w {
		words = replace(words, secret)
	}
	return words
}

// Code is Text for a code: one that tells what is withheld is empty as a whole.
func (w Withheld) Code(code string) string { return w.Name(Text(code)) }

// masked is Code for a result, which has a code.
func (w Withheld) masked(code string) string {
	if code == "" {
		return ""
	}
	return cmp.Or(w.Code(code), mask)
}

// Name is a name that others have for something, empty if it tells what is withheld. With *** in it, it would be another
// name.
func (w Withheld) Name(name string) string {
	if w.told(name) {
		return ""
	}
	return name
}

// told reports whether a text is one that is withheld, or has one that is long enough to be no word of its own.
func (w Withheld) told(text string) bool {
	return clientSecret.MatchString(text) || slices.ContainsFunc(w, func(secret string) bool {
		return text == secret || len(secret) >= telling && strings.Contains(lower(text), lower(secret))
	})
}

// Mask is a result without what is withheld: every executor's answers pass it. A reference that tells something is
// left out; an undo then goes by its key.
func (w Withheld) Mask(r Result) Result {
	switch r := r.(type) {
	case Done:
		return Done{Reference: w.Name(r.Reference), Data: w.Data(r.Data)}
	case Refused:
		return Refused{Code: w.masked(r.Code), Detail: w.Text(r.Detail)}
	case Retry:
		r.Code, r.Detail = w.masked(r.Code), w.Text(r.Detail)
		return r
	case Waiting:
		return Waiting{Reference: w.Name(r.Reference), Action: w.data(withoutOddURLs(r.Action))}
	case Unknown:
		r.Code, r.Detail, r.Reference = w.masked(r.Code), w.Text(r.Detail), w.Name(r.Reference)
		return r
	}
	return r
}

// Data is a JSON object of StorableData without what is withheld.
func (w Withheld) Data(raw json.RawMessage) json.RawMessage {
	return rewrite(w.data(raw), func(value any) any {
		if text, ok := value.(string); ok {
			return clientSecret.ReplaceAllString(text, mask)
		}
		return value
	})
}

// data is a JSON object of StorableData with *** in place of what is withheld, in its names and numbers, too.
func (w Withheld) data(raw json.RawMessage) json.RawMessage {
	return rewrite(raw, func(value any) any {
		switch v := value.(type) {
		case string:
			return w.inData(v)
		case json.Number:
			if w.told(v.String()) {
				return mask
			}
		case map[string]any:
			for name, member := range v {
				if shown := w.inData(name); shown != name {
					delete(v, name)
					v[shown] = member
				}
			}
		}
		return value
	})
}

func (w Withheld) inData(text string) string {
	if slices.Contains(w, text) {
		return mask
	}
	for _, secret := range w {
		if len(secret) >= telling {
			text = replace(text, secret)
		}
	}
	return text
}

// withoutOddURLs is what a customer has to do, without the addresses that no browser should open for it: a `url` that
// is not http or https, such as javascript:, and the same of every member whose name ends so.
func withoutOddURLs(action json.RawMessage) json.RawMessage {
	return rewrite(action, func(value any) any {
		if object, ok := value.(map[string]any); ok {
			for name, member := range object {
				if strings.HasSuffix(lower(name), "url") && !isWebURL(member) {
					delete(object, name)
				}
			}
		}
		return value
	})
}

func isWebURL(value any) bool {
	text, _ := value.(string)
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && !strings.ContainsFunc(text, unicode.IsSpace)
}

// rewrite is a JSON object after change was made to each of its values, the outer ones first. What comes out longer than
// can be kept is left out.
func rewrite(raw json.RawMessage, change func(any) any) json.RawMessage {
	if len(raw) == 0 {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var object any
	if decoder.Decode(&object) != nil {
		return nil
	}
	out, err := encodeData(rewriteValue(object, change))
	if err != nil {
		return nil
	}
	return out
}

func rewriteValue(value any, change func(any) any) any {
	value = change(value)
	switch v := value.(type) {
	case map[string]any:
		for name, member := range v {
			v[name] = rewriteValue(member, change)
		}
	case []any:
		for i, element := range v {
			v[i] = rewriteValue(element, change)
		}
	}
	return value
}

// replace puts *** in place of a text, in whatever case it is written if it is long enough.
func replace(in, secret string) string {
	if len(secret) < telling {
		return strings.ReplaceAll(in, secret, mask)
	}
	folded, secret := lower(in), lower(secret)
	var out strings.Builder
	for {
		at := strings.Index(folded, secret)
		if at < 0 {
			out.WriteString(in)
			return out.String()
		}
		out.WriteString(in[:at] + mask)
		in, folded = in[at+len(secret):], folded[at+len(secret):]
	}
}

// lower is a text with its ASCII letters in lower case, so of the same length.
func lower(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return 'A' <= r && r <= 'Z' }) {
		return text
	}
	b := []byte(text)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// Masking is an executor whose results have nothing of what is withheld. It is a Looker if exec is one.
func Masking(exec Executor) Executor {
	m := masking{exec}
	if looker, ok := exec.(Looker); ok {
		return maskingLooker{m, looker}
	}
	return m
}

type masking struct{ exec Executor }

// masked makes a call of its own, in which the secrets are noted that it is made with.
func masked(ctx context.Context, c *Call, call func(context.Context, *Call) Result) Result {
	own, used := *c, []string{}
	own.secrets = &used
	result := call(ctx, &own)
	return c.Withheld(used...).Mask(result)
}

func (m masking) Do(ctx context.Context, c *Call) Result     { return masked(ctx, c, m.exec.Do) }
func (m masking) Undo(ctx context.Context, c *Call) Result   { return masked(ctx, c, m.exec.Undo) }
func (m masking) Refund(ctx context.Context, c *Call) Result { return masked(ctx, c, m.exec.Refund) }

type maskingLooker struct {
	masking
	looker Looker
}

func (m maskingLooker) Lookup(ctx context.Context, c *Call) Result {
	return masked(ctx, c, m.looker.Lookup)
}
