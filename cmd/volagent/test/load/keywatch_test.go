package load_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/shared"
)

// keyWatcher is an environment variable that makes this test binary print the changes of some keys of a
// cluster. Its value is a labStore in JSON. Only a process on a host reaches the etcd of a lab.
const keyWatcher = "VOLAGENT_LOAD_KEYS"

// labStore says how a client connects to the etcd of a lab.
type labStore struct {
	Endpoints []string
	Files     lab.Files
}

// keyChange is a change of a key, and the time at which the watcher has seen it.
type keyChange struct {
	Time    time.Time
	Key     string
	Value   string
	Deleted bool
}

// runKeyWatcher is the program of keyWatcher. It prints the elected host and the live hosts, and then each
// change of them, until it is killed.
func runKeyWatcher(raw string) int {
	if err := watchKeys(raw); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

func watchKeys(raw string) error {
	var from labStore
	if err := json.Unmarshal([]byte(raw), &from); err != nil {
		return err
	}
	ctx := context.Background()
	store, err := cluster.Open(ctx, cluster.Options{
		Endpoints: from.Endpoints, Prefix: config.DefaultPrefix, CA: from.Files.CA, Cert: from.Files.Cert, Key: from.Files.Key,
	})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // the process ends

	out, next := json.NewEncoder(os.Stdout), int64(0)
	spans := []shared.Span{{Key: shared.LeaderKey}, shared.Lives()}
	for _, s := range spans {
		page, err := store.Range(ctx, s, 0, 0)
		if err != nil {
			return err
		}
		for _, kv := range page.KVs {
			if err := out.Encode(keyChange{Time: time.Now(), Key: kv.Key, Value: string(kv.Value)}); err != nil {
				return err
			}
		}
		if next == 0 {
			next = page.Revision + 1 // the first read is the older one; a change may then appear twice
		}
	}
	for evs := range store.Watch(ctx, spans, next) {
		for _, c := range evs.Changes {
			if err := out.Encode(keyChange{Time: time.Now(), Key: c.Key, Value: string(c.Value), Deleted: c.Deleted}); err != nil {
				return err
			}
		}
		if evs.Err != nil {
			return evs.Err
		}
	}
	return nil
}

// watch starts a watcher on the host that waits. It asks only the member of etcd on this host, which
// survives the loss.
func (f *failover) watch() {
	f.b.Helper()
	self, err := os.Executable()
	f.waits.Must(err)
	endpoint := ""
	for i, m := range f.Etcd {
		if m.Host == f.waits {
			endpoint = f.Endpoints()[i]
		}
	}
	raw, err := json.Marshal(labStore{[]string{endpoint}, f.Files})
	f.waits.Must(err)
	out, err := os.Create(f.changesFile())
	f.waits.Must(err)
	f.waits.Spawn(out, "env", keyWatcher+"="+string(raw), self)
	f.waits.Must(out.Close())
}

// changesFile is the file with the output of the watcher.
func (f *failover) changesFile() string { return filepath.Join(f.waits.Dir, "changes") }

// changes returns the changes that the watcher has seen.
func (f *failover) changes() (all []keyChange) {
	f.b.Helper()
	raw, err := os.ReadFile(f.changesFile())
	f.waits.Must(err)
	for line := range strings.Lines(string(raw)) {
		if !strings.HasSuffix(line, "\n") {
			break // the watcher still writes this line
		}
		var c keyChange
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			f.b.Fatalf("the watcher has ended: %s", line)
		}
		all = append(all, c)
	}
	return all
}

// electedIs reports whether a host is the elected host.
func (f *failover) electedIs(h *lab.Host) bool {
	f.b.Helper()
	is := false
	for _, c := range f.changes() {
		if c.Key == shared.LeaderKey {
			is = !c.Deleted && strings.Contains(c.Value, `"`+h.Name+`"`)
		}
	}
	return is
}
