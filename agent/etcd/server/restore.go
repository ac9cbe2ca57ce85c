package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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
	return nil
}

// Restore makes the data of a new cluster from a snapshot. This host is its only member. Restore
// passes the value of one key to the function change and stores the result, before any client can
// read the data. The old data stays in a directory beside the new one, whose path Restore returns.
func Restore(ctx context.Context, d hostdir.Dir, s hostdir.State, file, key string, change func(old []byte) ([]byte, error)) (aside string, err error) {
	if err := Check(file); err != nil {
		return "", err
	}

	now := time.Now().UTC().Format("20060102T150405Z")
	fresh, err := os.MkdirTemp(d.Data, hostdir.EtcdDir+".restoring-") // created with mode 0700
	if err != nil {
		return "", fmt.Errorf("cannot create a directory for the restored data: %w", err)
	}
	defer func() {
		if err != nil { // a copy of a large etcd must not fill the disk
			err = errors.Join(err, os.RemoveAll(fresh)) //nolint:forbidigo // a new directory of root's, far from any mount
		}
	}()

	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: s.Name, OutputDataDir: fresh, PeerURLs: []string{s.PeerURL()},
		InitialCluster: s.Name + "=" + s.PeerURL(), InitialClusterToken: s.Boot,
		RevisionBump: revisionBump, MarkCompacted: true,
	})
	if err != nil {
		return "", fmt.Errorf("cannot restore the backup: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, restoreLimit)
	defer cancel()
	if err := edit(ctx, fresh, s, key, change); err != nil {
		return "", err
	}

	old := d.Path(hostdir.EtcdDir)
	aside = old + ".before-restore-" + now
	if err := os.Rename(old, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("cannot move the old data of etcd: %w", err)
	}
	if err := os.Rename(fresh, old); err != nil {
		return "", fmt.Errorf("cannot move the restored data of etcd: %w", err)
	}
	return aside, hostdir.SyncDir(filepath.Dir(old))
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
