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

// Snapshot is all that a file holds, at one moment.
type Snapshot struct {
	Node    Node
	Volumes []volume.Record
	Plugins []volume.PluginRecord
	Debts   []Debt
	// Registered are plugins that were registered at run time.
	Registered []volume.PluginDefinition
	// Snapshots have not been seen to be finished.
	Snapshots []volume.SnapshotIntent
	// Names are those of snapshots whose ids are known.
	Names []volume.SnapshotName
	// Runtimes are the volumes that container runtimes know.
	Runtimes []volume.RuntimeVolume
}

// copies is how often a file that is being written to is copied before it
// counts as damaged.
const copies = 3

// Inspect reads a copy of the file, and leaves the file as it is: also one on a
// file system that cannot be written to, or one that an agent has open, which it
// reports. The copy lies in the directory for temporary files, and is removed.
func Inspect(path string) (s Snapshot, open bool, err error) {
	open = locked(filepath.Dir(path))
	src, err := os.Open(path)
	if err != nil {
		return s, open, fmt.Errorf("cannot read the state database: %w", err)
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	open = open || errors.Is(lock(src, syscall.LOCK_SH, 0), syscall.EWOULDBLOCK)
	raw, _ := os.ReadFile(logPath(path)) // where there is none to be had, the agent does without as well
	lines, _ := readLog(raw)             // before the file: what is committed meanwhile is in that
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

// snapshot is all of a state, in no order.
func (s *state) snapshot() Snapshot {
	return Snapshot{
		Node: s.node, Volumes: slices.Collect(maps.Values(s.volumes)),
		Plugins: slices.Collect(maps.Values(s.plugins)), Debts: slices.Collect(maps.Values(s.debts)),
		Registered: slices.Collect(maps.Values(s.registered)), Snapshots: slices.Collect(maps.Values(s.snapshots)),
		Names:    slices.Collect(maps.Values(s.names)),
		Runtimes: slices.Collect(maps.Values(s.runtimes)),
	}
}
