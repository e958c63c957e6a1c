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

// journal is a file that lines are added to. Lines that come while others are being
// written wait and are written together: one fsync for all.
type journal struct {
	file    *os.File
	writing sync.Mutex // held for the time of an fsync
	err     error      // the first one; guarded by writing

	mu   sync.Mutex
	next *batch
}

// batch is the lines of one fsync. A nil batch is on disk: there is no disk.
type batch struct {
	journal *journal
	lines   []byte
	write   sync.Once
	err     error
}

// wait returns when the lines are safe on disk, or can't be.
func (b *batch) wait() error {
	if b == nil {
		return nil
	}
	b.write.Do(func() { b.err = b.journal.write(b) })
	return b.err
}

// openJournal hands every line of the file to replay and goes on at its end. The part
// of a line that an unclean stop has left there was never answered: it is cut off.
func openJournal(path string, replay func(line []byte) error) (*journal, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open simulator file: %w", err)
	}
	if err := prepare(file, replay); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("open simulator file %s: %w", path, err)
	}
	j := &journal{file: file}
	j.next = &batch{journal: j}
	return j, nil
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

// syncFolder makes the name of a new file last.
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

// add puts a line at the end. It is on disk when the batch is.
func (j *journal) add(line []byte) *batch {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.next.lines = append(append(j.next.lines, line...), '\n')
	return j.next
}

// write writes the next batch, which is b: it is replaced only here, when those before it are written. After an error
// nothing more is written: what the file holds then is what was answered.
func (j *journal) write(b *batch) error {
	j.writing.Lock()
	defer j.writing.Unlock()
	j.mu.Lock()
	j.next = &batch{journal: j}
	j.mu.Unlock()
	if j.err == nil {
		_, j.err = j.file.Write(b.lines)
	}
	if j.err == nil {
		j.err = j.file.Sync()
	}
	return j.err
}

// close writes what was added and not waited for; nothing may be added any more.
func (j *journal) close() error {
	if j == nil {
		return nil
	}
	_ = j.next.wait() // whom its error concerns has waited
	return j.file.Close()
}
