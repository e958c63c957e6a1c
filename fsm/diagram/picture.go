package diagram

import (
	"html/template"
	"strconv"

	"pawl/fsm"
)

// Picture is the machine with what is known of orders: how many there are, or where one of them went.
type Picture struct {
	Label  string               // what the picture is of, for those who have it read to them
	States map[fsm.State]Mark   // what is written in a state
	Walked map[[2]fsm.State]int // the edges that an order took, and how often; all others are drawn faintly
	At     fsm.State            // where that order is; empty: no order's picture
}

// Mark is what is added to a state.
type Mark struct {
	Text  string // a few letters, such as a count
	Title string // a sentence, for those who point at it
	Link  string // where it leads
}

// HTML draws the picture as an <svg> for a page. It holds no styles: its parts have classes. The root is machine, and
// path if it shows the way of an order. States and edges are ahead, undo, back, again, good or final; also walked if
// the order was there, and now if it is. In them are box, rim, name, count; edge, tip, label, rate; note.
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

// textY is the middle of a text below the label of an edge. Where the label stands above its edge, that is on the other
// side.
func (r route) textY() float64 {
	for i := range len(r.way) - 1 {
		if level := r.way[i].y; level == r.way[i+1].y && r.label.y == level-12 {
			return level + 13
		}
	}
	return r.label.y + 15
}
