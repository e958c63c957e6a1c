package pgembed

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// arguments are the command line of the server. Settings stand there rather than in postgresql.conf so that each start
// has those of this version and of this machine's memory.
func (s *Server) arguments() []string {
	settings := map[string]string{
		"listen_addresses":        "",
		"unix_socket_directories": s.folders.socket,
		"unix_socket_permissions": "0700",

		"fsync":              "on",
		"synchronous_commit": "on",
		"full_page_writes":   "on",

		"shared_buffers":  strconv.FormatInt(sharedBuffers(memory())/mebibyte, 10) + "MB",
		"max_wal_size":    "4GB",
		"wal_compression": "on",
		"max_connections": "100",
		"jit":             "off", // to compile a statement takes longer than any of the service's statements
		"timezone":        "UTC",

		"log_timezone":             "UTC",
		"log_min_messages":         "warning",
		"logging_collector":        "on",
		"log_directory":            s.folders.log,
		"log_filename":             "postgres-%a.log", // a week of files, each emptied when its day comes round again
		"log_rotation_age":         "1d",
		"log_rotation_size":        "0",
		"log_truncate_on_rotation": "on",
	}
	maps.Copy(settings, s.cfg.Settings)
	args := []string{"-D", s.folders.data, "-p", port}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

const mebibyte = 1 << 20

// sharedBuffers is a quarter of the memory, as the PostgreSQL manual advises (19.4.1), between 32 and 512 MiB: the
// service shares the machine.
func sharedBuffers(memory int64) int64 {
	return min(max(memory/4, 32*mebibyte), 512*mebibyte)
}

// memory is what this process may use in bytes: the machine's or, if less, the control group's. Where neither can be read
// (macOS) it is taken to be plenty.
func memory() int64 {
	size := int64(math.MaxInt64)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kib int64
		if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kib); err == nil {
			size = kib << 10
		}
	}
	for _, limit := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, _ := os.ReadFile(limit)
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			size = min(size, n)
		}
	}
	return size
}
