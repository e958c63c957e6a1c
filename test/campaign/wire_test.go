package campaign

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// wire is the network between two programs: it carries bytes, until it is told otherwise.
type wire struct {
	listener net.Listener
	running  sync.WaitGroup
	closed   chan struct{}
	hole     atomic.Bool  // every connection is silent, new ones too
	oneIn    atomic.Int64 // one reply in so many is cut; 0: none
	cuts     atomic.Int64

	mu              sync.Mutex
	network, target string
	links           []*strand
	dice            dice
}

// strand is one connection.
type strand struct {
	wire           *wire
	client, server net.Conn
	silent         atomic.Bool // bytes vanish, in both directions, and so does the end of the other side
}

// newWire listens at the first address and connects to the second.
func newWire(t *testing.T, listen, target [2]string, seed int) *wire {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), listen[0], listen[1])
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: listener, closed: make(chan struct{}), network: target[0], target: target[1], dice: newDice(seed, 77)}
	w.running.Go(w.accept)
	t.Cleanup(w.close)
	return w
}

func (w *wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.mu.Lock()
		network, target := w.network, w.target
		w.mu.Unlock()
		server, err := net.Dial(network, target)
		if err != nil {
			client.Close()
			continue
		}
		s := &strand{wire: w, client: client, server: server}
		s.silent.Store(w.hole.Load())
		w.mu.Lock()
		w.links = append(w.links, s)
		w.mu.Unlock()
		w.running.Go(s.toServer)
		w.running.Go(s.toClient)
	}
}

// toServer carries what the client says. When the client goes and nobody hears it, the server finds out later.
func (s *strand) toServer() {
	defer s.end()
	buffer := make([]byte, 32<<10)
	for {
		n, err := s.client.Read(buffer)
		if err != nil {
			if s.silent.Load() {
				s.linger()
			}
			return
		}
		if s.silent.Load() {
			continue
		}
		if _, err := s.server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// linger keeps the server's side of a silent connection for a while after the client has gone.
func (s *strand) linger() {
	timer := time.NewTimer(5 * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.wire.closed:
	}
}

// toClient carries what the server says, message by message (PostgreSQL manual, chapter 55), so that a cut is in the middle
// of one.
func (s *strand) toClient() {
	var head [5]byte
	for {
		if _, err := io.ReadFull(s.server, head[:]); err != nil {
			break
		}
		message := make([]byte, 1+int(binary.BigEndian.Uint32(head[1:])))
		copy(message, head[:])
		if _, err := io.ReadFull(s.server, message[5:]); err != nil {
			break
		}
		if s.silent.Load() {
			continue
		}
		if s.wire.cutsNow() {
			_, _ = s.client.Write(message[:len(message)/2]) // whether it arrives is the client's matter
			break
		}
		if _, err := s.client.Write(message); err != nil {
			break
		}
	}
	if !s.silent.Load() { // else the client does not hear that the server has gone
		s.end()
	}
}

func (s *strand) end() {
	s.client.Close()
	s.server.Close()
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	s.wire.links = slices.DeleteFunc(s.wire.links, func(other *strand) bool { return other == s })
}

func (w *wire) cutsNow() bool {
	n := w.oneIn.Load()
	if n == 0 {
		return false
	}
	w.mu.Lock()
	cut := w.dice.Int64N(n) == 0
	w.mu.Unlock()
	if cut {
		w.cuts.Add(1)
	}
	return cut
}

// silence lets one connection go silent for good. It tells whether there was one.
func (w *wire) silence() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	heard := slices.DeleteFunc(slices.Clone(w.links), func(s *strand) bool { return s.silent.Load() })
	if len(heard) == 0 {
		return false
	}
	heard[w.dice.IntN(len(heard))].silent.Store(true)
	return true
}

// swallow lets everything go silent: those that are there, and those to come.
func (w *wire) swallow() {
	w.hole.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.links {
		s.silent.Store(true)
	}
}

// retarget leads to another server from now on, and ends what leads to the old one.
func (w *wire) retarget(network, target string) {
	w.mu.Lock()
	w.network, w.target = network, target
	links := slices.Clone(w.links)
	w.mu.Unlock()
	for _, s := range links {
		s.client.Close()
		s.server.Close()
	}
}

func (w *wire) close() {
	select {
	case <-w.closed:
		return
	default:
		close(w.closed)
	}
	w.listener.Close()
	w.mu.Lock()
	links := slices.Clone(w.links)
	w.mu.Unlock()
	for _, s := range links {
		s.client.Close()
		s.server.Close()
	}
	w.running.Wait()
}
