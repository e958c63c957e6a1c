package fsm

// The picture is laid out by hand: a successful run from left to right, what undoes it
// below and back to the left. A test checks that no edge runs through a box, that no
// two labels touch, and that every state and every edge has its place.

type point struct{ x, y float64 }

const (
	pictureWidth, pictureHeight = 1024.0, 440.0
	boxWidth, boxHeight         = 128.0, 48.0
	labelSize                   = 12.5
)

var places = map[State]point{
	Pending: {130, 90}, Charging: {330, 90}, Reserving: {530, 90}, Confirming: {730, 90}, Completed: {930, 90},
	Canceled: {130, 250}, Refunding: {530, 250}, Releasing: {730, 250},
	Failed: {330, 385},
}

// route is the way of an edge from box to box, and the middle of its label.
type route struct {
	way   []point
	label point
}

var routes = map[[2]State]route{
	{Pending, Charging}:     {[]point{{194, 90}, {266, 90}}, point{229, 78}},
	{Charging, Reserving}:   {[]point{{394, 90}, {466, 90}}, point{429, 78}},
	{Reserving, Confirming}: {[]point{{594, 90}, {666, 90}}, point{629, 78}},
	{Confirming, Completed}: {[]point{{794, 90}, {866, 90}}, point{829, 78}},

	{Pending, Canceled}:     {[]point{{130, 114}, {130, 226}}, point{130, 170}},
	{Charging, Canceled}:    {[]point{{290, 114}, {178, 226}}, point{234, 170}},
	{Charging, Failed}:      {[]point{{330, 114}, {330, 361}}, point{330, 170}},
	{Charging, Refunding}:   {[]point{{370, 114}, {482, 226}}, point{426, 170}},
	{Reserving, Refunding}:  {[]point{{530, 114}, {530, 226}}, point{530, 170}},
	{Reserving, Releasing}:  {[]point{{570, 114}, {682, 226}}, point{626, 170}},
	{Confirming, Releasing}: {[]point{{730, 114}, {730, 226}}, point{730, 170}},

	{Releasing, Refunding}: {[]point{{666, 250}, {594, 250}}, point{631, 238}},
	{Refunding, Canceled}:  {[]point{{466, 250}, {194, 250}}, point{262, 250}},
	{Refunding, Failed}:    {[]point{{530, 274}, {530, 385}, {394, 385}}, point{462, 385}},
	{Failed, Pending}:      {[]point{{266, 385}, {30, 385}, {30, 90}, {66, 90}}, point{148, 385}},
}
