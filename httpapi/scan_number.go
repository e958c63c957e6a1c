package httpapi

func (s *scanner) number() ([]byte, error) {
	text := s.data[s.pos:]
	n := numberLen(text)
	if n == 0 {
		return nil, s.syntax("expected a number")
	}
	s.pos += n
	return text[:n], nil
}

// numberLen returns the length of the JSON number that text begins with, 0 if it
// begins with none.
func numberLen(text []byte) int {
	i := 0
	if i < len(text) && text[i] == '-' {
		i++
	}
	whole := digits(text[i:])
	if whole == 0 || whole > 1 && text[i] == '0' {
		return 0
	}
	i += whole
	if i < len(text) && text[i] == '.' {
		fraction := digits(text[i+1:])
		if fraction == 0 {
			return 0
		}
		i += 1 + fraction
	}
	if i < len(text) && (text[i] == 'e' || text[i] == 'E') {
		i++
		if i < len(text) && (text[i] == '+' || text[i] == '-') {
			i++
		}
		exponent := digits(text[i:])
		if exponent == 0 {
			return 0
		}
		i += exponent
	}
	return i
}

func digits(text []byte) int {
	for i, c := range text {
		if c < '0' || c > '9' {
			return i
		}
	}
	return len(text)
}
