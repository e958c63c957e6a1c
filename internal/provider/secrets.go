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

// Secrets are the texts of a call that no result may repeat: its payment method, the tokens of its callbacks, and the
// keys that it was made with. Providers repeat them, by mistake or to spy: in messages, references and data; verbatim,
// escaped or in capitals.
type Secrets []string

const (
	mask = "***"
	// Shorter secrets, such as "card", are parts of many words. Others are masked inside other texts, and in any case.
	minMasked = 8
)

// Secrets returns the secrets of a call, with others, which may be empty.
func (c *Call) Secrets(more ...string) Secrets { return NewSecrets(c.private(more)...) }

func (c *Call) private(more []string) []string {
	all := make([]string, 0, len(more)+len(c.Tokens)+1)
	return append(append(append(all, more...), c.Tokens...), c.PaymentMethod)
}

// NewSecrets returns some texts in all forms in which they may be repeated, longest first. Empty ones are ignored.
func NewSecrets(texts ...string) Secrets {
	all := make(Secrets, 0, len(texts))
	for _, text := range texts {
		if !strings.ContainsFunc(text, mayBeEscaped) {
			if text != "" {
				all = append(all, text)
			}
			continue
		}
		quoted := string(appendString(nil, text))
		escaped, _ := json.Marshal(text) // strings can always be encoded
		all = append(all, text, Printable(text), quoted[1:len(quoted)-1], string(escaped[1:len(escaped)-1]),
			url.QueryEscape(text), url.PathEscape(text))
	}
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	return slices.Compact(all)
}

// mayBeEscaped is false for characters that look the same in JSON and in a URL.
func mayBeEscaped(r rune) bool {
	plain := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-._~", r)
	return !plain
}

// Text is the function Text, with secrets masked.
func (s Secrets) Text(words string) string { return Text(s.Mask(Printable(words))) }

// clientSecret matches the client secrets of Stripe, with which anyone can pay in the name of the customer. Only an
// action may contain them.
var clientSecret = regexp.MustCompile(`\b[A-Za-z]{2,8}_[A-Za-z0-9]+_secret_[A-Za-z0-9]+`)

// Mask masks secrets in a text.
func (s Secrets) Mask(words string) string {
	words = clientSecret.ReplaceAllString(words, mask)
	for _, secret := range s {
		words = replace(words, secret)
	}
	return words
}

// Code is Text for a code, which is empty if it repeats a secret.
func (s Secrets) Code(code string) string { return s.Name(Text(code)) }

// maskCode is Code for a result, which must have a code.
func (s Secrets) maskCode(code string) string {
	if code == "" {
		return ""
	}
	return cmp.Or(s.Code(code), mask)
}

// Name returns a provider's name for something, such as a reference; empty if it repeats a secret. With a mask in it,
// it would be another name.
func (s Secrets) Name(name string) string {
	if s.repeatedIn(name) {
		return ""
	}
	return name
}

// repeatedIn reports whether a text is a secret, or contains one.
func (s Secrets) repeatedIn(text string) bool {
	return strings.Contains(text, "_secret_") && clientSecret.MatchString(text) || slices.ContainsFunc(s, func(secret string) bool {
		return text == secret || len(secret) >= minMasked && strings.Contains(lower(text), lower(secret))
	})
}

// MaskResult masks a result. A reference that repeats a secret is removed; an undo then goes by its key.
func (s Secrets) MaskResult(r Result) Result {
	switch r := r.(type) {
	case Done:
		return Done{Reference: s.Name(r.Reference), Data: s.Data(r.Data)}
	case Refused:
		return Refused{Code: s.maskCode(r.Code), Detail: s.Text(r.Detail)}
	case Retry:
		r.Code, r.Detail = s.maskCode(r.Code), s.Text(r.Detail)
		return r
	case Waiting:
		return Waiting{Reference: s.Name(r.Reference), Action: s.data(withoutUnsafeURLs(r.Action))}
	case Unknown:
		r.Code, r.Detail, r.Reference = s.maskCode(r.Code), s.Text(r.Detail), s.Name(r.Reference)
		return r
	}
	return r
}

// Data masks a JSON object of StorableData, including client secrets.
func (s Secrets) Data(raw json.RawMessage) json.RawMessage {
	if s.absentIn(string(raw)) {
		return raw
	}
	return rewrite(s.data(raw), func(value any) any {
		if text, ok := value.(string); ok {
			return clientSecret.ReplaceAllString(text, mask)
		}
		return value
	})
}

// absentIn reports whether a JSON text certainly repeats no secret, which saves decoding it. Nothing in it may be escaped.
func (s Secrets) absentIn(text string) bool {
	if strings.ContainsRune(text, '\\') || s.repeatedIn(text) {
		return false
	}
	return !slices.ContainsFunc(s, func(secret string) bool { return len(secret) < minMasked && strings.Contains(text, secret) })
}

// data masks a JSON object of StorableData, including the names and numbers in it.
func (s Secrets) data(raw json.RawMessage) json.RawMessage {
	return rewrite(raw, func(value any) any {
		switch v := value.(type) {
		case string:
			return s.maskMember(v)
		case json.Number:
			if s.repeatedIn(v.String()) {
				return mask
			}
		case map[string]any:
			for name, member := range v {
				if shown := s.maskMember(name); shown != name {
					delete(v, name)
					v[shown] = member
				}
			}
		}
		return value
	})
}

func (s Secrets) maskMember(text string) string {
	if slices.Contains(s, text) {
		return mask
	}
	for _, secret := range s {
		if len(secret) >= minMasked {
			text = replace(text, secret)
		}
	}
	return text
}

// withoutUnsafeURLs removes addresses that a browser should not open from what a customer must do: a member named url,
// or with such an ending, that is not http or https, such as javascript:.
func withoutUnsafeURLs(action json.RawMessage) json.RawMessage {
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
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" &&
		!strings.ContainsFunc(text, unicode.IsSpace)
}

// rewrite applies change to each value of a JSON object, outer ones first. If the result is too long to store, it is
// empty.
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

// replace masks a secret in a text, in upper and lower case if it is long enough.
func replace(in, secret string) string {
	if len(secret) < minMasked {
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

// lower changes ASCII letters to lower case, which keeps the length.
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

// Masking returns an executor that masks the results of another one. It is a Looker if exec is one.
func Masking(exec Executor) Executor {
	m := masking{exec}
	if looker, ok := exec.(Looker); ok {
		return maskingLooker{m, looker}
	}
	return m
}

type masking struct{ exec Executor }

// masked makes a call that records the secrets it was made with.
func masked(ctx context.Context, c *Call, call func(context.Context, *Call) Result) Result {
	own, used := *c, []string{}
	own.secrets = &used
	result := call(ctx, &own)
	return c.Secrets(used...).MaskResult(result)
}

func (m masking) Do(ctx context.Context, c *Call) Result      { return masked(ctx, c, m.exec.Do) }
func (m masking) Undo(ctx context.Context, c *Call) Result    { return masked(ctx, c, m.exec.Undo) }
func (m masking) Operate(ctx context.Context, c *Call) Result { return masked(ctx, c, m.exec.Operate) }

type maskingLooker struct {
	masking
	looker Looker
}

func (m maskingLooker) Lookup(ctx context.Context, c *Call) Result {
	return masked(ctx, c, m.looker.Lookup)
}
