package db

// Optional is what a column that can be NULL is given: nil for the zero value.
func Optional[T comparable](value T) *T {
	if value == *new(T) {
		return nil
	}
	return &value
}
