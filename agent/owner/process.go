package owner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/volmgr/volume"
)

// processes watches processes. Each has a pidfd, and all pidfds are in one epoll set with one
// goroutine. The same goroutine polls the processes for which no descriptor is available.
type processes struct {
	max   int
	every time.Duration // the interval between polls
	ended func()
	log   hclog.Logger

	epoll, wake int // wake is an eventfd in the set, with the token 0

	mu      sync.Mutex
	by      map[process]*watch
	tokens  map[uint64]process // of descriptors in the set
	last    uint64             // the last token that was used
	polled  int
	looked  time.Time // the time of the last poll
	now     uint64    // counts the calls of turn
	stopped bool
}

// watch is the state of one watched process.
type watch struct {
	fd      int    // -1 if there is none
	token   uint64 // of fd: the kernel reuses descriptors, but tokens are unique
	gone    bool
	touched uint64 // the turn of the last call of watch for it
}

func newProcesses(o Options, ended func()) *processes {
	p := &processes{max: o.MaxPidfds, every: o.PollEvery, ended: ended, log: o.Log, by: map[process]*watch{}, tokens: map[uint64]process{}}
	if p.max == 0 {
		p.max = halfOfNoFile()
	}

	if p.every == 0 {
		p.every = time.Second
	}

	return p
}

// halfOfNoFile leaves the other half of the descriptors to the rest of the agent.
func halfOfNoFile() int {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 512
	}
	return int(min(lim.Cur, 1<<20) / 2)
}

func (p *processes) open() (err error) {
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("cannot watch processes: epoll_create: %w", err)
	}
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("cannot watch processes: eventfd: %w", err)
	}
	if err := p.add(p.wake, 0); err != nil {
		return fmt.Errorf("cannot watch processes: epoll_ctl: %w", err)
	}

	return nil
}

// add adds a descriptor to the epoll set.
func (p *processes) add(fd int, token uint64) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(uint32(token)), Pad: int32(uint32(token >> 32))}
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &ev)
}

func tokenOf(ev unix.EpollEvent) uint64 { return uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32 }

// stop ends run. It may be called once.
func (p *processes) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.stopped {
		return nil // run has failed
	}

	p.stopped = true
	return p.poke()
}

// poke wakes run for one pass. The caller holds mu.
func (p *processes) poke() error {
	one := binary.NativeEndian.AppendUint64(nil, 1)
	if _, err := unix.Write(p.wake, one); err != nil && !errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("cannot wake the watch of processes: %w", err)
	}
	return nil
}

// run waits for processes to end.
func (p *processes) run() {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(p.epoll, events, p.patience())
		if err != nil && !errors.Is(err, unix.EINTR) {
			p.log.Error("processes that own claims are not watched any more; their ends are seen when the agent is started again", "error", err)
			n = 0
		}

		stopped := err != nil && !errors.Is(err, unix.EINTR)
		for _, ev := range events[:max(n, 0)] {
			p.happened(tokenOf(ev))
		}

		p.mu.Lock()
		stopped = stopped || p.stopped
		p.mu.Unlock()
		if stopped {
			p.close()
			return
		}

		p.poll()
	}
}

// patience returns the time that run may wait, in milliseconds; -1 means no limit.
func (p *processes) patience() int {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.polled == 0 {
		return -1
	}

	return int(max(time.Until(p.looked.Add(p.every)), time.Millisecond) / time.Millisecond)
}

// happened handles one event of the epoll set.
func (p *processes) happened(token uint64) {
	if token == 0 {
		var buf [8]byte
		_, _ = unix.Read(p.wake, buf[:]) // the value does not matter: the read resets the counter to 0
		return
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	if proc, ok := p.tokens[token]; ok {
		p.bury(p.by[proc])
	}
}

// bury records that a process has ended. The caller holds mu.
func (p *processes) bury(w *watch) {
	if w.gone {
		return
	}

	p.release(w)
	w.gone = true
	p.ended()
}

// release frees the resources for watching a process. The caller holds mu.
func (p *processes) release(w *watch) {
	switch {
	case w.fd >= 0:
		delete(p.tokens, w.token)
		_ = unix.Close(w.fd) // this also removes it from the set; an error would not help
		w.fd = -1
	case !w.gone:
		p.polled--
	}
}

// watch watches a process from now on.
func (p *processes) watch(proc process) {
	p.mu.Lock()
	defer p.mu.Unlock()

	w, ok := p.by[proc]
	if !ok && p.stopped {
		return
	}

	if !ok {
		w = &watch{fd: -1}
		p.by[proc] = w
		p.polled++ // until it has a descriptor
		p.begin(proc, w)
	}

	w.touched = p.now
}

// begin opens a descriptor, if one is available, and then checks that it belongs to the right
// process. The caller holds mu.
func (p *processes) begin(proc process, w *watch) {
	p.describe(proc, w)
	if !w.gone && proc.life() == volume.LifeGone {
		p.bury(w)
	}

	if !w.gone && w.fd < 0 && p.polled == 1 { // run waits without limit
		if err := p.poke(); err != nil {
			p.log.Error("a process is not watched", "pid", proc.pid, "error", err)
		}
	}
}

// describe opens the descriptor of a polled process. The caller holds mu.
func (p *processes) describe(proc process, w *watch) {
	if len(p.tokens) >= p.max {
		return
	}

	fd, err := unix.PidfdOpen(proc.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		p.bury(w)
		return
	}
	if err != nil {
		p.log.Debug("a process is polled", "pid", proc.pid, "error", err)
		return
	}

	p.last++
	if err := p.add(fd, p.last); err != nil {
		p.log.Debug("a process is polled", "pid", proc.pid, "error", err)
		_ = unix.Close(fd) // unused
		return
	}

	w.fd, w.token = fd, p.last
	p.tokens[p.last] = proc
	p.polled--
}

// poll checks the processes without a descriptor, and opens one for each if available by now.
func (p *processes) poll() {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.polled == 0 || time.Since(p.looked) < p.every {
		return
	}
	defer func() { p.looked = time.Now() }()

	for proc, w := range p.by {
		if w.gone || w.fd >= 0 {
			continue
		}

		p.describe(proc, w)
		if !w.gone && proc.life() == volume.LifeGone {
			p.bury(w)
		}
	}
}

// gone reports whether a process is known to have ended.
func (p *processes) gone(proc process) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.by[proc]
	return ok && w.gone
}

// check examines a process, and records its end.
func (p *processes) check(proc process) volume.Life {
	if p.gone(proc) {
		return volume.LifeGone
	}

	life := proc.life()
	if life == volume.LifeGone {
		p.mu.Lock()
		defer p.mu.Unlock()
		if w, ok := p.by[proc]; ok {
			p.bury(w)
		}
	}

	return life
}

// turn starts a Keep.
func (p *processes) turn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now++
}

// drop ends a Keep. It stops watching each process for which watch was not called since turn.
func (p *processes) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()

	for proc, w := range p.by {
		if w.touched < p.now {
			p.release(w)
			delete(p.by, proc)
		}
	}
}

// close closes all descriptors.
func (p *processes) close() {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.stopped = true
	for _, w := range p.by {
		if w.fd >= 0 {
			p.release(w)
			p.polled++
		}
	}

	_, _ = unix.Close(p.wake), unix.Close(p.epoll) // no goroutine uses them now
}
