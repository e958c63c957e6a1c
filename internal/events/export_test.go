package events

// Keep sets how much is kept in memory, in bytes.
func (t *Tail) Keep(most int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.most = most
}
