package engine

func or(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func value(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// positive is a number for a column that has none or a positive one.
func positive(n int32) *int32 {
	if n <= 0 {
		return nil
	}
	return &n
}
