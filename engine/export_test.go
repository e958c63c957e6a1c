package engine

import (
	"maps"
	"slices"
)

// NeededTables are the tables that Ready looks at.
func NeededTables() []string { return slices.Sorted(maps.Keys(needed)) }

// WakeWatcher does what a newcomer among the watched orders does.
func (e *Engine) WakeWatcher() { e.watches.add(nil) }
