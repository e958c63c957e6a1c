package httpapi

import (
	"bytes"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	handler := New(nil, Config{})
	served := httptest.NewRecorder()
	handler.ServeHTTP(served, httptest.NewRequest(http.MethodGet, "/openapi.yaml", nil))
	if *update {
		if err := os.WriteFile("openapi.yaml", served.Body.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(golden, served.Body.Bytes()) {
		t.Error("openapi.yaml is not what the types say; run go test ./httpapi -run OpenAPI -update and review the difference")
	}
}
