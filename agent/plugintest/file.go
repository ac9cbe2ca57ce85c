package plugintest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// fileWithin limits the time of an operation on a file of the volume. If the operation hangs, the
// test abandons it together with its goroutine.
const fileWithin = 10 * time.Second

// bounded runs an operation that may hang in the storage, and waits for it at most fileWithin.
func bounded[T any](ctx context.Context, do func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	ctx, cancel := context.WithTimeout(ctx, fileWithin)
	defer cancel()

	done := make(chan outcome, 1)
	go func() {
		value, err := do()
		done <- outcome{value, err}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("no answer from the file system: %w", context.Cause(ctx))
	}
}

// in opens a file of the volume that is mounted at dir. It does not follow a symbolic link, because
// a link could lead out of the volume.
func in(dir, name string, flags int) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, name), flags|syscall.O_NOFOLLOW, 0o600)
}

// write replaces the file and syncs it to the storage.
func write(ctx context.Context, dir, name string, data []byte) error {
	_, err := bounded(ctx, func() (none struct{}, err error) {
		f, err := in(dir, name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
		if err != nil {
			return none, err
		}
		_, err = f.Write(data)
		return none, errors.Join(err, f.Sync(), f.Close())
	})
	return err
}

// read returns the content of the file, up to 64 KiB.
func read(ctx context.Context, dir, name string) ([]byte, error) {
	const most = 1 << 16
	return bounded(ctx, func() ([]byte, error) {
		f, err := in(dir, name, os.O_RDONLY)
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(io.LimitReader(f, most))
		return data, errors.Join(err, f.Close())
	})
}

// remove removes the file. It succeeds if the file does not exist.
func remove(ctx context.Context, dir, name string) error {
	_, err := bounded(ctx, func() (none struct{}, err error) {
		if err := os.Remove(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			return none, err
		}
		return none, nil
	})
	return err
}

// makeDir makes a directory for mounts, with its parents. It has a time limit, because the file
// system there may hang.
func makeDir(ctx context.Context, r *run, dir string) error {
	_, err := bounded(ctx, func() (none struct{}, err error) { return none, r.s.Paths.MakeDir(dir) })
	return err
}

// lstat is os.Lstat with a time limit.
func lstat(ctx context.Context, path string) (os.FileInfo, error) {
	return bounded(ctx, func() (os.FileInfo, error) { return os.Lstat(path) })
}
