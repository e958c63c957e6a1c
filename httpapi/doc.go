// Package httpapi is the JSON over HTTP edge of the service: it reads requests,
// makes one call to the engine for each, and writes the answers. It decides
// nothing about orders.
//
// Requests are read strictly (RFC 8259 within the limits of I-JSON, RFC 7493):
// what is accepted has one reading, whoever reads it. Faults of the caller are
// answered with problem documents (RFC 9457) that name the field and never repeat
// a text; the one exception is a conflict, which shows what is stored beside
// what was sent. Everything that is not the caller's fault is one of a few
// answers with Retry-After, or a mute 500. Fields that are not known are named in
// the answer, or refused if the caller prefers; query parameters are refused always.
//
// The OpenAPI 3.1 document is made from the types of this package; go generate
// writes it to openapi.yaml. The same types say how bodies are read, but for that
// of the process route: it is the hot one, and read by hand. No path of the API
// redirects, and no path segment in the place of an id has a meaning of its own, so any id
// can be asked for; the names that no path can carry are refused.
package httpapi
