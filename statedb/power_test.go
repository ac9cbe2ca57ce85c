package statedb_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/statedb"
)

// powerCut makes changes on an ext4 file system of its own. It then shuts down the file system,
// which loses all unsynced data, and mounts it again. The file must then contain every acknowledged
// change completely, and no incomplete change.
func powerCut(args []string) error {
	dir := args[0]
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make / private: %w", err)
	}
	for _, argv := range [][]string{
		{"truncate", "-s", "64M", image}, {"mkfs.ext4", "-q", "-F", image}, {"mkdir", at},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", argv, err, out)
		}
	}
	acked := map[string]bool{}
	for round := range 8 {
		if err := cutOnce(image, at, round, acked); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	fmt.Printf("%d changes were acknowledged", len(acked))
	return nil
}

func mountImage(image, at string) error {
	if out, err := exec.Command("mount", "-o", "loop", image, at).CombinedOutput(); err != nil {
		return fmt.Errorf("mount: %w\n%s", err, out)
	}
	return nil
}

// cutOnce makes changes until one power cut, and adds the ids of the acknowledged changes to acked.
func cutOnce(image, at string, round int, acked map[string]bool) error {
	if err := mountImage(image, at); err != nil {
		return err
	}
	path := filepath.Join(at, "state.db")
	var commits atomic.Int64
	cut := make(chan struct{})
	db, err := statedb.Open(path, statedb.Options{Tap: func(statedb.Point) {
		switch n := commits.Add(1); {
		case n == int64(20+7*round):
			close(cut)
		case n == 9 && round%2 == 1: // the next commit must write the removed file again
			_ = os.Remove(path)
		}
	}})
	if err != nil {
		return errors.Join(err, unix.Unmount(at, 0))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("r%d-%d-%d", round, w, i)
				if db.Update(ctx, put(record(id, "a", "b"))) != nil {
					return
				}
				mu.Lock()
				acked[id] = true
				mu.Unlock()
				if w == 0 {
					_ = db.KeepCopy() // KeepCopy fails after the power cut
				}
			}
		})
	}
	<-cut
	if err := shutDown(at); err != nil {
		return err
	}
	wg.Wait()
	if db.Fault() == nil {
		return errors.New("commits go on without power")
	}
	_ = db.Close() // Close fails, because the file system is shut down
	if err := errors.Join(unix.Unmount(at, 0), mountImage(image, at), statedb.Check(path)); err != nil {
		return err
	}
	again, err := statedb.Open(path, statedb.Options{})
	if err != nil {
		return err
	}
	for id := range acked {
		if r, ok := again.Volume(id); !ok || len(r.Claims) != 2 {
			err = errors.Join(err, fmt.Errorf("%s was acknowledged; it is there: %t, with %d claims", id, ok, len(r.Claims)))
		}
	}
	err = errors.Join(err, readCopies(again, at))
	for _, r := range again.Volumes() {
		if len(r.Claims) != 2 {
			err = errors.Join(err, fmt.Errorf("%s has %d claims", r.Volume.ID, len(r.Claims)))
		}
		acked[r.Volume.ID] = true // the change must also survive the next rounds
	}
	return errors.Join(err, again.Close(), unix.Unmount(at, 0))
}

// readCopies reads each automatic copy that has its final name. A copy gets its final name only
// after a sync.
func readCopies(db *statedb.DB, dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "state.copy-?"))
	if err != nil || len(paths) == 0 {
		return errors.Join(errors.New("there is no copy"), err)
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = db.ReadBackup(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// shutDown shuts down a file system without a flush, like a power cut.
func shutDown(at string) error {
	const shutdown, noFlush = 0x8004587d, 2
	f, err := os.Open(at)
	if err != nil {
		return err
	}
	how := uint32(noFlush)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), shutdown, uintptr(unsafe.Pointer(&how)))
	if errno != 0 {
		return errors.Join(fmt.Errorf("shut %s down: %w", at, errno), f.Close())
	}
	return f.Close()
}

// TestPowerCut runs powerCut in its own mount namespace.
func TestPowerCut(t *testing.T) {
	t.Log(inNamespace(t, "power-cut", t.TempDir()))
}
