package cli

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress draws a bar for a person and nothing for a file.
func progress(total int64, what string, out io.Writer) *progressbar.ProgressBar {
	if file, ok := out.(*os.File); !ok || !term.IsTerminal(int(file.Fd())) {
		return progressbar.DefaultSilent(total)
	}
	return newBar(total, what, out)
}

func newBar(total int64, what string, out io.Writer) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total, progressbar.OptionSetDescription(what), progressbar.OptionSetWriter(out),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(100*time.Millisecond))
}

// bookBar is a bar that begins when it is known how much there is to read: one without an end would turn in a goroutine
// that outlives it.
type bookBar struct {
	start func(total int64) *progressbar.ProgressBar
	bar   *progressbar.ProgressBar
}

func (b *bookBar) show(done, total int64) {
	if b.bar == nil {
		b.bar = b.start(total)
	}
	if total != b.bar.GetMax64() { // to change it draws the bar as it was, and for a tenth of a second no other
		b.bar.ChangeMax64(total)
	}
	_ = b.bar.Set64(done)
}

func (b *bookBar) close() {
	if b.bar != nil {
		_ = b.bar.Exit()
	}
}
