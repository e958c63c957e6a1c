package httpapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// The limits of an order's metadata; lengths are in characters.
const (
	maxPairs = 50
	maxKey   = 40
	maxValue = 500
)

type pair struct{ key, value string }

// metadata reads a map of strings and returns it as a JSON object with its keys in
// the order of jsonb, nil when it is empty. The keys in pointers are shown only when they could
// be keys.
func (d *decoder) metadata() ([]byte, error) {
	if d.peek() != '{' {
		d.fault("/metadata", "wrong_type", "must be an object of strings")
		return nil, d.skip()
	}
	var pairs []pair
	noted := len(d.faults)
	err := d.members(func(name []byte) error {
		pointer := "/metadata"
		if code, detail := checkText(name, maxKey); code != "" {
			d.fault(pointer, "key_"+code, "has a key that "+detail)
		} else {
			pointer += "/" + pointerEscape.Replace(string(name))
		}
		value, ok, err := d.stringOf(pointer)
		if err != nil {
			return locate(err, pointer)
		}
		if !ok {
			return nil
		}
		if code, detail := checkText(value, maxValue); code != "" && code != "empty" {
			d.fault(pointer, code, detail)
		}
		pairs = append(pairs, pair{string(name), string(value)})
		return nil
	})
	if len(pairs) > maxPairs {
		d.fault("/metadata", "too_many", "must have at most "+strconv.Itoa(maxPairs)+" keys")
	}
	if err != nil || len(d.faults) > noted || len(pairs) == 0 {
		return nil, err
	}
	return encodePairs(pairs), nil
}

// pointerEscape writes a name as a token of a JSON pointer (RFC 6901, section 3).
var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1")

// encodePairs writes the pairs in the order in which jsonb keeps them: by the length
// of the key in bytes, then by its bytes. An order has the same text before and after
// it was stored, as its ETag promises.
func encodePairs(pairs []pair) []byte {
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(len(a.key), len(b.key)), strings.Compare(a.key, b.key))
	})
	b := []byte{'{'}
	for i, p := range pairs {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, p.key)
		b = append(b, ':')
		b = appendString(b, p.value)
	}
	return append(b, '}')
}

// compact returns JSON without the spaces that jsonb prints between its tokens.
func compact(text []byte) []byte {
	if len(text) == 0 {
		return nil
	}
	out := bytes.NewBuffer(make([]byte, 0, len(text)))
	if err := json.Compact(out, text); err != nil { // only what is not from a jsonb column
		return text
	}
	return out.Bytes()
}
