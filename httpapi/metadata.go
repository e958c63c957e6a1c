package httpapi

import (
	"bytes"
	"encoding/json"
	"maps"
	"strconv"
	"strings"

	"pawl/internal/provider"
)

// The limits of an order's metadata; lengths are in characters.
const (
	maxPairs = 50
	maxKey   = 40
	maxValue = 500
)

// metadata reads a map of strings and returns it as a JSON object with its keys in
// the order of jsonb, nil when it is empty. The keys in pointers are shown only when they could
// be keys.
func (d *decoder) metadata() []byte {
	if d.kind() != '{' {
		d.fault("/metadata", "wrong_type", "must be an object of strings")
		d.skip()
		return nil
	}
	pairs := map[string]string{}
	noted := len(d.faults)
	d.members(func(name []byte) {
		key := string(name)
		if code, detail := checkText(name, maxKey); code != "" {
			d.fault("/metadata", "key_"+code, "has a key that "+detail)
		} else {
			d.at = "metadata/" + pointerEscape.Replace(key)
		}
		pointer := "/" + d.at
		if value, ok := d.stringOf(pointer); ok {
			if code, detail := checkText(value, maxValue); code != "" && code != "empty" {
				d.fault(pointer, code, detail)
			}
			pairs[key] = string(value)
		}
		d.at = "metadata"
	})
	if len(pairs) > maxPairs {
		d.fault("/metadata", "too_many", "must have at most "+strconv.Itoa(maxPairs)+" keys, not "+strconv.Itoa(len(pairs)))
	}
	if len(d.faults) > noted || len(pairs) == 0 {
		return nil
	}
	return provider.AppendMetadata(nil, pairs)
}

// sameMetadata reports whether two JSON objects of strings have the same members.
func sameMetadata(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y map[string]string
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && maps.Equal(x, y)
}

// pointerEscape writes a name as a token of a JSON pointer (RFC 6901, section 3).
var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1")

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
