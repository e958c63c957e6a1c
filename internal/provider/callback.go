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
// an answer to a call: code and detail are cut, and nothing holds what is withheld. The
// error says what of it can't be kept.
func (t CallbackText) Storable(withheld Withheld) (CallbackText, error) {
	if err := CheckReference(t.Reference); err != nil {
		return CallbackText{}, err
	}
	data, err := StorableData(t.Data)
	if err != nil {
		return CallbackText{}, fmt.Errorf("data %w", err)
	}
	return CallbackText{Reference: withheld.Name(t.Reference), Code: withheld.Code(t.Code), Detail: withheld.Text(t.Detail), Data: withheld.Data(data)}, nil
}
