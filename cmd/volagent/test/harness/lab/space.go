package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

// space is a set of namespaces. A process that only sleeps, the holder, keeps them. If there is a pid
// namespace, the holder is its first process, so the kernel kills all other processes there when the
// holder ends. The holder itself ends with this process.
type space struct {
	kinds  []kind
	holder *exec.Cmd
	ended  chan struct{} // closed when the holder has ended

	mu     sync.Mutex
	closed bool
	idle   []*thread
	busy   sync.WaitGroup // calls of enter that have not returned
}

// errOff is the error of a call in a host that is switched off.
var errOff = errors.New("the host is off")

// newSpace makes new namespaces.
func newSpace(kinds ...kind) (*space, error) {
	// The holder ignores SIGCHLD. Therefore the kernel removes its zombies, which are the processes
	// whose parents have ended.
	holder := exec.Command("env", "--ignore-signal=CHLD", "sleep", "infinity")
	holder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, k := range kinds {
		holder.SysProcAttr.Cloneflags |= uintptr(k.flag)
	}

	s := &space{kinds: kinds, holder: holder, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the signal of Pdeathsig when the thread that started the holder ends. The
		// goroutine keeps its thread until the holder has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := holder.Start()
		started <- err
		if err == nil {
			_ = holder.Wait() // Wait returns an error because the holder is killed
			close(s.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("cannot make namespaces: %w", err)
	}

	return s, nil
}

// pid returns the pid of the holder.
func (s *space) pid() int { return s.holder.Process.Pid }

// enter calls do on a thread in the namespaces.
func (s *space) enter(do func() error) error {
	t, err := s.takeThread()
	if err != nil {
		return err
	}
	defer s.busy.Done()

	err = t.call(do)
	if !errors.Is(err, errGone) {
		s.mu.Lock()
		s.idle = append(s.idle, t)
		s.mu.Unlock()
	}
	return err
}

// takeThread returns a thread in the namespaces that has no other work. The caller then calls
// busy.Done.
func (s *space) takeThread() (t *thread, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errOff
	}

	if n := len(s.idle); n > 0 {
		t, s.idle = s.idle[n-1], s.idle[:n-1]
	} else if t, err = newThread(s.pid(), s.kinds); err != nil {
		return nil, err
	}
	s.busy.Add(1)
	return t, nil
}

// run runs a command in the namespaces. The argument input is the command's standard input.
func (s *space) run(input string, argv ...string) error {
	cmd := exec.Command(argv[0], argv[1:]...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &out
	err := s.enter(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("cannot run %v: %w\n%s", argv, err, out.String())
	}
	return nil
}

// close kills all processes in the namespaces, and waits until no process and no thread is in them.
// The holder ends after all other processes. The function reap must wait for the end of those that
// this process has started.
func (s *space) close(reap func()) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()

	err := s.holder.Process.Kill()
	reap()
	<-s.ended
	s.busy.Wait()
	for _, t := range s.idle {
		err = errors.Join(err, t.leave())
	}
	s.idle = nil
	return err
}
