package httpapi

import "strconv"

// maxDepth is how deep objects and arrays may be nested, the body itself counted.
const maxDepth = 16

// scanner reads one JSON text token by token. It refuses what other readers could
// understand in another way: a name given twice in one object, a lone surrogate
// escape (many decoders turn any of them into U+FFFD, so two ids become one).
type scanner struct {
	data  []byte
	pos   int
	depth int
}

// malformed is a text that is not JSON, or JSON with more than one reading.
type malformed struct {
	pointer, code, detail string
	offset                int
}

func (m *malformed) Error() string {
	return m.detail + " at byte " + strconv.Itoa(m.offset)
}

func (s *scanner) fail(code, detail string) error {
	return &malformed{code: code, detail: detail, offset: s.pos}
}

func (s *scanner) syntax(detail string) error { return s.fail("syntax", detail) }

// peek skips white space and returns the next byte, 0 at the end of the text.
func (s *scanner) peek() byte {
	for ; s.pos < len(s.data); s.pos++ {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// end checks that nothing follows the value.
func (s *scanner) end() error {
	if s.peek(); s.pos < len(s.data) {
		return s.syntax("unexpected data after the value")
	}
	return nil
}

// enter steps into an object or array.
func (s *scanner) enter() error {
	if s.depth++; s.depth > maxDepth {
		return s.fail("too_deep", "nested deeper than "+strconv.Itoa(maxDepth)+" levels")
	}
	s.pos++
	return nil
}

// more steps to the next element; it reports false behind the closing byte.
func (s *scanner) more(first bool, closing byte) (bool, error) {
	c := s.peek()
	switch {
	case c == closing:
		s.pos++
		s.depth--
		return false, nil
	case first:
		return true, nil
	case c != ',':
		return false, s.syntax("expected a comma or " + string(rune(closing)))
	}
	s.pos++
	if s.peek() == closing {
		return false, s.syntax("unexpected comma")
	}
	return true, nil
}

// members reads an object and calls visit at each value with its name; visit has
// to consume the value. Name is only valid during the call.
func (s *scanner) members(visit func(name []byte) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	var seen names
	for first := true; ; first = false {
		if ok, err := s.more(first, '}'); !ok {
			return err
		}
		name, err := s.name()
		if err != nil {
			return err
		}
		if !seen.add(name) {
			return s.fail("duplicate_name", "a name is given twice in one object")
		}
		if err := visit(name); err != nil {
			return err
		}
	}
}

func (s *scanner) name() ([]byte, error) {
	if s.peek() != '"' {
		return nil, s.syntax("expected a name in quotes")
	}
	raw, escaped, err := s.str()
	if err != nil {
		return nil, err
	}
	if escaped {
		raw = unescape(raw)
	}
	if s.peek() != ':' {
		return nil, s.syntax("expected a colon")
	}
	s.pos++
	return raw, nil
}

// skip reads a value of any kind and forgets it.
func (s *scanner) skip() error {
	switch c := s.peek(); {
	case c == '{':
		return s.members(func([]byte) error { return s.skip() })
	case c == '[':
		return s.skipArray()
	case c == '"':
		_, _, err := s.str()
		return err
	case c == '-' || '0' <= c && c <= '9':
		_, err := s.number()
		return err
	default:
		return s.literal()
	}
}

func (s *scanner) skipArray() error {
	if err := s.enter(); err != nil {
		return err
	}
	for first := true; ; first = false {
		if ok, err := s.more(first, ']'); !ok {
			return err
		}
		if err := s.skip(); err != nil {
			return err
		}
	}
}

func (s *scanner) literal() error {
	rest := s.data[s.pos:]
	for _, word := range []string{"true", "false", "null"} {
		if len(rest) >= len(word) && string(rest[:len(word)]) == word {
			s.pos += len(word)
			return nil
		}
	}
	if len(rest) == 0 {
		return s.syntax("unexpected end")
	}
	return s.syntax("expected a value")
}
