package pgembed

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
)

// Who may connect (PostgreSQL manual, 21.1 and 21.2). The kernel tells the server whose
// process is at the other end of the socket. Roles that people make have passwords. There is no line for TCP.
const (
	hbaFile = `# Written at each start: changes are lost.
local  all  %[1]s  peer  map=%[1]s
local  all  all    scram-sha-256
`
	identFile = "# Written at each start: changes are lost.\n"
)

// writeAccess lets root and ourselves in as the superuser. Root could come in anyway, as any user. The server's own account
// is let in only if it is us: it may be shared with other programs.
func (s *Server) writeAccess() error {
	ident := identFile
	for _, uid := range slices.Compact([]int{0, os.Geteuid()}) {
		name, err := userName(uid)
		if err != nil {
			return fmt.Errorf("say who may connect: %w", err)
		}
		ident += fmt.Sprintf("%s  %s  %s\n", superuser, quoted(name), superuser)
	}
	for name, text := range map[string]string{"pg_hba.conf": fmt.Sprintf(hbaFile, superuser), "pg_ident.conf": ident} {
		if err := replaceOwned(s.folders.data, name, []byte(text), s.account); err != nil {
			return fmt.Errorf("say who may connect: %w", err)
		}
	}
	return nil
}

// userName is the name by which the server knows root or us. A program that was built without cgo knows local users only.
func userName(uid int) (string, error) {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username, nil
	}
	id, err := findProgram("id")
	if err != nil {
		return "", err
	}
	printed, err := exec.Command(id, "-un").Output()
	if err != nil {
		return "", fmt.Errorf("user %d has no name: %w", uid, err)
	}
	return strings.TrimSpace(string(printed)), nil
}

// quoted is one word of pg_ident.conf, whatever the name.
func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
