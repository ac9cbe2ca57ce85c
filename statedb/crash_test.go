package statedb_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// die makes changes and prints each acknowledged change. When the commits reach the given point for
// the n-th time, die kills its own process.
func die(args []string) error {
	path, point := args[0], statedb.Point(args[1])
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	db, err := statedb.Open(path, statedb.Options{Tap: func(p statedb.Point) {
		if p != point {
			return
		}
		if n--; n == 0 {
			<-time.After(20 * time.Millisecond)            // wait until acknowledgements have been printed
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // the kill ends this process, so no error can be handled
			select {}
		}
	}})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 50 {
				id := fmt.Sprintf("v%d-%d", w, i)
				if err := db.Update(context.Background(), put(record(id, "a", "b"))); err != nil {
					fmt.Println("error", err)
				}
				fmt.Println("acknowledged", id)
			}
		})
	}
	wg.Wait()
	return errors.New("it was not killed")
}

// TestKilled kills a process before or after one of its commits, and checks the file. The file must
// be valid, and must contain every acknowledged change and all claims of each volume.
func TestKilled(t *testing.T) {
	for _, point := range []statedb.Point{statedb.BeforeCommit, statedb.AfterCommit} {
		for _, n := range []int{1, 2, 3, 7, 20} {
			path := filepath.Join(t.TempDir(), "state.db")
			out, err := child(t, "die", path, string(point), strconv.Itoa(n)).Output()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("%s %d: the child ended with %v\n%s", point, n, err, out)
			}
			if err := statedb.Check(path); err != nil {
				t.Errorf("%s %d: %v", point, n, err)
			}
			db := open(t, path, statedb.Options{})
			for _, r := range db.Volumes() {
				if len(r.Claims) != 2 {
					t.Errorf("%s %d: volume %q has %d claims", point, n, r.Volume.ID, len(r.Claims))
				}
			}
			for _, line := range strings.Fields(strings.ReplaceAll(string(out), "acknowledged ", "")) {
				if _, ok := db.Volume(line); !ok {
					t.Errorf("%s %d: %q was acknowledged and is not there", point, n, line)
				}
			}
			if want := n; point == statedb.AfterCommit && len(db.Volumes()) < want {
				t.Errorf("%s %d: %d volumes after as many commits", point, n, len(db.Volumes()))
			}
		}
	}
}

// TestDiskFull runs fill in its own mount namespace. There, the file system with the database runs
// out of space.
func TestDiskFull(t *testing.T) {
	inNamespace(t, "fill", t.TempDir())
}

func fill(args []string) error {
	dir := args[0]
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make / private: %w", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	path, ballast := filepath.Join(dir, "state.db"), filepath.Join(dir, "ballast")
	db, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	large := func(id string) volume.Record {
		r := record(id, "a")
		r.Volume.Context = map[string]string{"filler": strings.Repeat(id, 64<<10)}
		return r
	}
	staged := record("effect", "a")
	staged.Node.Staged = volume.Present
	staged.Volume.Context = large("e").Volume.Context
	steps := []struct {
		name string
		err  error
	}{
		{"first", db.Update(ctx, put(record("effect", "a")))},
		{"ballast", fillUp(ballast)},
	}
	for _, s := range steps {
		if s.err != nil {
			return fmt.Errorf("%s: %w", s.name, s.err)
		}
	}
	// 1. An update returns an error, and its change never becomes visible to readers.
	if err := db.Update(ctx, put(large("intent"))); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "cannot write the state database") {
		return fmt.Errorf("an intent on a full disk: %w", err)
	}
	if _, ok := db.Volume("intent"); ok {
		return errors.New("an intent that was refused is in memory")
	}
	// 2. Happened returns an error, but memory keeps the change.
	if err := db.Happened(ctx, put(staged)); !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("an effect on a full disk: %w", err)
	}
	if r, _ := db.Volume("effect"); r.Node.Staged != volume.Present {
		return errors.New("an effect that was not written is not in memory either")
	}
	// 3. A save succeeds.
	if err := saveNext(db)(ctx, put(record("checkpoint"))); err != nil {
		return fmt.Errorf("a checkpoint on a full disk: %w", err)
	}
	// 4. When the disk has space again, the next commit writes all changes.
	if err := os.Remove(ballast); err != nil {
		return err
	}
	if err := db.Update(ctx, put(record("later"))); err != nil {
		return fmt.Errorf("with room again: %w", err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := errors.Join(db.Close(), unix.Unmount(dir, 0), os.WriteFile(path, raw, 0o600), statedb.Check(path)); err != nil {
		return err
	}
	again, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		return err
	}
	for id, want := range map[string]bool{"effect": true, "checkpoint": true, "later": true, "intent": false} {
		if r, ok := again.Volume(id); ok != want || id == "effect" && r.Node.Staged != volume.Present {
			err = errors.Join(err, fmt.Errorf("volume %q is on disk: %t, %+v", id, ok, r.Node))
		}
	}
	return errors.Join(err, again.Close())
}

// fillUp writes a file until the file system is full.
func fillUp(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	return f.Close()
}
