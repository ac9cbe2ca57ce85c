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

// processes watches the processes that own claims. One goroutine waits for all pidfds in one epoll
// set. The same goroutine polls the processes that have no pidfd.
type processes struct {
	max   int
	every time.Duration // interval between two polls
	ended func()
	log   hclog.Logger

	epoll, wake int // wake is an eventfd in the epoll set; its token is 0

	mu      sync.Mutex
	by      map[process]*watch
	tokens  map[uint64]process // the tokens of the pidfds in the epoll set
	last    uint64             // the highest token so far
	polled  int
	looked  time.Time // time of the last poll
	now     uint64    // number of the current call of Keep; incremented by turn
	stopped bool
}

// watch is the state of one watched process.
type watch struct {
	fd int // the pidfd; -1 if the process has none
	// identifies the pidfd in the epoll set; unlike descriptor numbers, tokens are never reused
	token   uint64
	gone    bool
	touched uint64 // number of the call of Keep that last called watch for this process
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

// halfOfNoFile returns half of the limit on open files. The other half remains for the rest of the
// agent.
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

// stop ends run. The caller must call it only once.
func (p *processes) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.stopped {
		return nil // run has already ended after a failure
	}

	p.stopped = true
	return p.poke()
}

// poke wakes run, so that it checks for new work. The caller holds mu.
func (p *processes) poke() error {
	one := binary.NativeEndian.AppendUint64(nil, 1)
	if _, err := unix.Write(p.wake, one); err != nil && !errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("cannot wake the watch of processes: %w", err)
	}
	return nil
}

// run waits for the ends of processes.
func (p *processes) run() {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(p.epoll, events, p.patience())
		if err != nil && !errors.Is(err, unix.EINTR) {
			p.log.Error("cannot watch the processes that own claims; restart the agent to notice their ends", "error", err)
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

// patience returns the timeout of run's next wait, in milliseconds. -1 means no timeout.
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
		// The read resets the counter to 0. The value itself has no meaning.
		_, _ = unix.Read(p.wake, buf[:])
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

// release frees the resources that watch a process. The caller holds mu.
func (p *processes) release(w *watch) {
	switch {
	case w.fd >= 0:
		delete(p.tokens, w.token)
		// Closing the descriptor also removes it from the epoll set. An error of close has no
		// consequence.
		_ = unix.Close(w.fd)
		w.fd = -1
	case !w.gone:
		p.polled--
	}
}

// watch starts to watch a process.
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
		p.polled++ // the watcher polls the process until the process has a pidfd
		p.begin(proc, w)
	}

	w.touched = p.now
}

// begin opens a pidfd if the limit permits one. It then checks that the pidfd belongs to the right
// process. The caller holds mu.
func (p *processes) begin(proc process, w *watch) {
	p.describe(proc, w)
	if !w.gone && proc.life() == volume.LifeGone {
		p.bury(w)
	}

	// Until now no process was polled, so run may be waiting without a timeout.
	if !w.gone && w.fd < 0 && p.polled == 1 {
		if err := p.poke(); err != nil {
			p.log.Error("cannot watch a process that owns a claim; restart the agent to notice its end", "pid", proc.pid, "error", err)
		}
	}
}

// describe opens a pidfd for a process that was polled until now. The caller holds mu.
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
		p.log.Debug("cannot watch a pidfd; the agent polls the process", "pid", proc.pid, "error", err)
		return
	}

	p.last++
	if err := p.add(fd, p.last); err != nil {
		p.log.Debug("cannot watch a pidfd; the agent polls the process", "pid", proc.pid, "error", err)
		_ = unix.Close(fd) // nothing uses the descriptor yet
		return
	}

	w.fd, w.token = fd, p.last
	p.tokens[p.last] = proc
	p.polled--
}

// poll checks the processes without a pidfd. It opens pidfds for them, as far as the limit permits.
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

// gone reports whether the process is known to have ended.
func (p *processes) gone(proc process) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.by[proc]
	return ok && w.gone
}

// check examines a process. If the process has ended, check records the end.
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

// turn begins a call of Keep.
func (p *processes) turn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now++
}

// drop ends a call of Keep. It stops watching each process for which watch was not called since the
// last call of turn.
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

	_, _ = unix.Close(p.wake), unix.Close(p.epoll) // no goroutine uses the descriptors any longer
}
