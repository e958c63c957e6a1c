package provider

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
)

// The limits of data that is kept on an order.
const (
	maxData  = 16 << 10 // bytes
	maxDepth = 32       // objects and arrays within each other
)

// StorableData returns a JSON object as it is kept in a jsonb column, nil when there is none.
// The column must take it: an answer that can't be stored would be asked for again and
// again. It refuses what jsonb refuses, U+0000 and enormous numbers, and what would make
// it slow; halves of surrogate pairs become U+FFFD. The error says what is wrong, as "is not an object".
func StorableData(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
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

// encodeData writes what was read of a JSON text. The error says that it is too long.
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

// checkValue refuses what is nested more than depth deep, and what jsonb refuses.
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

// checkNumber keeps a number far from the limits of numeric, 131,072 digits before the
// point and 16,383 after it, which a short exponent reaches.
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
