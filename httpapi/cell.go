package httpapi

import (
	"fmt"
	"net/http"
	"strings"

	"pawl/engine"
	"pawl/internal/cell"
)

// otherCell is the error of a request about an order of another cell. It is found before anything is read, so that no
// proxy or client can put an order into two cells.
type otherCell struct{ order, here cell.Cell }

func (o *otherCell) Error() string {
	return fmt.Sprintf("The order belongs to cell %s, and this is cell %s.", o.order, o.here)
}

// ownOrder returns an *otherCell unless all orders belong to the cell of this service.
func (s *server) ownOrder(orderIDs ...string) error {
	for _, id := range orderIDs {
		if !s.Cell.Has(id) {
			return &otherCell{cell.Of(id, s.Cell.Of), s.Cell}
		}
	}
	return nil
}

// ownCallback is ownOrder for the order of a callback. A token that can't be read is for the handler to refuse.
func (s *server) ownCallback(token string) error {
	first, ok := engine.TokenHash(token)
	if of := cell.OfHash(first, s.Cell.Of); ok && of != s.Cell {
		return &otherCell{of, s.Cell}
	}
	return nil
}

// namesOrder reports whether requests with this path are about orders that they name.
func namesOrder(path string) bool {
	return strings.Contains(path, "{orderId}") || strings.Contains(path, "{token}") || path == processPath || strings.HasPrefix(path, bulkPath)
}

// ofThisCell serves a route that names an order or a callback only if the order belongs to this cell.
func (s *server) ofThisCell(pattern string, next http.HandlerFunc) http.HandlerFunc {
	owns := func(r *http.Request) error { return s.ownOrder(r.PathValue("orderId")) }
	switch {
	case s.Cell == cell.All:
		return next
	case strings.Contains(pattern, "{token}"):
		owns = func(r *http.Request) error { return s.ownCallback(r.PathValue("token")) }
	case !strings.Contains(pattern, "{orderId}"):
		return next
	}
	return s.answered(func(w http.ResponseWriter, r *http.Request) error {
		if err := owns(r); err != nil {
			return err
		}
		next(w, r)
		return nil
	})
}
