// Package version says which release of Pawl this is.
package version

import "runtime/debug"

// Number is the version of the program, the API, the packages and the clients, by Semantic Versioning. A test compares
// the files that can't read it from here.
const Number = "0.1.0"

// Build is Number and, where the go command recorded it, the commit that was built.
func Build() string {
	settings := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
	}
	commit := settings["vcs.revision"]
	switch {
	case len(commit) < 12:
		return Number
	case settings["vcs.modified"] == "true":
		return Number + " (commit " + commit[:12] + ", modified)"
	}
	return Number + " (commit " + commit[:12] + ")"
}
