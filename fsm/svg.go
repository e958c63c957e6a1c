package fsm

import (
	"fmt"
	"math"
	"strings"
)

// The picture is laid out by hand: a successful run from left to right, what undoes it
// below, ends at the right.
var places = map[State][2]float64{
	Pending: {90, 60}, Charging: {290, 60}, Reserving: {490, 60}, Confirming: {690, 60}, Completed: {890, 60},
	Refunding: {440, 220}, Releasing: {690, 220},
	Canceled: {90, 220}, Failed: {290, 360},
}

const (
	boxWidth, boxHeight = 120.0, 40.0
	svgHead             = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 980 410" role="img" aria-label="The machine of an order" font-family="system-ui, sans-serif" font-size="13">
<style>
  .box { fill: #fff; stroke: #444; stroke-width: 1.5 } .final { fill: #e6f0e6 } .undo { fill: #faeee0 }
  .edge { fill: none; stroke: #666; stroke-width: 1.3; marker-end: url(#tip) } text { fill: #222; text-anchor: middle }
  .label { fill: #555; font-size: 11px; paint-order: stroke; stroke: #fff; stroke-width: 4px }
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#666"/></marker></defs>
`
)

// SVG draws the machine as a picture that needs no program to be shown.
func SVG() string {
	var b strings.Builder
	b.WriteString(svgHead)
	for _, e := range edges {
		drawEdge(&b, e)
	}
	for _, s := range states {
		drawState(&b, s)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func drawState(b *strings.Builder, s State) {
	x, y := places[s][0], places[s][1]
	class := "box"
	switch {
	case s.Final():
		class += " final"
	case s.Undoing():
		class += " undo"
	}
	fmt.Fprintf(b, `<rect class="%s" x="%g" y="%g" width="%g" height="%g" rx="8"/><text x="%g" y="%g">%s</text>`+"\n",
		class, x-boxWidth/2, y-boxHeight/2, boxWidth, boxHeight, x, y+4.5, s)
}

func drawEdge(b *strings.Builder, e Edge) {
	from, to := places[e.From], places[e.To]
	x1, y1 := leave(from, to)
	x2, y2 := leave(to, from)
	fmt.Fprintf(b, `<path class="edge" d="M%.0f %.0f L%.0f %.0f"/><text class="label" x="%.0f" y="%.0f">%s</text>`+"\n",
		x1, y1, x2, y2, x1+(x2-x1)*.45, y1+(y2-y1)*.45-4, e.Event)
}

// leave is the point where a line from the middle of one box to another crosses its edge.
func leave(from, to [2]float64) (x, y float64) {
	dx, dy := to[0]-from[0], to[1]-from[1]
	scale := math.Min(boxWidth/2/math.Max(math.Abs(dx), 1e-9), boxHeight/2/math.Max(math.Abs(dy), 1e-9))
	return from[0] + dx*scale, from[1] + dy*scale
}
