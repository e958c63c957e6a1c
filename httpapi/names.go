package httpapi

// names is the set of the names of one object. It is a list while it is short,
// as nearly always; a map beyond, because a body of 64 KiB can hold ten thousand.
type names struct {
	few  [12][]byte
	n    int
	many map[string]struct{}
}

// add reports whether the name is new.
func (n *names) add(name []byte) bool {
	if n.many != nil {
		if _, seen := n.many[string(name)]; seen {
			return false
		}
		n.many[string(name)] = struct{}{}
		return true
	}
	for _, seen := range n.few[:n.n] {
		if string(seen) == string(name) {
			return false
		}
	}
	if n.n < len(n.few) {
		n.few[n.n] = name
		n.n++
		return true
	}
	n.many = make(map[string]struct{}, 2*len(n.few))
	for _, seen := range n.few {
		n.many[string(seen)] = struct{}{}
	}
	n.many[string(name)] = struct{}{}
	return true
}
