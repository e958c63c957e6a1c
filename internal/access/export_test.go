package access

import "time"

// Forget has the time pass for which tokens are believed.
func (c *Control) Forget() {
	c.tokens.mu.Lock()
	defer c.tokens.mu.Unlock()
	for _, known := range c.tokens.byID {
		known.mu.Lock()
		known.at = time.Time{}
		known.mu.Unlock()
	}
}
