package output

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Progress draws a bar on a terminal, and nothing elsewhere. A negative total is unknown.
func Progress(total int64, what string, out io.Writer) *progressbar.ProgressBar {
	if file, ok := out.(*os.File); !ok || !term.IsTerminal(int(file.Fd())) {
		return progressbar.DefaultSilent(total)
	}
	return NewBar(total, what, out)
}

// NewBar draws a bar on any writer.
func NewBar(total int64, what string, out io.Writer) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total, progressbar.OptionSetDescription(what), progressbar.OptionSetWriter(out),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetSpinnerChangeInterval(0), // a spinner would be drawn by a goroutine that outlives the bar
		progressbar.OptionThrottle(100*time.Millisecond))
}
