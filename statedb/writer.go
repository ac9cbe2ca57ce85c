package statedb

import (
	"context"
	"maps"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/volmgr/volume"
)

const (
	// tendEvery is the interval at which an idle writer checks that its files are still at their
	// paths.
	tendEvery = 30 * time.Second
	// beginWithin is the maximum time from a change in the log to the beginning of its commit.
	beginWithin = 50 * time.Millisecond
	// flushAgain is the delay from a failed commit to its retry, unless a request causes an earlier
	// commit.
	flushAgain = 5 * time.Second
)

// writer runs all changes one after another, and commits them.
type writer struct {
	health
	file    *file
	log     *logFile
	backups *backups
	mem     *memory
	tap     func(Point)

	queue   chan *request
	begin   chan struct{} // holds one token while a commit is requested
	tending chan struct{} // asks the writer to check its files
	quit    chan struct{}
	done    chan struct{}

	// turn is held while a change runs and while its result is stored in mem. A commit releases
	// turn while it writes to disk, unless the log is full.
	turn  sync.Mutex
	dirty changes // changes in memory that the file may lack; guarded by turn
	// Changes that a commit is writing and that are not in memory yet. turn guards them.
	busy  changes
	ended bool // the writer has made its last commit; guarded by turn
	// recalled is set while the log has lines of an earlier agent that are not committed. turn
	// guards it.
	recalled bool

	// Only the writer goroutine uses the following fields.
	stored stored
	copies copier
}

func newWriter(b *backups, mem *state, l *logFile, tap func(Point)) *writer {
	return &writer{
		file: b.file, log: l, backups: b, mem: &memory{state: mem}, tap: tap,
		queue: make(chan *request, 1024), begin: make(chan struct{}, 1), tending: make(chan struct{}), quit: make(chan struct{}), done: make(chan struct{}),
		dirty: changes{}, stored: storedIn(mem), copies: copier{newest: copyPaths(b.file.path)[0]},
	}
}

// Update makes a change that may still be refused, and waits until it is on disk. After an error,
// nothing has changed. After Update has returned nil, a power cut cannot lose the change. fn may
// run more than once and must not block.
func (w *writer) Update(ctx context.Context, fn func(*Tx) error) error {
	return w.send(ctx, newRequest(update, fn))
}

// Happened records an event that has already taken place, and waits until it is on disk. If the
// commit fails, Happened returns the error, memory keeps the event, and a later commit writes it.
// Until that commit, a power cut loses the event. After Happened has returned nil, a power cut
// cannot lose it. The rules for fn are the same as in Update.
func (w *writer) Happened(ctx context.Context, fn func(*Tx) error) error {
	return w.send(ctx, newRequest(happened, fn))
}

// Save records, in memory, an event that has already taken place. The rules for fn are the same as
// in Update. The result of fn says how soon the event must be on disk:
//
//   - SaveWithNext: the next commit of any change writes the event. Until then, a power cut or a
//     kill of the agent loses it.
//   - SaveAtOnce: a commit writes the event within beginWithin, and Save does not wait. Until then,
//     a power cut loses the event. A kill of the agent does not, because the event is in the log
//     before any reader can see it. If the log cannot hold the event, Save waits for a commit.
//   - SaveFirst: like SaveAtOnce, but Save waits for the commit. After Save has returned nil, a
//     power cut cannot lose the event.
//
// Save does not wait for a running commit, unless fn uses a value that this commit changes. Memory
// keeps the event even if Save returns the error of a commit.
func (w *writer) Save(ctx context.Context, fn func(*Tx) volume.Saving) error {
	r := newRequest(save, nil)
	r.fn = func(tx *Tx) error {
		r.saving = fn(tx)
		return nil
	}

	done, err := w.saveNow(r)
	if !done && err == nil {
		err = w.send(ctx, r)
	}
	switch {
	case err != nil:
		return err
	case r.saving == volume.SaveAtOnce:
		w.commitSoon()
	case r.saving == volume.SaveFirst:
		return w.sync(ctx)
	}

	return nil
}

// saveNow makes a change, even during a commit. It returns false and changes nothing if the change
// depends on the running commit, or if the change must be logged and the log cannot hold it.
func (w *writer) saveNow(r *request) (done bool, err error) {
	w.turn.Lock()
	defer w.turn.Unlock()
	if w.ended {
		return false, ErrClosed
	}

	tx := newTx(w.mem.state, nil, w.busy)
	if err := r.run(tx); err != nil || tx.stale {
		return false, err
	}
	if r.urgent() && w.log.addAll(r.own) != nil {
		return false, nil
	}
	w.mem.publish(r.own)
	maps.Copy(w.dirty, r.own)
	return true, nil
}

// commitSoon requests a commit of the state in memory and does not wait. The writer retries a
// failed commit.
func (w *writer) commitSoon() {
	select {
	case w.begin <- struct{}{}:
	default: // the writer has not processed an earlier request yet
	}
}

// sync waits until all earlier changes in memory are on disk.
func (w *writer) sync(ctx context.Context) error {
	return w.Happened(ctx, func(*Tx) error { return nil })
}

func (w *writer) send(ctx context.Context, r *request) error {
	select {
	case <-w.quit:
		return ErrClosed
	default:
	}

	select {
	case w.queue <- r:
	case <-w.quit:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}

	// The writer has the request in its queue and will process it. Returning before that would hide
	// the result from the caller.
	select {
	case err := <-r.done:
		return err
	case <-w.done:
		select {
		case err := <-r.done:
			return err
		default:
			return ErrClosed
		}
	}
}

// write is the main loop of the writer goroutine.
func (w *writer) write() {
	defer close(w.done)
	tend := time.NewTicker(tendEvery)
	defer tend.Stop()
	var begun <-chan time.Time

	for {
		var retry <-chan time.Time
		if w.Fault() != nil && w.unsaved() {
			retry = time.After(flushAgain)
		}
		w.copies.plan()
		select {
		case <-w.copies.due:
			w.copies.start(w.keepCopy)
		case err := <-w.copies.ended:
			w.copies.ended = nil
			w.backups.report(err)
		case <-retry:
			w.flush()
		case r := <-w.queue:
			w.batch(w.drain([]*request{r}))
		case <-w.begin:
			switch {
			case w.log.full():
				w.flush()
			case begun == nil:
				begun = time.After(beginWithin)
			}
		case <-tend.C:
			w.tend()
		case <-w.tending:
			w.tend()
		case <-begun:
			begun = nil
			w.flush() // does nothing if another commit has already written the changes
		case <-w.quit:
			w.batch(w.drain(nil))
			w.end()
			if w.copies.ended != nil {
				w.backups.report(<-w.copies.ended)
			}
			return
		}
	}
}

// drain appends all queued requests to batch. It does not wait for more requests.
func (w *writer) drain(batch []*request) []*request {
	for {
		select {
		case r := <-w.queue:
			batch = append(batch, r)
		default:
			return batch
		}
	}
}

// admit answers each update with an error if another file has replaced the database or its log. It
// returns the remaining requests.
func (w *writer) admit(reqs []*request) (rest []*request) {
	f := w.Foreign()
	if f == nil {
		return reqs
	}

	for _, r := range reqs {
		if r.verb == update {
			r.done <- f.refusal()
		} else {
			rest = append(rest, r)
		}
	}

	return rest
}

// batch runs the requested changes and commits them together.
func (w *writer) batch(reqs []*request) {
	reqs = w.admit(reqs)
	w.turn.Lock()
	all, errs := w.run(reqs, true)
	commit := false
	for i, r := range reqs {
		commit = commit || errs[i] == nil && r.verb != save
	}

	// A failed commit drops the updates, so they must not be in the log before the commit has
	// succeeded.
	for _, r := range reqs {
		commit = commit || r.urgent() && w.log.addAll(r.own) != nil
	}

	var err error
	if commit {
		err = w.commit(all)
	} else {
		maps.Copy(w.dirty, all)
	}
	if err != nil {
		// The commit failed. Drop the updates, run the other changes again without them, and keep
		// those changes in memory.
		all, _ = w.run(reqs, false)
		maps.Copy(w.dirty, all)

		for i, r := range reqs {
			if errs[i] == nil && (r.verb != save || r.urgent() && w.log.addAll(r.own) != nil) {
				errs[i] = w.file.unwritten(err)
			}
		}
	}

	w.mem.publish(all)
	w.turn.Unlock()
	for i, r := range reqs {
		r.done <- errs[i]
	}
}

// run runs the requested changes. Each change sees the changes of the earlier ones. If the argument
// updates is false, run skips updates.
func (w *writer) run(reqs []*request, updates bool) (changes, []error) {
	all, errs := changes{}, make([]error, len(reqs))
	for i, r := range reqs {
		if r.verb == update && !updates {
			continue
		}
		if errs[i] = r.run(newTx(w.mem.state, all, nil)); errs[i] == nil {
			maps.Copy(all, r.own)
		}
	}

	return all, errs
}

// unsaved reports whether memory has changes that the file may lack.
func (w *writer) unsaved() bool {
	w.turn.Lock()
	defer w.turn.Unlock()
	return len(w.dirty) > 0
}

// flush commits the changes that are only in memory.
func (w *writer) flush() {
	w.turn.Lock()
	defer w.turn.Unlock()
	_ = w.commit(changes{}) // Fault returns this error later
}

// end makes the last commit.
func (w *writer) end() {
	w.turn.Lock()
	w.ended = true
	w.turn.Unlock()
	w.tend()
	w.flush()
	w.turn.Lock()
	defer w.turn.Unlock()
	if len(w.dirty) == 0 {
		w.log.committed(0)
	}
}

// commit writes c and all other changes that the file lacks. The caller must hold turn. commit
// releases turn while it writes. During that time, the only possible changes are saves that do not
// depend on c. After commit returns, the caller applies c to memory or discards c. If the log is
// full, commit does not release turn, because a new line would prevent commit from emptying the
// log.
func (w *writer) commit(c changes) error {
	whole := w.dirty
	maps.Copy(whole, c)
	if len(whole) == 0 {
		return nil
	}

	w.dirty, w.busy = changes{}, c
	full := w.log.full()
	if !full {
		w.turn.Unlock()
	}

	err := w.writeOut(whole)
	if !full {
		w.turn.Lock()
	}

	w.busy = nil
	switch {
	case err != nil:
		w.doubt(whole)
	case len(w.dirty) == 0:
		most := int64(logMost)
		if w.recalled {
			most, w.recalled = 0, false
		}
		w.log.committed(most)
	}

	return err
}

// writeOut writes changes in one transaction.
func (w *writer) writeOut(whole changes) error {
	w.tap(BeforeCommit)
	err := w.file.keepPlace()
	_ = w.log.keepPlace() // an error is harmless, because this commit writes the logged changes
	if err == nil {
		err = w.file.update(func(tx *bbolt.Tx) error { return w.stored.save(tx, whole) })
	}

	w.committed(err)
	if err != nil {
		return err
	}
	w.copies.stale = true
	w.tap(AfterCommit)
	w.stored.written(whole)
	return nil
}

// doubt handles the changes of a failed commit. If only the last sync failed, these changes may be
// in the file, either now or after the next commit. The next commit therefore writes the values
// from memory for all these keys. The generations in memory continue after those of the failed
// commit, so that later log lines are newer.
func (w *writer) doubt(c changes) {
	for at := range c {
		now, _ := w.mem.state.get(at) // nil if the key must be deleted
		if at.bucket == volumes.bucket {
			tried := c.volume(at)
			w.stored.doubt(at.key, tried)
			if m, ok := now.(volume.Record); ok && tried != nil && m.Generation < tried.Generation {
				m.Generation = tried.Generation
				now = m
			}
		}
		w.dirty[at] = now
	}

	w.mem.publish(w.dirty)
}

// Fault returns the reason why the last commit failed or the next one will fail, or nil if no
// reason is known. The reason is a *Foreign if another file has replaced the database or the log.
func (w *writer) Fault() error {
	if f := w.Foreign(); f != nil {
		return f
	}
	if err := w.failed(); err != nil {
		return err
	}
	return w.file.fault()
}

// Foreign returns an error if another file has replaced the database or the log, or nil.
func (w *writer) Foreign() *Foreign {
	if f := w.log.Foreign(); f != nil {
		return f
	}
	return w.file.Foreign()
}

// Verify reads the file of an open database again and checks its values like Check. It does not
// check bbolt's page structure. It may block on slow storage. If the last commit failed, Verify
// returns the error of that commit and does not read the file.
func (w *writer) Verify() error {
	if err := w.Fault(); err != nil {
		return err
	}
	return w.file.verify()
}

// keepCopy checks the file and makes an automatic copy of it.
func (w *writer) keepCopy() error {
	if err := w.Verify(); err != nil {
		return err
	}
	return w.backups.rotate()
}

// tend checks that the files are still at their paths. The writer calls it at intervals, because an
// idle database makes no commits, which would also check the files.
func (w *writer) tend() {
	_ = w.file.keepPlace() // Fault returns this error later
	_ = w.log.keepPlace()  // the next log line or the next call of tend retries
}
