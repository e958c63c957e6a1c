package access

import (
	"crypto/sha256"
	"sync"
	"time"
)

// goodFor is how long a token of the issuer is believed without being verified again.
const goodFor = 30 * time.Second

// good are the tokens of the issuer that were verified a short time ago.
type good struct {
	mu     sync.Mutex
	byHash map[[sha256.Size]byte]goodToken
}

type goodToken struct {
	principal *Principal
	until     time.Time
}

// find returns who has a token, nil if it was not verified lately.
func (g *good) find(token string, now time.Time) *Principal {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.byHash[hashOf(token)]
	if !now.Before(known.until) {
		return nil
	}
	return known.principal
}

func (g *good) add(token string, p *Principal, expires time.Time) {
	until := time.Now().Add(goodFor)
	if expires.Before(until) {
		until = expires
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byHash == nil || len(g.byHash) >= tokensMost {
		g.byHash = map[[sha256.Size]byte]goodToken{}
	}
	g.byHash[hashOf(token)] = goodToken{p, until}
}
