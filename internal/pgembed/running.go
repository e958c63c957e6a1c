package pgembed

import (
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

// Running finds the server that runs on a base folder, whichever process started it, and returns the connection string
// of its database postgres. Not ok means that no server accepts connections there, or that we may
// not look: only root and the server's own user can open the folders of data and socket.
func Running(dir string) (databaseURL string, ok bool) {
	f, err := readPIDFile(filepath.Join(dir, "data"))
	if err != nil || f.status != "ready" {
		return "", false
	}
	// The file outlives a server that was killed.
	conn, err := net.DialTimeout("unix", filepath.Join(f.socket(), ".s.PGSQL."+f.port()), time.Second)
	if err != nil {
		return "", false
	}
	conn.Close()
	return socketURL(f.socket(), f.port(), "postgres"), true
}

// port and socket are lines 4 and 5, which are there when the server is ready.
func (f pidFile) port() string   { return strings.TrimSpace(f.lines[3]) }
func (f pidFile) socket() string { return strings.TrimSpace(f.lines[4]) }

func socketURL(socket, port, database string) string {
	query := url.Values{"host": {socket}, "port": {port}}
	// A plus stands for a space in forms only: neither libpq nor pgx takes it for one.
	encoded := strings.ReplaceAll(query.Encode(), "+", "%20")
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/" + database, RawQuery: encoded}
	return u.String()
}
