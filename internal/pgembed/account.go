package pgembed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// account is the unprivileged user that root runs the server as. A nil account is the current user.
type account struct {
	name     string
	uid, gid uint32
}

// ownName is the user that root creates for the server, unless another one is set.
const ownName = "pawl"

// nobody is used by many programs. Linux also shows its ID for owners that it can't map.
const nobody = 65534

// chooseAccount returns nil unless we are root. The owner of existing data comes first, because PostgreSQL does not
// open the folder of another user.
func (s *Server) chooseAccount(ctx context.Context) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	owner, err := ownerOf(s.folders.data)
	if err != nil {
		return nil, err
	}
	if s.cfg.User != "" {
		chosen, err := namedAccount(s.cfg.User, owner, s.folders.data)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrSetting, err)
		}
		return chosen, nil
	}
	if owner == nil {
		return s.ownAccount(ctx, ownName)
	}
	if owner.isNobody() {
		return nil, fmt.Errorf("%s belongs to user %s, which other programs run as: give it to a user of its own (chown -R)",
			s.folders.data, owner.name)
	}
	return owner, nil
}

func namedAccount(name string, owner *account, data string) (*account, error) {
	chosen, err := lookupAccount(name)
	switch {
	case errors.Is(err, user.UnknownUserError(name)):
		return nil, fmt.Errorf("there is no user %s to run PostgreSQL as", name)
	case err != nil:
		return nil, err
	case chosen.uid == 0:
		return nil, fmt.Errorf("PostgreSQL does not run as root: set an unprivileged user, not %s", name)
	case chosen.isNobody():
		return nil, fmt.Errorf("other programs run as %s, and could read the database: set another user", name)
	case owner != nil && owner.uid != chosen.uid:
		return nil, fmt.Errorf("%s belongs to user %s: run PostgreSQL as that user, not as %s", data, owner.name, name)
	}
	return chosen, nil
}

func (a *account) isNobody() bool { return a.uid == nobody || a.name == "nobody" }

// ownAccount is a user only for our servers, created if missing. As nobody or postgres, other programs could read the
// data, and initdb requires a user with a name.
func (s *Server) ownAccount(ctx context.Context, name string) (*account, error) {
	own, err := lookupAccount(name)
	if !errors.Is(err, user.UnknownUserError(name)) {
		return own, err
	}
	if s.looking { // it would be created
		return nil, nil
	}
	s.cfg.Log.Info("creating a system user to run PostgreSQL as", "user", name)
	makeErr := makeUser(ctx, name)
	if own, err = lookupAccount(name); err != nil { // another process may have created it
		return nil, fmt.Errorf("PostgreSQL does not run as root, and user %s can't be created for it (%w): "+
			"set an unprivileged user with --pg-user or PAWL_PG_USER", name, makeErr)
	}
	return own, nil
}

// makeUser creates a user who can't log in. useradd waits for others that change users.
func makeUser(ctx context.Context, name string) error {
	useradd, err := findProgram("useradd")
	if err != nil {
		return err
	}
	printed, err := output(ctx, command(useradd, nil, "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent",
		"--shell", "/usr/sbin/nologin", "--comment", "PostgreSQL of Pawl", name))
	if err != nil {
		return fmt.Errorf("%w: %s", err, lastLines(strings.NewReader(printed)))
	}
	return nil
}

// ownerOf is the owner of the data folder; nil: there is none, or it is root.
func ownerOf(data string) (*account, error) {
	info, err := os.Stat(data)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read owner of data folder: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid == 0 {
		return nil, nil
	}
	owner := &account{name: strconv.Itoa(int(stat.Uid)), uid: stat.Uid, gid: stat.Gid}
	if u, err := user.LookupId(owner.name); err == nil {
		owner.name = u.Username
	}
	return owner, nil
}

// lookupAccount returns a user.UnknownUserError if there is no user of that name.
func lookupAccount(name string) (*account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return nil, fmt.Errorf("look up user %s: %w", name, err)
	}
	return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
}

// own makes the account the owner of path, without following a link.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Lchown(path, int(a.uid), int(a.gid))
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// checkReach checks whether the user of the server can reach its folders, before initdb reports it less clearly. Only
// the kernel knows (access lists, mount options), so a program is run there.
func (s *Server) checkReach(ctx context.Context) error {
	if s.account == nil {
		return nil
	}
	cmd := s.command(syscall.SIGKILL, "postgres", "--version")
	cmd.Dir = s.folders.log
	if _, err := output(ctx, cmd); err != nil {
		return fmt.Errorf("user %s, which PostgreSQL runs as, can't enter %s: every parent folder must let it pass (chmod o+x), "+
			"or choose another data folder such as /var/lib/pawl: %w", s.account.name, s.folders.base, err)
	}
	return nil
}
