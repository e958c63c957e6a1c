package pgembed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// account is the unprivileged user that root runs the server as. A nil account stands for ourselves.
type account struct {
	name     string
	uid, gid uint32
}

// chooseAccount blames the setting for a user that won't do.
func (s *Server) chooseAccount() (*account, error) {
	chosen, err := chooseAccount(s.cfg.User, s.folders.data)
	if err != nil && s.cfg.User != "" {
		return nil, fmt.Errorf("%w: %w", ErrSetting, err)
	}
	return chosen, err
}

// chooseAccount returns nil unless we are root. The owner of existing data goes before the usual names: PostgreSQL
// opens no folder of another user, and a user named postgres may have come with a package installed later.
func chooseAccount(name, data string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	owner, err := ownerOf(data)
	if err != nil {
		return nil, err
	}
	if name == "" && owner != nil {
		return owner, nil
	}
	chosen, err := lookupAccount(name)
	if err != nil {
		return nil, err
	}
	if owner != nil && owner.uid != chosen.uid {
		return nil, fmt.Errorf("%s belongs to user %s: run PostgreSQL as that user, not as %s", data, owner.name, chosen.name)
	}
	return chosen, nil
}

// ownerOf is the account that owns the data folder, nil where there is none or root made it for nobody in particular.
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

// lookupAccount needs an entry in the user database: initdb refuses to run as a bare number.
func lookupAccount(name string) (*account, error) {
	names := []string{name}
	if name == "" {
		names = []string{"postgres", "nobody"}
	}
	for _, n := range names {
		u, err := user.Lookup(n)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("look up user %s: %w", n, err)
		}
		if uid == 0 {
			return nil, fmt.Errorf("PostgreSQL refuses to run as root: name an unprivileged user, not %s", n)
		}
		return &account{name: n, uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("PostgreSQL refuses to run as root, and this machine has no user %q to run it as", names)
}

// own makes path the account's, and never what a link there leads to.
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

// checkReach finds out whether the server's user can get to its folders, before initdb reports it less clearly.
// Only the kernel knows (access lists, mount options), so the server's program is run there.
func (s *Server) checkReach(ctx context.Context) error {
	if s.account == nil {
		return nil
	}
	cmd := s.command("postgres", "--version")
	cmd.Dir = s.folders.log
	if _, err := output(ctx, cmd); err != nil {
		return fmt.Errorf("user %s, which PostgreSQL runs as, cannot enter %s: every parent folder must let that user pass (chmod o+x), "+
			"or choose another data folder such as /var/lib/pawl: %w", s.account.name, s.folders.base, err)
	}
	return nil
}
