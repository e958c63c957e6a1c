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

var errUntrusted = errors.New("another user could have put it there")

// trusted follows the links of a program or folder, and returns an error if somebody other than root and ourselves could
// put something else in its place: it, all folders on the way and all links belong to root or to us, and nobody else may
// write there. A folder above may be one like /tmp (sticky): others may make files in it, but replace only their own.
// Run what it returns: nothing on that path is a link.
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

// findProgram finds a program of the system, and returns the path to run it by. Programs that are not trusted are passed
// over, as if PATH did not have them. Not every root has /usr/sbin in PATH.
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
		err = fmt.Errorf("%s is not run: %w", name, untrusted)
	}
	return "", err
}

// environment are the variables of ours with these names. Programs are not told of folders where others could put programs,
// libraries or settings for them.
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

// trustedFolders is a list of folders without those where others could put something, and without links.
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

// replaceable says why somebody else could change what info describes; passing says that others may write there.
func replaceable(info fs.FileInfo, passing bool) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode().Perm(); {
	case !ok:
		return "does not say whose it is"
	case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return fmt.Sprintf("belongs to user %d", stat.Uid)
	case passing, info.Mode()&fs.ModeSymlink != 0: // the mode of a link means nothing
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
