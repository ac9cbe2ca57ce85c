package statedb_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/volagent/volagent/statedb"
)

// readOnly opens a database on a read-only file system, and then makes that file system writable.
func readOnly(args []string) error {
	at, ctx := filepath.Join(args[0], "mnt"), context.Background()
	if err := errors.Join(os.Mkdir(at, 0o700), syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		syscall.Mount("tmpfs", at, "tmpfs", 0, "size=16m")); err != nil {
		return err
	}
	path := filepath.Join(at, "state.db")
	db, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		return err
	}
	remount := func(flags uintptr) error { return syscall.Mount("", at, "", syscall.MS_REMOUNT|flags, "") }
	if err := errors.Join(db.Update(ctx, put(record("before", "a"))), db.Close(), remount(syscall.MS_RDONLY)); err != nil {
		return err
	}
	if db, err = statedb.Open(path, statedb.Options{}); err != nil {
		return err
	}
	if _, ok := db.Volume("before"); !ok || !errors.Is(db.Fault(), syscall.EROFS) {
		return fmt.Errorf("the volume is there: %t; the fault is %w", ok, db.Fault())
	}
	if _, err := statedb.Open(path, statedb.Options{}); !errors.Is(err, statedb.ErrLocked) {
		return fmt.Errorf("a second one: %w", err)
	}
	if err := db.Update(ctx, put(record("wanted"))); !errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("an intent: %w", err)
	}
	if err := db.Happened(ctx, put(record("happened"))); !errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("an effect: %w", err)
	}
	if _, ok := db.Volume("happened"); !ok {
		return errors.New("memory lost what happened")
	}
	if err := errors.Join(db.Verify(), remount(0)); err == nil {
		return errors.New("a file that cannot be written passes its check")
	}
	if err := errors.Join(db.Update(ctx, put(record("after"))), db.Fault(), db.Close(), statedb.Check(path)); err != nil {
		return fmt.Errorf("once it can be written: %w", err)
	}
	if db, err = statedb.Open(path, statedb.Options{}); err != nil {
		return err
	}
	for _, id := range []string{"before", "happened", "after"} {
		if _, ok := db.Volume(id); !ok {
			err = errors.Join(err, fmt.Errorf("%s is not in the file", id))
		}
	}
	return errors.Join(err, db.Close(), syscall.Unmount(at, 0))
}

// TestReadOnly runs readOnly in its own mount namespace.
func TestReadOnly(t *testing.T) {
	if out := inNamespace(t, "read-only", t.TempDir()); out != "" {
		t.Error(out)
	}
}
