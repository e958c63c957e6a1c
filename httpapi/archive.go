package httpapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

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

// ArchiveColumns returns the columns of an archive in CSV: the fields that a stored order can have, one of which is the
// number of its calls, its history and its calls.
func ArchiveColumns() []string {
	names := slices.DeleteFunc(slices.Clone(fieldsOf(reflect.TypeFor[order]()).names), func(name string) bool {
		return name == "dryRun" || name == "forgotten" || name == "ignoredFields"
	})
	return append(names, "transitions", "callList")
}

// ArchiveRecord returns a line of an archive as a record with these columns: a string is its text, everything else its
// JSON, and a field that the order lacks is empty.
func ArchiveRecord(columns []string, line []byte) ([]string, error) {
	var parts map[string]json.RawMessage
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &parts); err != nil {
		return nil, fmt.Errorf("read line: %w", err)
	}
	if err := json.Unmarshal(parts["order"], &fields); err != nil {
		return nil, fmt.Errorf("read order: %w", err)
	}
	fields["transitions"], fields["callList"] = parts["transitions"], parts["calls"]
	record := make([]string, len(columns))
	for i, name := range columns {
		if json.Unmarshal(fields[name], &record[i]) != nil { // no string
			record[i] = string(fields[name])
		}
	}
	return record, nil
}
