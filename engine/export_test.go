package engine

// WakeWatcher does what a newcomer among the watched orders does.
func (e *Engine) WakeWatcher() { e.watches.add(nil) }
