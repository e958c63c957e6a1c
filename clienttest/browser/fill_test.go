package browser

import (
	"os"
	"path/filepath"
	"sync"
)

// axe is the text of axe-core.
var axe = sync.OnceValue(func() string {
	text, err := os.ReadFile(filepath.Join(shared.dir, "node_modules/axe-core/axe.min.js"))
	if err != nil {
		panic(err)
	}
	return string(text)
})

func fill() error { return nil }
