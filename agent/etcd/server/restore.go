package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/wire"
)

const (
	// revisionBump is added to the revision of a restored snapshot. It exceeds the number of changes
	// that a cluster makes between two backups, so that no client sees a revision that it knows.
	revisionBump = 1_000_000_000

	// restoreLimit is the time limit of the change in the restored data.
	restoreLimit = 2 * time.Minute
)

// Check returns an error unless a file is a complete snapshot of etcd.
func Check(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return wire.Errorf(api.CodeInvalid, "", "cannot read the backup: %v", err)
	}
	// The SHA-256 hash follows the pages of the database.
	if info.IsDir() || info.Size()%512 != sha256.Size {
		return wire.Errorf(api.CodeInvalid, "use a file that volctl cluster backup wrote", "file %q is not a complete backup of a cluster", file)
	}

	f, err := os.Open(file)
	if err != nil {
		return wire.Errorf(api.CodeInvalid, "", "cannot read the backup: %v", err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	h, want := sha256.New(), make([]byte, sha256.Size)
	if _, err := io.CopyN(h, f, info.Size()-sha256.Size); err != nil {
		return fmt.Errorf("cannot read the backup: %w", err)
	}
	if _, err := io.ReadFull(f, want); err != nil {
		return fmt.Errorf("cannot read the backup: %w", err)
	}
	if !bytes.Equal(h.Sum(nil), want) {
		return wire.Errorf(api.CodeInvalid, "use another backup", "backup %q is damaged: its hash does not fit its content", file)
	}
	return checkDatabase(f, file)
}

// checkDatabase refuses a file that is no bbolt database. etcd's restore would panic.
func checkDatabase(f io.ReaderAt, file string) error {
	const at, magic = 16, 0xED0CDAED // of the first page: its header is 16 bytes long
	first := make([]byte, 4)
	if _, err := f.ReadAt(first, at); err != nil {
		return fmt.Errorf("cannot read the backup: %w", err)
	}
	if binary.NativeEndian.Uint32(first) != magic {
		return wire.Errorf(api.CodeInvalid, "use a file that volctl cluster backup wrote", "file %q is not a backup of a cluster: it contains no database", file)
	}
	return nil
}

// Restored is the data of a new cluster in a directory beside the data of etcd. No etcd uses it yet.
type Restored struct {
	dir   hostdir.Dir
	fresh string
	lock  *os.File // of the directory fresh, so that no other command removes it
}

// restoring begins the names of the directories with restored data.
const restoring = hostdir.EtcdDir + ".restoring-"

// Prepare makes the data of a new cluster from a snapshot. This host is its only member. Prepare
// passes the value of one key to the function change and stores the result, before any client can
// read the data. Prepare does not touch the data of etcd, which may run meanwhile.
func Prepare(ctx context.Context, d hostdir.Dir, s hostdir.State, file, key string, change func(old []byte) ([]byte, error)) (*Restored, error) {
	if err := Check(file); err != nil {
		return nil, err
	}
	if err := discardStale(d); err != nil {
		return nil, err
	}
	fresh, err := os.MkdirTemp(d.Data, restoring) // created with mode 0700
	if err != nil {
		return nil, fmt.Errorf("cannot create a directory for the restored data: %w", err)
	}

	r := &Restored{dir: d, fresh: fresh}
	if r.lock, err = lock(fresh); err != nil {
		return nil, errors.Join(err, r.Discard())
	}
	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: s.Name, OutputDataDir: fresh, PeerURLs: []string{s.PeerURL()},
		InitialCluster: s.Name + "=" + s.PeerURL(), InitialClusterToken: s.Boot,
		RevisionBump: revisionBump, MarkCompacted: true,
	})
	if err != nil {
		err = wire.Errorf(api.CodeInvalid, "use a file that volctl cluster backup wrote", "backup %q cannot be restored: %v", file, err)
		return nil, errors.Join(err, r.Discard())
	}

	ctx, cancel := context.WithTimeout(ctx, restoreLimit)
	defer cancel()
	if err := edit(ctx, fresh, s, key, change); err != nil {
		return nil, errors.Join(err, r.Discard())
	}
	return r, nil
}

// Install replaces the data of etcd, which must not run. The old data stays in a directory beside the
// new one, whose path Install returns. If the move fails, the old data is in its place again.
func (r *Restored) Install(now time.Time) (aside string, err error) {
	old := r.dir.Path(hostdir.EtcdDir)
	aside = old + ".before-restore-" + now.UTC().Format("20060102T150405Z")
	if err := os.Rename(old, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("cannot move the old data of etcd: %w", err)
	}
	if err := os.Rename(r.fresh, old); err != nil {
		err = fmt.Errorf("cannot move the restored data of etcd: %w", err)
		if back := os.Rename(aside, old); back != nil && !errors.Is(back, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("cannot move the old data of etcd back: %w", back))
		}
		return "", err
	}
	return aside, hostdir.SyncDir(filepath.Dir(old))
}

// Discard removes the restored data, unless it was installed. A copy of a large etcd must not fill the
// disk.
func (r *Restored) Discard() error {
	if r.lock != nil {
		defer r.lock.Close() //nolint:errcheck // nothing was written
	}
	return os.RemoveAll(r.fresh) //nolint:forbidigo // a new directory of root's, far from any mount
}

// discardStale removes the restored data of commands that ended before they installed it.
func discardStale(d hostdir.Dir) error {
	dirs, err := filepath.Glob(filepath.Join(d.Data, restoring+"*"))
	if err != nil {
		return fmt.Errorf("cannot look for the data of an earlier restore: %w", err)
	}
	for _, dir := range dirs {
		locked, err := lock(dir)
		if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
			continue // its command still runs, or has just removed it
		}
		if err != nil {
			return err
		}
		if err := (&Restored{dir: d, fresh: dir, lock: locked}).Discard(); err != nil {
			return fmt.Errorf("cannot remove the data of an earlier restore: %w", err)
		}
	}
	return nil
}

// lock locks a directory until the file is closed. The error wraps EWOULDBLOCK if another process has
// the lock.
func lock(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the restored data: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot lock %s: %w", dir, err)
	}
	return f, nil
}

// edit changes one key of restored data. It runs etcd without a network for that.
func edit(ctx context.Context, dir string, s hostdir.State, key string, change func(old []byte) ([]byte, error)) error {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = s.Name, dir
	cfg.LogLevel, cfg.LogFormat, cfg.LogOutputs = "error", "console", []string{embed.StdErrLogOutput}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = nil, nil
	cfg.AdvertiseClientUrls = nil
	cfg.QuotaBackendBytes = 2 * max(DefaultQuota, s.Quota) // the data of a full etcd must fit

	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("cannot open the restored data: %w", err)
	}
	defer e.Close()

	server := &Server{e}
	if err := server.waitReady(ctx); err != nil {
		return fmt.Errorf("cannot open the restored data: %w", err)
	}

	r, err := e.Server.Range(ctx, &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		return fmt.Errorf("cannot read the restored data: %w", err)
	}
	var old []byte
	if len(r.Kvs) > 0 {
		old = r.Kvs[0].Value
	}
	value, err := change(old)
	if err != nil {
		return err
	}
	if _, err := e.Server.Put(ctx, &pb.PutRequest{Key: []byte(key), Value: value}); err != nil {
		return fmt.Errorf("cannot mark the restored data: %w", err)
	}
	return nil
}
