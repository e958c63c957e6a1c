package diagram

import (
	"html/template"
	"strconv"

	"pawl/fsm"
)

// Picture is the machine with orders: how many are in each state, or the path of one of them.
type Picture struct {
	Label  string               // describes the picture to screen readers
	States map[fsm.State]Mark   // the texts in the states
	Walked map[[2]fsm.State]int // the edges that an order took, and how often; all others are drawn faintly
	At     fsm.State            // where that order is; empty: the picture is not about one order
}

// Mark is what is added to a state.
type Mark struct {
	Text  string // a few letters, such as a count
	Title string // a sentence, shown as a tooltip
	Link  string // its URL
}

// HTML draws the picture as an <svg> for a page. It has no styles; its parts have classes. The root has machine, and
// path if it shows the path of an order. States and edges have ahead, undo, back, again, good or final; also walked if
// the order was there, and now if it is. Inside are box, rim, name, count; edge, tip, label, rate; note.
func (p *Picture) HTML() template.HTML { return draw(p, true) }

// edgeText says how often an edge was taken, if more than once.
func (p *Picture) edgeText(pair [2]fsm.State) string {
	if times := p.Walked[pair]; times > 1 {
		return "×" + strconv.Itoa(times)
	}
	return ""
}

func (p *Picture) edgeClass(e fsm.Edge) string {
	class := edgeClass(e)
	if p.Walked[[2]fsm.State{e.From, e.To}] > 0 {
		class += " walked"
	}
	return class
}

func (p *Picture) stateClass(s fsm.State) string {
	class, walked := stateClass(s), p.At == s
	for pair, times := range p.Walked {
		walked = walked || times > 0 && (pair[0] == s || pair[1] == s)
	}
	if walked {
		class += " walked"
	}
	if p.At == s {
		class += " now"
	}
	return class
}

// textY is the middle of a text below the label of an edge, or on the other side of the edge if the label is above it.
func (r route) textY() float64 {
	for i := range len(r.way) - 1 {
		if level := r.way[i].y; level == r.way[i+1].y && r.label.y == level-12 {
			return level + 13
		}
	}
	return r.label.y + 15
}
