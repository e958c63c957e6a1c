package provider

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The limits of data that is stored with an order.
const (
	maxData  = 16 << 10 // bytes
	maxDepth = 32       // of nested objects and arrays
)

// StorableData returns a JSON object that a jsonb column accepts, or nil if there is none. An answer that can't be
// stored would be requested again and again. It rejects what jsonb rejects (U+0000 and enormous numbers) and what would
// make jsonb slow; lone surrogates become U+FFFD. The error is a predicate, such as "is not an object".
func StorableData(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	if isPlain(raw) {
		return raw, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil || object == nil {
		return nil, errors.New("is not an object")
	}
	if err := checkValue(object, maxDepth); err != nil {
		return nil, err
	}
	return encodeData(object)
}

// isPlain reports whether a text is certainly an object that can be stored as it is, which saves decoding it: it has no
// escapes and no exponents, is not too long, and has too few brackets to be nested too deeply.
func isPlain(raw json.RawMessage) bool {
	if raw[0] != '{' || len(raw) > maxData || bytes.IndexByte(raw, '\\') >= 0 || !utf8.Valid(raw) || !json.Valid(raw) {
		return false
	}
	brackets, inString := 0, false
	for i, c := range raw {
		switch {
		case c == '"':
			inString = !inString
		case inString:
		case c == '{', c == '[':
			brackets++
		case (c == 'e' || c == 'E') && '0' <= raw[i-1] && raw[i-1] <= '9': // not that of true or false
			return false
		}
	}
	return brackets <= maxDepth
}

// encodeData encodes decoded JSON. Its only error is that the text is too long.
func encodeData(object any) (json.RawMessage, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(object) // what was read can be written
	if out.Len()-1 > maxData { // Encode ends with a line feed
		return nil, errors.New("is longer than 16 KiB")
	}
	return json.RawMessage(bytes.TrimSuffix(out.Bytes(), []byte("\n"))), nil
}

// checkValue rejects values that are nested more than depth deep, or that jsonb rejects.
func checkValue(value any, depth int) (err error) {
	if depth < 0 {
		return errors.New("is nested too deeply")
	}
	switch v := value.(type) {
	case string:
		return checkString(v)
	case json.Number:
		return checkNumber(v.String())
	case map[string]any:
		for key, member := range v {
			err = cmp.Or(err, checkString(key), checkValue(member, depth-1))
		}
	case []any:
		for _, element := range v {
			err = cmp.Or(err, checkValue(element, depth-1))
		}
	}
	return err
}

func checkString(s string) error {
	if strings.ContainsRune(s, 0) {
		return errors.New("has U+0000 in a string")
	}
	return nil
}

// checkNumber keeps a number far from the limits of numeric, 131,072 digits before the point and 16,383 after it, which
// a short exponent can reach.
func checkNumber(text string) error {
	_, exponent, ok := strings.Cut(strings.ToLower(text), "e")
	if !ok {
		return nil
	}
	if n, err := strconv.Atoi(exponent); err != nil || n < -999 || n > 999 {
		return errors.New("has a number that is out of range")
	}
	return nil
}

// The longest texts that are stored, in characters.
const (
	maxWords     = 200 // of a code or detail
	maxReference = 255
)

// Text makes foreign text safe to store, log and show: up to 200 printable characters. Others become blanks, because
// control characters can forge lines of a log, and those that change the direction of text can forge what a line says.
// For text that may repeat secrets, use Secrets.Text.
func Text(words string) string {
	words = Printable(words)
	count := 0
	for i := range words {
		if count++; count > maxWords {
			return words[:i]
		}
	}
	return words
}

// Printable replaces other characters by blanks.
func Printable(words string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, words)
}

// CheckReference returns nil if a text can be stored as a provider's reference.
func CheckReference(reference string) error {
	if utf8.RuneCountInString(reference) > maxReference || strings.ContainsFunc(reference, unicode.IsControl) {
		return errors.New("reference is too long or has control characters")
	}
	return nil
}

// CallbackText holds the texts of an answer that arrived without a call.
type CallbackText struct {
	Reference, Code, Detail string
	Data                    json.RawMessage // a JSON object of up to 16 KiB, or nil
}

// Storable returns the texts as they can be stored and shown, by the rules for answers to calls: code and detail are
// cut, and secrets are masked. The error says which text can't be stored.
func (t CallbackText) Storable(secrets Secrets) (CallbackText, error) {
	if err := CheckReference(t.Reference); err != nil {
		return CallbackText{}, err
	}
	data, err := StorableData(t.Data)
	if err != nil {
		return CallbackText{}, fmt.Errorf("data %w", err)
	}
	return CallbackText{
		Reference: secrets.Name(t.Reference), Code: secrets.Code(t.Code), Detail: secrets.Text(t.Detail), Data: secrets.Data(data),
	}, nil
}
