package pgembed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

var errUntrusted = errors.New("another user could have replaced it")

// trusted resolves the links of a program or folder. It returns an error if anyone but root and the current user could
// replace it: it, all folders and all links on the way must belong to one of them, and no other user may write there. A
// parent folder may be sticky like /tmp, where others can create files but not replace ours. The path that it returns,
// which has no links, is the one to run.
func trusted(path string) (resolved string, err error) {
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	const root = string(filepath.Separator)
	resolved = root
	rest := strings.Split(path, root)
	for links := 0; len(rest) > 0; {
		place := filepath.Join(resolved, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(place)
		if err != nil {
			return "", err
		}
		passing := info.IsDir() && info.Mode()&fs.ModeSticky != 0 && len(rest) > 0
		if why := replaceable(info, passing); why != "" {
			return "", fmt.Errorf("%w: %s %s", errUntrusted, place, why)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			resolved = place
			continue
		}
		target, err := os.Readlink(place)
		if err != nil {
			return "", err
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "follow links", Path: path, Err: syscall.ELOOP}
		}
		if filepath.IsAbs(target) {
			resolved = root
		}
		rest = append(strings.Split(target, root), rest...)
	}
	return resolved, nil
}

const maxLinks = 40 // as on Linux

// findProgram finds a program in PATH, and in /usr/sbin, which may be missing there. It skips programs that are not
// trusted.
func findProgram(name string) (string, error) {
	err := fmt.Errorf("%s is not installed", name)
	for _, folder := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin") {
		path := filepath.Join(folder, name)
		if _, missing := exec.LookPath(path); missing != nil || !filepath.IsAbs(folder) {
			continue
		}
		resolved, untrusted := trusted(path)
		if untrusted == nil {
			return resolved, nil
		}
		err = fmt.Errorf("%s is not used: %w", name, untrusted)
	}
	return "", err
}

// environment returns some of our environment variables, without folders in which others could put programs, libraries
// or settings.
func environment(names ...string) (env []string) {
	for _, name := range names {
		value, ok := os.LookupEnv(name)
		if ok && slices.Contains([]string{"PATH", "HOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}, name) {
			value = trustedFolders(filepath.SplitList(value))
			ok = value != ""
		}
		if ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// trustedFolders removes untrusted folders from a list, and resolves links.
func trustedFolders(folders []string) string {
	var kept []string
	for _, folder := range folders {
		resolved, err := trusted(folder)
		if err == nil && filepath.IsAbs(folder) && !slices.Contains(kept, resolved) {
			kept = append(kept, resolved)
		}
	}
	return strings.Join(kept, string(filepath.ListSeparator))
}

// replaceable says why another user could change a file; empty: none could. passing permits others to write there.
func replaceable(info fs.FileInfo, passing bool) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode().Perm(); {
	case !ok:
		return "has no owner"
	case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return fmt.Sprintf("belongs to user %d", stat.Uid)
	case passing, info.Mode()&fs.ModeSymlink != 0: // the mode of a link means nothing
		return ""
	case mode&0o002 != 0:
		return "is writable by everyone (chmod o-w)"
	case mode&0o020 != 0 && !ownGroup(stat.Uid, stat.Gid):
		return fmt.Sprintf("is writable by group %d (chmod g-w)", stat.Gid)
	}
	return ""
}

// ownGroup reports whether a group has only its user as a member, judging by its name: some systems create one for each
// user, which may write. On macOS, members of the group admin may become root.
func ownGroup(uid, gid uint32) bool {
	const admin = 80
	if runtime.GOOS == "darwin" && (gid == 0 || gid == admin) {
		return true
	}
	group, err := user.LookupGroupId(strconv.Itoa(int(gid)))
	if err != nil {
		return false
	}
	owner, err := user.LookupId(strconv.Itoa(int(uid)))
	return err == nil && owner.Username == group.Name
}
