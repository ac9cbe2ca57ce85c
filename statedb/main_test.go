package statedb_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// The test binary runs some tests in child processes: to hold a lock, to be killed, or to fill a
// file system in a separate mount namespace.
const roleVar = "STATEDB_TEST_ROLE"

var roles = map[string]func(args []string) error{
	"hold": hold, "die": die, "fill": fill, "open": openDamaged, "flaky": flaky,
	"migrate": migrateAndDie, "migrate-full": migrateFull, "power-cut": powerCut, "tell": tell, "crafted": readCrafted, "read-only": readOnly,
}

func TestMain(m *testing.M) {
	role, ok := roles[os.Getenv(roleVar)]
	if !ok {
		os.Exit(m.Run())
	}
	if err := role(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// child returns a command that runs the test binary in the given role.
func child(t *testing.T, role string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// inNamespace runs the test binary in the given role and in its own mount namespace.
func inNamespace(t *testing.T, role string, args ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	cmd := child(t, role, args...)
	cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// open opens a database. At the end of the test, open closes the database and checks its file.
func open(t testing.TB, path string, o statedb.Options) *statedb.DB {
	t.Helper()
	db, err := statedb.Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := statedb.Check(path); err != nil {
			t.Errorf("the file does not pass its check: %v", err)
		}
	})
	return db
}

func fresh(t testing.TB, o statedb.Options) (*statedb.DB, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	return open(t, path, o), path
}

// record returns a record of a volume with one mounted claim for each alloc.
func record(id string, allocs ...string) volume.Record {
	r := volume.Record{Volume: volume.Volume{ID: id, PluginID: "p", Driver: "d", ExternalID: "ext-" + id}, Claims: map[string]volume.Claim{}}
	r.Node.StagingPath = "/s/" + id
	for i, alloc := range allocs {
		mode := call.Capability{Access: call.MultiNodeMultiWriter, Attachment: call.FileSystem}
		r.Node.Mode, r.Node.Seq = &volume.Mode{Capability: mode}, uint64(i+1)
		r.Claims[alloc] = volume.Claim{
			Alloc: alloc, Seq: uint64(i + 1), Wanted: true, State: volume.Mounted, Since: time.Unix(int64(i), 0).UTC(), Target: "/t/" + alloc + "/" + id,
			Terms: volume.Terms{Mode: mode}, Published: volume.Present, Mount: &volume.MountIdentity{ID: uint64(i + 1)},
		}
	}
	return r
}

func put(r volume.Record) func(*statedb.Tx) error {
	return func(tx *statedb.Tx) error { tx.PutVolume(r); return nil }
}

// saveNext returns a function that calls Save with SaveWithNext and has the same type as Update.
func saveNext(db *statedb.DB) func(context.Context, func(*statedb.Tx) error) error {
	return func(ctx context.Context, fn func(*statedb.Tx) error) error {
		return db.Save(ctx, func(tx *statedb.Tx) volume.Saving {
			_ = fn(tx) // Save cannot refuse a change
			return volume.SaveWithNext
		})
	}
}

// saveVolume saves the record of a volume, as the agent does after each step.
func saveVolume(ctx context.Context, db *statedb.DB, id string, fn func(volume.Record) (volume.Record, volume.Saving)) error {
	return db.Save(ctx, func(tx *statedb.Tx) volume.Saving {
		r, ok := tx.Volume(id)
		if !ok {
			return volume.SaveWithNext
		}

		r, saving := fn(r)
		tx.PutVolume(r)
		return saving
	})
}

// do makes a change and fails the test if it is refused.
func do(t testing.TB, change func(context.Context, func(*statedb.Tx) error) error, fn func(*statedb.Tx) error) {
	t.Helper()
	if err := change(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}

// copied copies the file as a crash at this moment would leave it, without the log, and returns the
// path of the copy.
func copied(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(to, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return to
}

// ids returns the set of the ids of all volumes in a file.
func ids(t *testing.T, path string) map[string]bool {
	t.Helper()
	db := open(t, path, statedb.Options{})
	got := map[string]bool{}
	for _, r := range db.Volumes() {
		got[r.Volume.ID] = true
	}
	return got
}

// gate is a Tap that stops the writer before each commit until the test lets it continue.
type gate struct{ arrived, pass chan struct{} }

func newGate() gate { return gate{make(chan struct{}, 1024), make(chan struct{})} }

func (g gate) tap(p statedb.Point) {
	if p == statedb.BeforeCommit {
		g.arrived <- struct{}{}
		<-g.pass
	}
}

var errRefused = errors.New("refused")

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

// hold opens the database and keeps it open until standard input ends.
func hold(args []string) error {
	db, err := statedb.Open(args[0], statedb.Options{})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	if !strings.Contains(fmt.Sprint(err), "EOF") {
		return fmt.Errorf("unexpected input: %w", err)
	}
	return db.Close()
}
