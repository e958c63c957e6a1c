package httpapi

import (
	"encoding/json"
	"fmt"

	"pawl/db"
	"pawl/internal/orders"
)

// ArchiveLine is a line of an archive: an order as the API shows it, with its history and its calls.
func ArchiveLine(o *orders.Order, history []db.Transition, rows []db.CallsOfRow) ([]byte, error) {
	line, err := json.Marshal(struct {
		Order       order        `json:"order"`
		Transitions []transition `json:"transitions"`
		Calls       []call       `json:"calls"`
	}{orderOf(o), each(history, transitionOf), each(rows, callOf)})
	if err != nil {
		return nil, fmt.Errorf("write order %q: %w", o.OrderID, err)
	}
	return append(line, '\n'), nil
}
