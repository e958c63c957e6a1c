package engine

// or is what a column holds, and the zero value where it holds nothing.
func or[T any](column *T) (value T) {
	if column != nil {
		value = *column
	}
	return value
}
