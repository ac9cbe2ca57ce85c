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

// fileWithin limits the time of an operation on a file of the volume. If the storage hangs, the
// test abandons the operation and its goroutine.
const fileWithin = 10 * time.Second

// bounded runs an operation that the storage may block. It waits at most fileWithin for the result.
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
// the link could point outside the volume.
func in(dir, name string, flags int) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, name), flags|syscall.O_NOFOLLOW, 0o600)
}

// write writes a file and syncs it to the storage.
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

// read returns the first 64 KiB of a file.
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

// remove removes a file. It succeeds if the file does not exist.
func remove(ctx context.Context, dir, name string) error {
	_, err := bounded(ctx, func() (none struct{}, err error) {
		if err := os.Remove(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			return none, err
		}
		return none, nil
	})
	return err
}

// makeDir creates a directory for mounts, and its parents. It uses a time limit, because the file
// system may hang.
func makeDir(ctx context.Context, r *run, dir string) error {
	_, err := bounded(ctx, func() (none struct{}, err error) { return none, r.s.Paths.MakeDir(dir) })
	return err
}

// lstat calls os.Lstat with a time limit.
func lstat(ctx context.Context, path string) (os.FileInfo, error) {
	return bounded(ctx, func() (os.FileInfo, error) { return os.Lstat(path) })
}
