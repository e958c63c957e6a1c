package dbtest

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync/atomic"
)

// link is one connection through the proxy.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	heard          io.Reader         // what the client sends, as far as it is let through
	prepared       map[string]string // name of the prepared statement → name of the query
	deaf           atomic.Bool       // no reply goes to the client any more
	hushed         atomic.Bool       // deaf, and the client is not to learn of it
}

func (l *link) close() {
	l.client.Close()
	l.server.Close()
}

// cancelRequest begins a request to cancel a statement, which pgx sends when a connection ends under it. It is lost like
// the connection.
const cancelRequest = 80877102

// fromClient forwards whole exchanges: what the client sends until it waits for an answer.
func (l *link) fromClient() {
	var startup [4]byte
	if _, err := io.ReadFull(l.heard, startup[:]); err != nil {
		l.close()
		return
	}
	rest := make([]byte, binary.BigEndian.Uint32(startup[:])-4)
	if _, err := io.ReadFull(l.heard, rest); err != nil || binary.BigEndian.Uint32(rest) == cancelRequest {
		l.close()
		return
	}
	exchange := append(startup[:], rest...)
	for f := Passes; ; {
		if f == LoseRequest {
			l.proxy.lose()
			l.close()
			return
		}
		if f == HushRequest || f == HushReply {
			l.hushed.Store(true)
			l.proxy.lose()
		}
		if f == HushRequest {
			_, _ = io.Copy(io.Discard, l.client)
			l.close()
			return
		}
		l.deaf.Store(f == LoseReply || f == LoseClient || f == HushReply)
		if _, err := l.server.Write(exchange); err != nil || f == LoseClient {
			l.client.Close() // and the server's side when its answer is there
			return
		}
		statement, next, err := l.exchange()
		if err != nil {
			l.close()
			return
		}
		exchange, f = next, Passes
		if statement != "" {
			f = l.proxy.fateOf(statement)
		}
	}
}

// exchange reads messages up to one that is answered. It names the statement if one is executed.
func (l *link) exchange() (statement string, exchange []byte, err error) {
	bound := ""
	for {
		kind, body, message, err := readMessage(l.heard)
		if err != nil {
			return "", nil, err
		}
		exchange = append(exchange, message...)
		switch kind {
		case 'P': // Parse: statement, query
			name, query, _ := bytes.Cut(body, []byte{0})
			query, _, _ = bytes.Cut(query, []byte{0})
			l.prepared[string(name)] = QueryName(string(query))
		case 'B': // Bind: portal, statement
			_, name, _ := bytes.Cut(body, []byte{0})
			name, _, _ = bytes.Cut(name, []byte{0})
			bound = l.prepared[string(name)]
		case 'E': // Execute
			statement = bound
		case 'Q': // Query
			query, _, _ := bytes.Cut(body, []byte{0})
			return QueryName(string(query)), exchange, nil
		case 'S', 'X', 'H', 'p': // Sync, Terminate, Flush, Password
			return statement, exchange, nil
		}
	}
}

// fromServer forwards replies, until the client is not to hear them: then it waits for the end of the statement.
func (l *link) fromServer() {
	defer func() {
		l.close()
		l.proxy.mu.Lock()
		delete(l.proxy.links, l)
		l.proxy.mu.Unlock()
	}()
	for {
		kind, _, message, err := readMessage(l.server)
		if err != nil {
			return
		}
		if l.deaf.Load() {
			if kind == 'Z' && !l.hushed.Load() { // ReadyForQuery: committed or rolled back
				l.proxy.lose()
				return
			}
			continue
		}
		if _, err := l.client.Write(message); err != nil {
			return
		}
	}
}

func readMessage(from io.Reader) (kind byte, body, message []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, nil, nil, err
	}
	message = make([]byte, 1+binary.BigEndian.Uint32(head[1:]))
	copy(message, head[:])
	_, err = io.ReadFull(from, message[5:])
	return head[0], message[5:], message, err
}

// QueryName is the name that sqlc writes above a query, or else its first words.
func QueryName(query string) string {
	if rest, named := strings.CutPrefix(query, "-- name: "); named {
		name, _, _ := strings.Cut(rest, " ")
		return name
	}
	return query[:min(len(query), 30)]
}
