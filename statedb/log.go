package statedb

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/volagent/volagent/volmgr/volume"
)

// A commit waits for the disk twice. Some changes need not wait that long before the agent reports
// them, for example that a claim is mounted or has ended. Such a change must survive the end of the
// agent. It need not survive a crash of the host, because a crash also ends the mount. The database
// appends the changed record, without a sync, to the log, which is a file beside the database. The
// next commit writes the record to the database, and begins at most beginWithin later. If the agent
// is killed, the next agent reads the record from the log. If a power cut destroys the log, the
// committed state remains, as if the agent had been killed a moment earlier.
//
// Each line of the log consists of a checksum (CRC-32, 8 hex digits), a space, and a value of the
// type logged as JSON. A line is used only if the database has the same volume with a lower
// generation. Lines whose records were committed later are therefore harmless. All lines after a
// damaged or incomplete line are ignored. The database empties the log when it has grown too large.
//
// One generation must never stand for two different records. The record of a shared volume may be
// deleted and added again while the log has lines of the earlier record. A new record therefore has
// a higher generation than each deleted one. For the same reason, the database does not log a
// change that it may still refuse. After a failed commit, the generations in memory continue after
// those that may be in the file.

// logged is a record with its claims, as stored in a line of the log.
type logged struct {
	Record volume.Record  `json:"record"`
	Claims []volume.Claim `json:"claims"`
}

// logMost is the size in bytes above which the database empties the log. Before that, a commit must
// have written all its lines.
const logMost = 1 << 20

// claimsMost is the maximum number of claims in a logged record. A log line contains all claims of
// the record, but a commit writes only the changed claims. For a record with more claims, a log
// line would cost more than a commit.
const claimsMost = 64

// logFile is the open log. The writer checks before each line that the file is still at its path.
type logFile struct {
	place
	fault error // the reason why Open could not open the log

	writing sync.Mutex
	f       *os.File    // nil if there is no log; changes then wait for a commit
	info    os.FileInfo // attributes of f
	size    int64       // size of the valid lines, in bytes
	broken  bool        // the file has invalid data after its valid lines
}

// logPath returns the path of a database's log.
func logPath(path string) string { return strings.TrimSuffix(path, ".db") + ".log" }

// openLog opens the log of a database for appending and returns its records.
func openLog(path string, h home, warn func(string)) (*logFile, []volume.Record) {
	path = logPath(path)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if errors.Is(err, syscall.EROFS) {
		// Even if the log cannot be written now, it may contain changes that were already reported
		// to callers.
		raw, _ := os.ReadFile(path)
		lines, _ := readLog(raw)
		return &logFile{fault: err}, lines
	}
	if err != nil {
		return &logFile{fault: err}, nil
	}

	raw, err := io.ReadAll(f)
	info, serr := f.Stat()
	if err := errors.Join(err, serr); err != nil {
		_ = f.Close() // the file was only read, so closing it can lose no data
		return &logFile{fault: err}, nil
	}

	records, size := readLog(raw)
	l := &logFile{place: place{path: path, home: h, warn: warn}, f: f, info: info, size: size, broken: size < int64(len(raw))}
	l.repair()
	return l, records
}

// readLog decodes lines up to the first invalid one, and returns the size of the valid lines in
// bytes.
func readLog(raw []byte) (records []volume.Record, size int64) {
	for {
		line, rest, ended := bytes.Cut(raw, []byte{'\n'})
		sum, body, _ := bytes.Cut(line, []byte{' '})
		want, err := strconv.ParseUint(string(sum), 16, 32)
		if !ended || err != nil || crc32.ChecksumIEEE(body) != uint32(want) {
			return records, size
		}
		var e logged
		if json.Unmarshal(body, &e) != nil {
			return records, size
		}
		records = append(records, whole(e.Record, e.Claims))
		size += int64(len(line)) + 1
		raw = rest
	}
}

// replay returns the changes in the log that are newer than the state in the database.
func replay(mem *state, lines []volume.Record) changes {
	tx := newTx(mem, nil, nil)
	for _, r := range lines {
		if was, ok := tx.Volume(r.Volume.ID); ok && was.Same(r) && was.Generation < r.Generation {
			volumes.Put(tx, r)
		}
	}
	return tx.own
}

// addAll appends the changed records to the log. It fails if one of the changes is of a kind that
// the log cannot hold.
func (l *logFile) addAll(c changes) error {
	for at := range c {
		r := c.volume(at)
		if r == nil {
			return errors.New("the log holds only records of volumes")
		}
		if err := l.add(*r); err != nil {
			return err
		}
	}

	return nil
}

// add appends a record. When add returns, the kernel has the data, so the data survives a kill of
// the agent.
func (l *logFile) add(r volume.Record) error {
	if len(r.Claims) > claimsMost {
		return errors.New("it has too many claims for the log")
	}

	body, err := json.Marshal(logged{Record: r, Claims: r.Ordered()})
	if err != nil {
		return err
	}

	line := fmt.Appendf(make([]byte, 0, len(body)+10), "%08x %s\n", crc32.ChecksumIEEE(body), body)
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.f == nil || l.broken {
		return errors.New("there is no log")
	}
	if _, err := l.keep(l.info, l.rewrite); err != nil {
		return err
	}
	if _, err := l.f.Write(line); err != nil {
		l.broken = true
		l.repair()
		return err
	}

	l.size += int64(len(line))
	return nil
}

// repair removes invalid data from the end of the log. The caller holds the mutex writing, or is
// the only user of the log.
func (l *logFile) repair() {
	if l.broken {
		l.broken = l.f.Truncate(l.size) != nil
	}
}

// full reports whether the log has reached the size at which it must be emptied.
func (l *logFile) full() bool {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.size > logMost
}

// forget empties a log that belongs to an earlier state database. The agent may restore volumes
// from notes with the same ids and registration times as before. Without forget, an old line could
// be applied to a restored volume.
func (l *logFile) forget() error {
	if l.f == nil || l.size == 0 {
		return nil
	}
	if err := errors.Join(l.f.Truncate(0), l.f.Sync()); err != nil {
		return fmt.Errorf("cannot empty the log of an earlier state database: %w", err)
	}

	l.size, l.broken = 0, false
	return nil
}

// committed empties the log if it has more than most bytes. All lines of the log must already be
// committed.
func (l *logFile) committed(most int64) {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.f == nil || l.size <= most && !l.broken {
		return
	}

	l.size, l.broken = 0, true
	l.repair()
}

func (l *logFile) close() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.f == nil {
		return nil
	}

	f := l.f
	l.f = nil
	return f.Close()
}

// keepPlace ensures that the file at the path is the log that the database has open.
func (l *logFile) keepPlace() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.f == nil {
		return nil
	}
	_, err := l.keep(l.info, l.rewrite)
	return err
}

// rewrite copies the valid lines of the log to a new file, which replaces the missing file. Like
// all other writes to the log, rewrite does not sync.
func (l *logFile) rewrite() error {
	lines := make([]byte, l.size)
	if _, err := l.f.ReadAt(lines, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}

	tmp := rewriting(l.path)
	f, err := createNew(tmp)
	if err != nil {
		return err
	}
	_, err = f.Write(lines)
	info, serr := f.Stat()
	if err = errors.Join(err, serr); err == nil {
		err = os.Rename(tmp, l.path)
	}
	if err != nil {
		return errors.Join(err, f.Close(), remove(tmp))
	}
	old := l.f
	l.f, l.info, l.broken = f, info, false
	return old.Close()
}
