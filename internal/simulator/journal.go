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
	"time"

	"github.com/govalues/decimal"
)

// State is what has become of the do of a key.
type State string

// The states of a key. A key without one has been asked for and nothing was done.
const (
	Pending State = "pending" // taken on, not decided; a callback will tell
	Live    State = "live"    // the effect is there
	Refused State = "refused" // the effect is not there and never will be
	Undone  State = "undone"  // the effect was there and has been taken back
	Voided  State = "voided"  // undone before there was an effect: there never will be one
)

// Subject is what a request, and what is done for it, is about.
type Subject struct {
	OrderID    string `json:"orderId"`
	Step       string `json:"step"`
	Generation int32  `json:"generation"`
	Amount     string `json:"amount"` // decimal, as it was sent
	Currency   string `json:"currency"`
	Quantity   int32  `json:"quantity"`
	Item       string `json:"item"`
	RefundID   string `json:"refundId,omitempty"`
}

// Entry is what the books say of one key of a do.
type Entry struct {
	Key string `json:"key"`
	Subject
	State     State  `json:"state"`
	Reference string `json:"reference,omitempty"` // our name for the latest effect
	Code      string `json:"code,omitempty"`      // why it was refused
	Detail    string `json:"detail,omitempty"`
	// Effects is how many times the effect happened under this key, whether it was
	// undone or not. More than one is a double charge, or the like.
	Effects int `json:"effects"`
	// Requests is how many times the do was asked for since the simulator was started.
	Requests int       `json:"requests"`
	At       time.Time `json:"at"` // when the state was last changed
}

// entry is an Entry and what is needed to go on with it.
type entry struct {
	Entry
	body     string // fingerprint of the do; empty while none was taken on
	undoName string // our name for the taking back
	promise  *promise
	running  bool            // a request is between its check of the key and its effect
	refunded decimal.Decimal // of a charge: what was given back of it by refunds
}

// promise is an answer owed by callback. It is kept with a pending key, so that it is
// not forgotten by a restart.
type promise struct {
	URL   string        `json:"url"`
	Delay time.Duration `json:"delay"` // in nanoseconds
	Times int           `json:"times"` // how often it is told
	Code  string        `json:"code,omitempty"`
	From  time.Time     `json:"from"` // when it was taken on
}

// event is a line of the file: something that has happened to a key of a do. The state
// is what applying all events in their order makes of nothing.
type event struct {
	Event string    `json:"event"`
	At    time.Time `json:"at"`
	Key   string    `json:"key"`
	Subject
	Body      string   `json:"body"` // fingerprint of the request
	Reference string   `json:"reference,omitempty"`
	Code      string   `json:"code,omitempty"`
	Detail    string   `json:"detail,omitempty"`
	UndoKey   string   `json:"undoKey,omitempty"`   // of the request, for an undo
	Undoes    string   `json:"undoes,omitempty"`    // what it named, where the key is not known any more
	Refunds   string   `json:"refunds,omitempty"`   // what a refund gives back, by name,
	ChargeKey string   `json:"chargeKey,omitempty"` // or by key
	Promise   *promise `json:"promise,omitempty"`
	Stripe    *change  `json:"stripe,omitempty"`
}

const (
	eventPending = "pending"
	eventDone    = "done"
	eventRefused = "refused"
	eventUndone  = "undone"
	eventStripe  = "stripe"
	eventForgot  = "forgotten"
)

// state is everything the simulator knows for good. It is not safe for concurrent use.
type state struct {
	entries    []*entry            // with an event, in the order of the first
	keys       map[string]*entry   // by key of the do, also those only heard of
	names      map[string]*entry   // by our name for the effect; they are never forgotten
	undos      map[string]string   // fingerprints by key of the undo
	orders     map[string][]*entry // by order id
	overlaps   int                 // effects while another of that order and step was live
	references int                 // given out so far
	intents    map[string]*intent  // of Stripe's side, as its keys
	stripeKeys map[string]*stripeKey
	given      map[string]*entry // by id of the refund of an intent
}

func newState() *state {
	return &state{
		keys: map[string]*entry{}, names: map[string]*entry{}, undos: map[string]string{}, orders: map[string][]*entry{},
		intents: map[string]*intent{}, stripeKeys: map[string]*stripeKey{}, given: map[string]*entry{},
	}
}

// entry returns what is known of a key of a do, be it nothing yet.
func (s *state) entry(key string) *entry {
	e, ok := s.keys[key]
	if !ok {
		e = &entry{Entry: Entry{Key: key}}
		s.keys[key] = e
	}
	return e
}

// list puts an entry into the books.
func (s *state) list(e *entry) *entry {
	s.entries, s.orders[e.OrderID] = append(s.entries, e), append(s.orders[e.OrderID], e)
	return e
}

func (s *state) apply(ev event) error {
	if ev.Event == eventStripe && ev.Stripe != nil {
		s.applyStripe(ev)
		return nil
	}
	e := s.entry(ev.Key)
	if ev.Event == eventForgot {
		delete(s.keys, ev.Key)
		return nil
	}
	if ev.Undoes != "" {
		if e = s.names[ev.Undoes]; e == nil {
			return fmt.Errorf("unknown reference %q", ev.Undoes)
		}
		s.keys[ev.Key] = e
	}
	if e.State == "" {
		e.Subject = ev.Subject
		s.list(e)
	}
	if ev.Reference != "" {
		s.references++
	}
	switch ev.Event {
	case eventPending:
		e.State, e.body, e.promise, e.Reference = Pending, ev.Body, ev.Promise, ev.Reference
	case eventDone:
		s.done(e, ev)
		s.refund(e, ev)
	case eventRefused:
		e.State, e.body, e.Code, e.Detail = Refused, ev.Body, ev.Code, ev.Detail
	case eventUndone:
		s.undone(e, ev)
	default:
		return fmt.Errorf("unknown event %q", ev.Event)
	}
	if e.Reference != "" {
		s.names[e.Reference] = e
	}
	e.At = ev.At
	return nil
}

func (s *state) done(e *entry, ev event) {
	s.overlap(e)
	e.State, e.body = Live, ev.Body
	e.Effects++
	if ev.Reference != "" { // a pending key has its name already
		e.Reference = ev.Reference
	}
}

// overlap counts an effect that is about to happen while another is live.
func (s *state) overlap(e *entry) {
	if e.Step == stepRefund {
		return // an order can have several
	}
	for _, other := range s.orders[e.OrderID] {
		if other.Step == e.Step && other.State == Live {
			s.overlaps++ // also under the key itself
			return
		}
	}
}

// undone takes an effect back, or sees to it that there never will be one. Afterwards
// nothing is live under the key, and it stays so.
func (s *state) undone(e *entry, ev event) {
	s.undos[ev.UndoKey] = ev.Body
	switch e.State {
	case Live:
		e.State, e.undoName = Undone, ev.Reference
	case Refused, Undone, Voided:
	default:
		e.State = Voided
	}
}

// prefixes of our names for effects and for taking them back.
var prefixes = map[string][2]string{"charge": {"ch", "rf"}, "reserve": {"rs", "rl"}, "confirm": {"cf", ""}}

func (s *state) name(prefix string) string { return fmt.Sprintf("%s_%d", prefix, s.references+1) }

// journal is a file that lines are added to. Who has added a line, or has seen what one
// did, waits for sync before telling anybody.
type journal struct {
	file *os.File

	mu    sync.Mutex
	lines []byte // to be written
	added int    // lines so far

	writing sync.Mutex // held for the time of an fsync
	written int        // lines so far
	err     error      // the first one
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

// add puts a line at the end.
func (j *journal) add(line []byte) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(append(j.lines, line...), '\n')
	j.added++
}

// sync returns when all lines that were added before are safe on disk, or can't be. Those who wait meanwhile share the
// next fsync. After an error nothing more is written: what the file holds then is what was answered.
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

// close writes what was added and not waited for; nothing may be added any more.
func (j *journal) close() error {
	if j == nil {
		return nil
	}
	_ = j.sync() // whom its error concerns has waited
	return j.file.Close()
}
