package statedb

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/volmgr/volume"
)

// Snapshot is the entire content of a file at one moment.
type Snapshot struct {
	Node    Node
	Volumes []volume.Record
	Plugins []volume.PluginRecord
	Debts   []Debt
	// Registered holds the plugins that were registered at run time.
	Registered []volume.PluginDefinition
	// Snapshots holds the intents of snapshots that were not seen to finish.
	Snapshots []volume.SnapshotIntent
	// Names holds the names of snapshots whose ids are known.
	Names []volume.SnapshotName
	// Runtimes holds the volumes that container runtimes know.
	Runtimes []volume.RuntimeVolume
}

// copies is the number of attempts to copy a file before it counts as damaged. A copy can fail
// because the agent writes to the file meanwhile.
const copies = 3

// Inspect reads a copy of the file and leaves the file unchanged. It therefore also works on a
// read-only file system, and on a file that an agent has open, which it reports. The copy lies in
// the directory for temporary files and is removed.
func Inspect(path string) (s Snapshot, open bool, err error) {
	open = locked(filepath.Dir(path))
	src, err := os.Open(path)
	if err != nil {
		return s, open, fmt.Errorf("cannot read the state database: %w", err)
	}
	defer func() { err = errors.Join(err, src.Close()) }()

	open = open || errors.Is(lock(src, syscall.LOCK_SH, 0), syscall.EWOULDBLOCK)
	raw, _ := os.ReadFile(logPath(path)) // without a readable log, the agent does without it too

	// Read before the file, because changes that are committed meanwhile are in the file.
	lines, _ := readLog(raw)

	for range copies {
		if s, err = inspect(src, lines); err == nil {
			return s, open, nil
		}
	}

	return s, open, fmt.Errorf("cannot read %s: %w", path, err)
}

func inspect(src *os.File, lines []volume.Record) (s Snapshot, err error) {
	if _, err := src.Seek(0, io.SeekStart); err != nil {
		return s, err
	}

	dst, err := os.CreateTemp("", "volagent-inspect")
	if err != nil {
		return s, fmt.Errorf("cannot make a copy: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(dst.Name())) }()

	_, err = io.Copy(dst, src)
	if err = errors.Join(err, dst.Close()); err != nil {
		return s, fmt.Errorf("cannot make a copy: %w", err)
	}
	defer guard(func(p any) { err = fmt.Errorf("the file is damaged: %v", p) })()
	b, err := openBolt(dst.Name(), time.Second)
	if err != nil {
		return s, fmt.Errorf("the file is damaged: %w", err)
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	err = b.View(func(tx *bbolt.Tx) error {
		switch v, err := schema(tx, schemaOf(migrations)); {
		case err != nil:
			return err
		case v < schemaOf(migrations):
			return fmt.Errorf("it has schema %d; the agent brings it to schema %d when it starts", v, schemaOf(migrations))
		}
		mem, err := read(tx)
		mem.apply(replay(&mem, lines))
		s = mem.snapshot()
		return err
	})

	return s, err
}

// snapshot returns the entire state, in no particular order.
func (s *state) snapshot() Snapshot {
	return Snapshot{
		Node: s.node, Volumes: slices.Collect(maps.Values(s.volumes)),
		Plugins: slices.Collect(maps.Values(s.plugins)), Debts: slices.Collect(maps.Values(s.debts)),
		Registered: slices.Collect(maps.Values(s.registered)), Snapshots: slices.Collect(maps.Values(s.snapshots)),
		Names:    slices.Collect(maps.Values(s.names)),
		Runtimes: slices.Collect(maps.Values(s.runtimes)),
	}
}
