package access

import "time"

// Forget has the time pass for which tokens are valid.
func (c *Control) Forget() {
	for _, id := range c.tokens.last.Keys() {
		known, _ := c.tokens.last.Peek(id)
		known.at = time.Time{}
		c.tokens.last.Add(id, known)
	}
}
