package httpapi

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// str reads a string and returns what stands between the quotes, and whether
// there are escapes in it.
func (s *scanner) str() (raw []byte, escaped bool, err error) {
	s.pos++
	start := s.pos
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return s.data[start : s.pos-1], escaped, nil
		case c == '\\':
			escaped = true
			if err := s.escape(); err != nil {
				return nil, false, err
			}
		case c < ' ':
			return nil, false, s.syntax("control character in a string")
		default:
			s.pos++
		}
	}
	return nil, false, s.syntax("unexpected end of a string")
}

// escape steps over one escape sequence; a pair of surrogates is one.
func (s *scanner) escape() error {
	if s.pos+1 >= len(s.data) {
		return s.syntax("unexpected end of a string")
	}
	switch s.data[s.pos+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos += 2
		return nil
	case 'u':
		return s.unicodeEscape()
	}
	return s.syntax("unknown escape in a string")
}

func (s *scanner) unicodeEscape() error {
	unit, ok := hex4(s.data[s.pos:])
	if !ok {
		return s.syntax("unknown escape in a string")
	}
	if !utf16.IsSurrogate(unit) {
		s.pos += 6
		return nil
	}
	low, ok := hex4(s.data[s.pos+6:])
	if !ok || utf16.DecodeRune(unit, low) == utf8.RuneError {
		return s.fail("lone_surrogate", "half of a surrogate pair in a string")
	}
	s.pos += 12
	return nil
}

// hex4 reads an escape of the form \uXXXX.
func hex4(text []byte) (rune, bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	return rune(unit), err == nil
}

// unescape resolves the escapes of a string that str has accepted.
func unescape(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			continue
		}
		i++
		switch raw[i] {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			unit, _ := hex4(raw[i-1:])
			i += 4
			if utf16.IsSurrogate(unit) {
				low, _ := hex4(raw[i+1:])
				unit = utf16.DecodeRune(unit, low)
				i += 6
			}
			out = utf8.AppendRune(out, unit)
		default:
			out = append(out, raw[i])
		}
	}
	return out
}
