package statedb

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/volagent/volagent/volmgr/volume"
)

// copies is the maximum number of attempts to copy a file. A single copy may be inconsistent,
// because the agent may write to the file at the same time. If every attempt yields an invalid
// copy, the file counts as damaged.
const copies = 3

// Inspect reads a copy of the file and leaves the file unchanged. It therefore works on a read-only
// file system, and on a file that an agent has open. The result open reports whether an agent has
// the file open. Inspect makes the copy in the directory for temporary files, and removes it
// afterwards.
func Inspect(path string) (v View, open bool, err error) {
	open = locked(filepath.Dir(path))
	src, err := os.Open(path)
	if err != nil {
		return v, open, fmt.Errorf("cannot read the state database: %w", err)
	}
	defer func() { err = errors.Join(err, src.Close()) }()

	open = open || errors.Is(lock(src, syscall.LOCK_SH, 0), syscall.EWOULDBLOCK)
	// An unreadable log is not an error, because the agent also works without a log.
	raw, _ := os.ReadFile(logPath(path))

	// Inspect reads the log before the file. If the agent commits changes between the two reads,
	// the file already contains them.
	lines, _ := readLog(raw)

	for range copies {
		if v, err = inspect(src, lines); err == nil {
			return v, open, nil
		}
	}

	return v, open, fmt.Errorf("cannot read %s: %w", path, err)
}

func inspect(src *os.File, lines []volume.Record) (v View, err error) {
	if _, err := src.Seek(0, io.SeekStart); err != nil {
		return v, err
	}

	dst, err := os.CreateTemp("", "volagent-inspect")
	if err != nil {
		return v, fmt.Errorf("cannot make a copy: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(dst.Name())) }()

	_, err = io.Copy(dst, src)
	if err = errors.Join(err, dst.Close()); err != nil {
		return v, fmt.Errorf("cannot make a copy: %w", err)
	}
	defer guard(func(p any) { err = fmt.Errorf("the file is damaged: %v", p) })()
	b, err := openBolt(dst.Name(), time.Second)
	if err != nil {
		return v, fmt.Errorf("the file is damaged: %w", err)
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	err = b.View(func(tx *bbolt.Tx) error {
		switch found, err := schema(tx, schemaOf(migrations)); {
		case err != nil:
			return err
		case found < schemaOf(migrations):
			return fmt.Errorf("it has schema %d; the agent migrates it to schema %d when it starts", found, schemaOf(migrations))
		}

		mem, err := read(tx)
		mem.apply(replay(mem, lines))
		v = View{mem}
		return err
	})

	return v, err
}

// Check checks the page structure of the file and all its values. Every value must be readable, and
// every record must be consistent. Every claim must belong to a volume. Two volumes must not have
// the same storage volume or the same path. Check opens the file itself, so no other process may
// use the file at the same time.
func Check(path string) (err error) {
	if _, err := os.Stat(path); err != nil {
		return err
	}

	b, err := openBolt(path, time.Second)
	if err != nil {
		return judge(path, b.info, err)
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	defer guard(func(p any) { err = fmt.Errorf("the file is damaged: %v", p) })()

	return b.View(func(tx *bbolt.Tx) error {
		if _, err := schema(tx, schemaOf(migrations)); err != nil {
			return err
		}
		s, err := read(tx)
		errs := []error{err, s.check()}
		for err := range tx.Check() {
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}
