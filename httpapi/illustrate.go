package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

const problemMedia = "application/problem+json"

// illustrate adds the examples of an operation to its description: what is sent, what is answered, and every problem
// that its answers can be. Problems are alike everywhere, so they are among the components.
func illustrate(components *huma.Components, op *huma.Operation) {
	shown := examples[op.OperationID]
	if shown.Body != "" {
		op.RequestBody.Content[jsonMedia].Example = json.RawMessage(shown.Body)
	}
	for status, body := range map[int]any{http.StatusOK: shown.Answer, http.StatusAccepted: shown.Accepted} {
		if body != nil {
			op.Responses[strconv.Itoa(status)].Content[jsonMedia].Example = body
		}
	}
	codes, _ := op.Metadata["problems"].([]problemCode)
	for _, code := range codes {
		media := op.Responses[strconv.Itoa(kindOf(code).Status)].Content[problemMedia]
		if media.Examples == nil {
			media.Examples = map[string]*huma.Example{}
		}
		media.Examples[string(code)] = &huma.Example{Ref: "#/components/examples/" + string(code)}
		if components.Examples == nil {
			components.Examples = map[string]*huma.Example{}
		}
		components.Examples[string(code)] = &huma.Example{Value: exampleProblem(code)}
	}
}

func exampleProblem(code problemCode) *problem {
	if err, ok := exampleErrors()[code]; ok {
		return problemOf(err)
	}
	return newProblem(code, "")
}

// sampleProblem is the example of a problem on a page.
func sampleProblem(code problemCode) string { return sampleJSON(exampleProblem(code)) }

// sampleJSON is a value for people to read.
func sampleJSON(v any) string {
	var compact, indented bytes.Buffer
	if err := writeJSON(&compact, v); err != nil {
		panic("httpapi: example: " + err.Error()) // all of it is known at start
	}
	_ = json.Indent(&indented, compact.Bytes(), "", "  ") // it is JSON
	return indented.String()
}

// sampleRequest is the command that sends the example of an operation.
func sampleRequest(op *huma.Operation) string {
	shown := examples[op.OperationID]
	path := strings.NewReplacer("{orderId}", "order-123", "{item}", "widget", "{endpointId}", "whe_1", "{delivery}", "1042", "{version}", "1", "{token}", "aaaaaaaaaaaad3dv4yz7k5ym2qaaaaaaaaaaazc6ahqy7m2v3fpd7x6yuebq").Replace(op.Path)
	command := "curl '" + docsOrigin + path + shown.Query + "'"
	if op.Method == http.MethodPut || op.Method == http.MethodDelete {
		command = strings.Replace(command, "curl", "curl -X "+op.Method, 1)
	}
	if shown.Header != "" {
		command += " \\\n  -H '" + shown.Header + "'"
	}
	if shown.Body != "" {
		command += " \\\n  --json '" + shown.Body + "'"
	}
	return command
}
