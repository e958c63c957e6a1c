package provider

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// CallbackText holds the texts of an answer that came without a call.
type CallbackText struct {
	Reference, Code, Detail string
	Data                    json.RawMessage // a JSON object of up to 16 KiB, or nil
}

// Storable returns the texts as they can be stored and shown, under the rules for those of
// an answer to a call: code and detail are cut, and hold nothing of the payment method. The
// error says what of it can't be kept.
func (w CallbackText) Storable(paymentMethod string) (CallbackText, error) {
	if utf8.RuneCountInString(w.Reference) > maxReference || strings.ContainsFunc(w.Reference, unicode.IsControl) {
		return CallbackText{}, errors.New("reference is too long or has control characters")
	}
	data, err := storable(w.Data)
	if err != nil {
		return CallbackText{}, fmt.Errorf("data %w", err)
	}
	a := answer{withheld: []string{paymentMethod}}
	return CallbackText{
		Reference: w.Reference, Data: data, Detail: a.text(w.Detail),
		Code: a.code(&reply{Code: word(w.Code)}, ""),
	}, nil
}
