package access

import (
	"cmp"
	"context"
	"net/netip"
	"sync"
	"time"

	"pawl/db"
)

// Denial is a request that was rejected because of its sender.
type Denial struct {
	Event     string // the code of the problem
	Actor     string // the principal's name, or anonymous
	Address   netip.Addr
	Operation string
	Subject   string // the order or item, in UTF-8
	Detail    string
}

const (
	denialPause = time.Minute // between writes
	denialsMost = 1000        // distinct denials per write
)

// denials collects denials. The first one is written at once. Those of the next minute are written together, equal ones
// as one row, so that they can't fill the database.
type denials struct {
	mu       sync.Mutex
	gathered map[Denial]int32
	writing  bool
	wrote    time.Time
}

// Denied records a denial in the access log, within a minute, or at the latest when Stop is called.
func (c *Control) Denied(d Denial) {
	if c == nil {
		return
	}
	n := &c.denials
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gathered == nil {
		n.gathered = map[Denial]int32{}
	}
	if _, known := n.gathered[d]; !known && len(n.gathered) >= denialsMost {
		d = Denial{Event: d.Event, Actor: "many"}
	}
	n.gathered[d]++
	if !n.writing {
		pause := time.Until(n.wrote.Add(denialPause))
		n.writing = c.begin(func() { c.writeDenials(pause) })
	}
}

// writeDenials writes the collected denials after a pause, which Stop ends early.
func (c *Control) writeDenials(pause time.Duration) {
	select {
	case <-time.After(pause):
	case <-c.life.Done():
	}
	n := &c.denials
	n.mu.Lock()
	gathered := n.gathered
	n.gathered, n.writing, n.wrote = nil, false, time.Now()
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.life), readLimit)
	defer cancel()
	if err := c.query.AccessLogAdd(ctx, rowsOf(gathered)); err != nil {
		c.log.Error("denials not recorded in the access log", "denials", len(gathered), "error", err)
	}
}

func rowsOf(gathered map[Denial]int32) (rows db.AccessLogAddParams) {
	for d, times := range gathered {
		rows.Events, rows.Actors = append(rows.Events, d.Event), append(rows.Actors, cmp.Or(d.Actor, Anonymous.Name))
		rows.Addresses, rows.Operations = append(rows.Addresses, addressText(d.Address)), append(rows.Operations, d.Operation)
		rows.Subjects, rows.Details = append(rows.Subjects, d.Subject), append(rows.Details, d.Detail)
		rows.Times = append(rows.Times, times)
	}
	return rows
}
