package simulator

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// journal is a file of lines. sync makes lines durable before the answers that depend on them.
type journal struct {
	file *os.File

	mu    sync.Mutex
	lines []byte // to be written
	added int    // lines so far

	writing sync.Mutex // held for the time of an fsync
	written int        // lines so far
	err     error      // the first one
}

// openJournal replays every line of the file and continues at its end. It cuts off an incomplete last line, which was
// never answered.
func openJournal(path string, replay func(line []byte) error) (*journal, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open simulator file: %w", err)
	}
	if err := prepare(file, replay); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("open simulator file %s: %w", path, err)
	}
	return &journal{file: file}, nil
}

func prepare(file *os.File, replay func(line []byte) error) error {
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("lock: another simulator uses it: %w", err)
	}
	end, err := readLines(file, replay)
	if err != nil {
		return err
	}
	if err := file.Truncate(end); err != nil {
		return err
	}
	if _, err := file.Seek(end, io.SeekStart); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(file.Name()))
}

// syncFolder makes the name of a new file durable.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// readLines returns where the last whole line ends.
func readLines(file io.Reader, replay func(line []byte) error) (end int64, err error) {
	reader := bufio.NewReaderSize(file, 1<<16)
	for number := 1; ; number++ {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return end, nil
		}
		if err == nil {
			err = replay(bytes.TrimSuffix(line, []byte("\n")))
		}
		if err != nil {
			return end, fmt.Errorf("line %d: %w", number, err)
		}
		end += int64(len(line))
	}
}

func (j *journal) add(line []byte) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(append(j.lines, line...), '\n')
	j.added++
}

// sync waits until all lines so far are on disk. Concurrent callers share an fsync. After an error it writes nothing
// more, so that the file has exactly what was answered.
func (j *journal) sync() error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	mine := j.added
	j.mu.Unlock()
	j.writing.Lock()
	defer j.writing.Unlock()
	if j.written >= mine {
		return j.err
	}
	j.mu.Lock()
	lines := j.lines
	j.lines, j.written = nil, j.added
	j.mu.Unlock()
	if j.err == nil {
		_, j.err = j.file.Write(lines)
	}
	if j.err == nil {
		j.err = j.file.Sync()
	}
	return j.err
}

// close writes the remaining lines. Nothing may be added afterwards.
func (j *journal) close() error {
	if j == nil {
		return nil
	}
	_ = j.sync() // its error was returned to the waiting callers
	return j.file.Close()
}
