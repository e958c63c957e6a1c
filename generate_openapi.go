//go:build ignore

package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"

	"pawl/httpapi"
)

// Writes the API description that the service serves, which is made from its types.
func main() {
	served := httptest.NewRecorder()
	httpapi.New(nil, httpapi.Config{}).ServeHTTP(served, httptest.NewRequest(http.MethodGet, "/openapi.yaml", nil))
	if err := os.WriteFile("httpapi/openapi.yaml", served.Body.Bytes(), 0o644); err != nil {
		slog.Error("write API description", "error", err)
		os.Exit(1)
	}
}
