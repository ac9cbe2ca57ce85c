package san

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Start runs a SAN whose files are in dir, which it creates. It listens on SocketPath(dir). The path
// must be short, and reachable in the mount namespaces of all hosts.
func Start(dir string) (*SAN, error) {
	if err := os.MkdirAll(filepath.Join(dir, "disks"), 0o755); err != nil {
		return nil, fmt.Errorf("cannot start the SAN: %w", err)
	}

	journal, err := openJournal(dir)
	if err != nil {
		return nil, err
	}

	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: SocketPath(dir), Net: "unix"})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot start the SAN: %w", err), journal.close())
	}

	closed := make(chan struct{})
	s := &SAN{socket: socket, closed: closed, calls: map[int64]*call{}, faults: &faults{closed: closed}, fabric: &fabric{
		dir: dir, ended: closed, journal: journal, disks: map[string]*Disk{}, snapshots: map[string]*snapshot{},
		nodes: map[string]node{}, attachments: map[string]*attachment{}, sessions: map[*session]bool{},
		cut: map[string]bool{}, judged: map[string]bool{}, lies: map[string]int{}, slow: map[string]time.Duration{}}}
	s.work.Add(1)
	go s.accept()

	return s, nil
}

// Close ends the SAN. All sessions answer EIO afterwards. Close returns an error that names the
// sessions that are still mounted on a host, because a test must leave no mounts. Close may be called
// twice.
func (s *SAN) Close() error {
	var err error
	s.once.Do(func() { err = s.close() })
	return err
}

func (s *SAN) close() error {
	close(s.closed)
	err := s.socket.Close()
	s.work.Wait()

	var left error
	for _, one := range s.Sessions() {
		left = errors.Join(left, fmt.Errorf("volume %q is still mounted on %s at %s", one.Volume, one.Node, one.Path))
	}
	for _, a := range s.attached(func(*attachment) bool { return true }) {
		s.set(a, func() { a.open = false })
	}

	return errors.Join(err, left, s.journal.close())
}

func (s *SAN) accept() {
	defer s.work.Done()
	for {
		conn, err := s.socket.AcceptUnix()
		if err != nil {
			return
		}

		s.work.Add(1)
		go func() {
			defer s.work.Done()
			s.converse(conn)
		}()
	}
}

// converse answers one request. A driver that has gone gets no answer.
func (s *SAN) converse(conn *net.UnixConn) {
	defer conn.Close() //nolint:errcheck // the driver has its answer, or has gone

	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second)) // fails only for a closed connection
	r, file, err := receive(conn)
	if err != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})

	gone, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = conn.Read(make([]byte, 1)) // the driver sends nothing more, so Read returns when it closes
	}()
	go func() {
		select {
		case <-s.closed:
			_ = conn.Close()
		case <-done:
		}
	}()

	a := s.answer(r, file, gone)
	close(done)
	_ = json.NewEncoder(conn).Encode(a)
	_ = conn.Close()
	<-gone
}

func (s *SAN) answer(r request, file *os.File, gone <-chan struct{}) answer {
	if r.Op == opServe {
		return s.serve(r, file)
	}
	if file != nil {
		if err := file.Close(); err != nil {
			return failed(err)
		}
	}

	switch r.Op {
	case opHello:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.nodes[r.Node] = r.Info
		return answer{}
	case opCall, opEnter:
		return s.perform(r, gone)
	case opRelease:
		return s.release(r)
	case opWriter:
		return s.writer(r)
	case opResize:
		return s.resize(r)
	default:
		return failed(status.Errorf(codes.Unimplemented, "unknown operation %q", r.Op))
	}
}
