package engine

import (
	"maps"
	"slices"
)

// NeededTables are the tables that Ready looks at.
func NeededTables() []string { return slices.Sorted(maps.Keys(needed)) }

// Admitting is how many orders stand in the line at the admission.
func (e *Engine) Admitting() int {
	e.admits.mu.Lock()
	defer e.admits.mu.Unlock()
	return len(e.admits.waiting)
}

// WakeWatcher does what a newcomer among the watched orders does.
func (e *Engine) WakeWatcher() { e.watches.add(nil) }
