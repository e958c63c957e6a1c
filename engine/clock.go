package engine

import "time"

// now is the database's time as well as this process knows it.
func (e *Engine) now() time.Time { return time.Now().Add(time.Duration(e.clock.Load())) }

// tick notes the database's clock.
func (e *Engine) tick(database time.Time) { e.clock.Store(int64(time.Until(database))) }
