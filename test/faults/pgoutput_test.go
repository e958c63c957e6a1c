package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// logStream is a connection over which PostgreSQL sends its log, decoded by pgoutput (PostgreSQL manual, 55.4 Streaming
// Replication Protocol, and 55.9 Logical Replication Message Formats; version 1).
type logStream struct {
	conn   *pgconn.PgConn
	tables map[uint32]logTable
}

type logTable struct {
	name    string
	columns []string
}

// logInsert is a row; logCommit is the end of a transaction. All else that pgoutput says needs no answer.
type (
	logInsert struct {
		table string
		row   map[string]string
	}
	logCommit struct{ end uint64 }
)

// startStream begins where a position says. Where that is 0, it is where the slot was made or was last confirmed.
func startStream(ctx context.Context, config *pgconn.Config, position uint64) (*logStream, error) {
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	conn.Frontend().SendQuery(&pgproto3.Query{String: fmt.Sprintf(
		`START_REPLICATION SLOT broker LOGICAL %X/%X (proto_version '1', publication_names 'pawl_events')`, position>>32, uint32(position))})
	if err := conn.Frontend().Flush(); err != nil {
		return nil, err
	}
	for {
		message, err := conn.ReceiveMessage(ctx)
		if refused, ok := message.(*pgproto3.ErrorResponse); ok {
			err = pgconn.ErrorResponseToPgError(refused)
		}
		if err != nil {
			_ = conn.Conn().Close()
			return nil, err
		}
		if _, ok := message.(*pgproto3.CopyBothResponse); ok {
			return &logStream{conn, map[uint32]logTable{}}, nil
		}
	}
}

// next is the next insert or commit. Whenever the server asks, it is told that all up to a position is kept.
func (s *logStream) next(ctx context.Context, kept uint64) (any, error) {
	for {
		message, err := s.conn.ReceiveMessage(ctx)
		if err != nil {
			return nil, err
		}
		data, ok := message.(*pgproto3.CopyData)
		if !ok {
			return nil, fmt.Errorf("received %T", message)
		}
		switch data.Data[0] {
		case 'k': // keepalive
			if err := s.confirm(kept); err != nil {
				return nil, err
			}
		case 'w': // a piece of the log, after three numbers
			if found := s.decode(&logText{data.Data[25:]}); found != nil {
				return found, nil
			}
		}
	}
}

func (s *logStream) confirm(kept uint64) error {
	status := []byte{'r'}
	for _, n := range []uint64{kept, kept, kept, 0} { // written, flushed, applied; a time
		status = binary.BigEndian.AppendUint64(status, n)
	}
	s.conn.Frontend().Send(&pgproto3.CopyData{Data: append(status, 0)})
	return s.conn.Frontend().Flush()
}

func (s *logStream) decode(text *logText) any {
	switch text.take(1)[0] {
	case 'R':
		id := text.uint32()
		text.word() // the schema
		table := logTable{name: text.word()}
		text.take(1) // its replica identity
		for range text.uint16() {
			text.take(1) // whether it is of the key
			table.columns = append(table.columns, text.word())
			text.take(8) // its type
		}
		s.tables[id] = table
	case 'I':
		table := s.tables[text.uint32()]
		text.take(1) // a new row
		row := map[string]string{}
		for i := range text.uint16() {
			if kind := text.take(1)[0]; kind == 't' {
				row[table.columns[i]] = string(text.take(int(text.uint32())))
			}
		}
		return logInsert{table.name, row}
	case 'C':
		text.take(9) // flags, and where the commit begins
		return logCommit{binary.BigEndian.Uint64(text.take(8))}
	}
	return nil
}

// logText is what is left of a message.
type logText struct{ left []byte }

func (t *logText) take(n int) (taken []byte) {
	taken, t.left = t.left[:n], t.left[n:]
	return taken
}

func (t *logText) uint16() uint16 { return binary.BigEndian.Uint16(t.take(2)) }
func (t *logText) uint32() uint32 { return binary.BigEndian.Uint32(t.take(4)) }

// word ends with a zero.
func (t *logText) word() string {
	return strings.TrimSuffix(string(t.take(bytes.IndexByte(t.left, 0)+1)), "\x00")
}
