package httpapi

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	handler := New(nil, Config{})
	served := httptest.NewRecorder()
	handler.ServeHTTP(served, httptest.NewRequest(http.MethodGet, "/openapi.yaml", nil))
	golden, err := os.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(golden, served.Body.Bytes()) {
		t.Error("openapi.yaml is not what the types say; run go generate and review the difference")
	}
}
