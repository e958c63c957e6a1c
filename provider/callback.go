package provider

import (
	"encoding/json"
	"fmt"
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
	if err := CheckReference(w.Reference); err != nil {
		return CallbackText{}, err
	}
	data, err := StorableData(w.Data)
	if err != nil {
		return CallbackText{}, fmt.Errorf("data %w", err)
	}
	return CallbackText{Reference: w.Reference, Code: Code(w.Code, paymentMethod), Detail: Text(w.Detail, paymentMethod), Data: data}, nil
}
