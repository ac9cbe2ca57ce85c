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

// A commit waits for the disk twice. What is told to people need not wait for it:
// that a claim is mounted, or gone, must outlive the agent, but not the host,
// because no mount does either. Such a record is appended to a file beside the
// database, which is not synced, and gets into the database with the next commit
// or within beginWithin. Whatever kills the agent, the next one finds it there; a
// power cut that takes it leaves what was committed, as if the agent had died a
// moment before.
//
// A line of the file is a checksum (CRC-32, 8 hex digits), a space, and a logged
// as JSON. A line counts if the database has the same volume with a lower
// generation. What comes after a line that is cut off or damaged does not count.
// So lines that were committed do no harm, and the file is emptied now and then.
// And so no generation may stand for two things: what may still be refused is not
// logged, and memory goes on from what a failed commit may have left.

// logged is a record with its claims, as a line of the log has it.
type logged struct {
	Record volume.Record  `json:"record"`
	Claims []volume.Claim `json:"claims"`
}

// logMost is the size in bytes from which the log is emptied when all in it is
// committed.
const logMost = 1 << 20

// claimsMost is how many claims a record has at most that is logged. A line has all
// of them, a commit only those that changed: with many it costs more to log than to
// commit.
const claimsMost = 64

// logFile is an open log.
type logFile struct {
	mu     sync.Mutex
	f      *os.File // nil if there is none to be had: then commits are waited for
	fault  error    // why there was none when it was opened
	size   int64    // of the lines that count
	broken bool     // it has more than those

	path    string
	info    os.FileInfo // of f
	home    home
	foreign *Foreign // the file that was found in place of f
	warn    func(string)
}

// logPath is where the log of a database is.
func logPath(path string) string { return strings.TrimSuffix(path, ".db") + ".log" }

// openLog opens the log for appending and returns what it has in it.
func openLog(db *DB) (*logFile, []volume.Record) {
	path := logPath(db.path)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if errors.Is(err, syscall.EROFS) {
		raw, _ := os.ReadFile(path) // what was told counts, also where nothing can be written
		lines, _ := readLog(raw)
		return &logFile{fault: err}, lines
	}
	if err != nil {
		return &logFile{fault: err}, nil
	}
	raw, err := io.ReadAll(f)
	info, serr := f.Stat()
	if err := errors.Join(err, serr); err != nil {
		_ = f.Close() // it was only read
		return &logFile{fault: err}, nil
	}
	records, size := readLog(raw)
	l := &logFile{f: f, size: size, broken: size < int64(len(raw)), path: path, info: info, home: db.home, warn: db.warn}
	l.mend()
	return l, records
}

// readLog decodes lines up to the first that makes no sense, and returns how
// many bytes they are.
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

// replay is what a log adds to what a database has.
func replay(mem *state, lines []volume.Record) changes {
	news := newChanges()
	for _, r := range lines {
		was, ok := mem.volumes[r.Volume.ID]
		if newer := news.volumes[r.Volume.ID]; newer != nil {
			was = *newer
		}
		if ok && was.Same(r) && was.Generation < r.Generation {
			news.volumes[r.Volume.ID] = &r
		}
	}
	return news
}

// add appends a record. It is in the kernel's hands when that returns.
func (l *logFile) add(r volume.Record) error {
	if len(r.Claims) > claimsMost {
		return errors.New("it has too many claims for the log")
	}
	body, err := json.Marshal(logged{Record: r, Claims: r.Ordered()})
	if err != nil {
		return err
	}
	line := fmt.Appendf(make([]byte, 0, len(body)+10), "%08x %s\n", crc32.ChecksumIEEE(body), body)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil || l.broken {
		return errors.New("there is no log")
	}
	if err := l.keepPlace(); err != nil {
		return err
	}
	if _, err := l.f.Write(line); err != nil {
		l.broken = true
		l.mend()
		return err
	}
	l.size += int64(len(line))
	return nil
}

// mend cuts off what does not count; mu is held, or nobody else has the log yet.
func (l *logFile) mend() {
	if l.broken {
		l.broken = l.f.Truncate(l.size) != nil
	}
}

// full reports whether the log is to be emptied as soon as it can be.
func (l *logFile) full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size > logMost
}

// forget empties a log that is about volumes which the database never had, before
// it gets others of the same ids and times, from notes. The disk has it so before.
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

// committed empties a log all of which is committed, if it is larger than most.
func (l *logFile) committed(most int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil || l.size <= most && !l.broken {
		return
	}
	l.size, l.broken = 0, true
	l.mend()
}

func (l *logFile) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	f := l.f
	l.f = nil
	return f.Close()
}
