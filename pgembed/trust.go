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
	"strconv"
	"syscall"
)

var errUntrusted = errors.New("somebody else could have put it there")

// trusted follows the links of a program or folder, and returns an error if somebody other than root and ourselves could
// put something else in its place: it and all folders above it have to belong to root or to us, and nobody else may write
// there. A folder above may be one like /tmp (sticky): others may make files in it, but replace only their own.
func trusted(path string) (resolved string, err error) {
	if resolved, err = filepath.EvalSymlinks(path); err == nil {
		resolved, err = filepath.Abs(resolved)
	}
	if err != nil {
		return "", err
	}
	for place, last := resolved, ""; place != last; place, last = filepath.Dir(place), place {
		info, err := os.Lstat(place)
		if err != nil {
			return "", err
		}
		passing := info.IsDir() && info.Mode()&fs.ModeSticky != 0 && place != resolved
		if why := replaceable(info, passing); why != "" {
			return "", fmt.Errorf("%w: %s %s", errUntrusted, place, why)
		}
	}
	return resolved, nil
}

// findProgram looks for a trusted program of the system, by names or paths.
func findProgram(names ...string) (path string, err error) {
	for _, name := range names {
		if path, err = exec.LookPath(name); err == nil {
			if _, err = trusted(path); err != nil {
				return "", fmt.Errorf("%s is not run: %w", name, err)
			}
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed", names[0])
}

// replaceable says why somebody else could change what info describes; passing says that others may write there.
func replaceable(info fs.FileInfo, passing bool) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode().Perm(); {
	case !ok:
		return "does not say whose it is"
	case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return fmt.Sprintf("belongs to user %d", stat.Uid)
	case passing:
		return ""
	case mode&0o002 != 0:
		return "can be written by everybody (chmod o-w)"
	case mode&0o020 != 0 && !ownGroup(stat.Uid, stat.Gid):
		return fmt.Sprintf("can be written by group %d (chmod g-w)", stat.Gid)
	}
	return ""
}

// ownGroup tells whether a group has only its user in it, as far as its name says: systems that make one for each user
// leave it the right to write. On macOS, who is in the group admin may become root.
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
