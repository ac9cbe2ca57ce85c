package localdriver

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
	"github.com/volagent/volagent/agent/localdriver/tree"
)

// plant makes a directory below the state directory that looks like one of the driver's own
// directories.
func plant(t *testing.T, state, dir, id string, files ...string) string {
	t.Helper()
	root := filepath.Join(state, dir, id)
	sandbox.Must(t, os.MkdirAll(root, 0o700))
	for _, f := range files {
		sandbox.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, f)), 0o700))
		sandbox.Write(t, filepath.Join(root, f), f)
	}
	return root
}

// TestLeftovers starts the driver on a state directory with the leftovers of a crash in tmp and
// trash.
func TestLeftovers(t *testing.T) {
	b := newBench(t)
	b.stop()
	half := plant(t, b.state, store.DirTmp, store.NewID(), store.ImageFile)
	gone := plant(t, b.state, store.DirTrash, store.NewID(), store.MetaFile, "data/a/b/c", "data/d")
	notOurs := []string{plant(t, b.state, store.DirTrash, "mine", "f"), plant(t, b.state, store.DirTmp, "mine", "f"), plant(t, b.state, store.DirVolumes, "mine", "f")}
	b.start()
	sandbox.Await(t, "leftovers are removed", func() bool {
		_, e1 := os.Lstat(half)
		_, e2 := os.Lstat(gone)
		return os.IsNotExist(e1) && os.IsNotExist(e2) && len(b.leftovers()) == 0
	})
	for _, p := range notOurs {
		sandbox.WantContent(t, filepath.Join(p, "f"), "f")
	}
	if got := b.listed(); len(got) > 0 {
		t.Errorf("listed: %v", got)
	}
}

// leftovers lists the entries of trash whose names have the form that the driver uses.
func (b *bench) leftovers() []string {
	b.t.Helper()
	list, err := filepath.Glob(filepath.Join(b.state, store.DirTrash, store.VolumePrefix+"*"))
	sandbox.Must(b.t, err)
	return list
}

// TestDeleteResumes checks that a repeated DeleteVolume completes a deletion that was interrupted.
func TestDeleteResumes(t *testing.T) {
	b := newBench(t)
	id := store.NewID()
	root := plant(t, b.state, store.DirTrash, id, "data/x")
	sandbox.Tmpfs(t, sandbox.Mkdir(t, root, "data", "mnt"), "size=64k")
	sandbox.Write(t, filepath.Join(root, "data", "mnt", "f"), "kept")
	sandbox.WantCode(t, b.delete(id), codes.Internal, "mnt", "busy")
	sandbox.WantContent(t, filepath.Join(root, "data", "mnt", "f"), "kept")
	sandbox.Must(t, unix.Unmount(filepath.Join(root, "data", "mnt"), 0))
	sandbox.Must(t, b.delete(id))
	sandbox.WantGone(t, root)
}

// TestPlantedMount mounts other data inside volumes. When the driver deletes such a volume, it must
// neither change nor unmount the other data.
func TestPlantedMount(t *testing.T) {
	b := newBench(t)
	id := b.create("v", 0, nil, mountCap(writer, ""))
	data := filepath.Join(b.state, store.DirVolumes, id, store.DataDir)
	other := sandbox.Mkdir(t, b.path("other"))
	sandbox.Write(t, filepath.Join(other, "f"), "precious")
	sandbox.Write(t, filepath.Join(data, "own"), "own")
	sandbox.Write(t, filepath.Join(data, "file"), "")
	for what, point := range map[string]string{"below": sandbox.Mkdir(t, data, "a", "b"), "as the data": data, "on a file": filepath.Join(data, "file")} {
		source := other
		if what == "on a file" {
			source = filepath.Join(other, "f")
		}
		sandbox.Must(t, unix.Mount(source, point, "", unix.MS_BIND, ""))
		sandbox.WantCode(t, b.delete(id), codes.FailedPrecondition, "mounted inside", point)
		sandbox.WantContent(t, filepath.Join(other, "f"), "precious")
		mountID(t, point)

		// Another program may make a mount after the driver has checked for mounts. Purge must also
		// protect the mounted data in this case.
		st := &store.StateDir{Root: b.state}
		sandbox.Must(t, os.Rename(filepath.Join(b.state, store.DirVolumes, id), filepath.Join(b.state, store.DirTrash, id)))
		err := st.Purge(background(), id)
		sandbox.Must(t, os.Rename(filepath.Join(b.state, store.DirTrash, id), filepath.Join(b.state, store.DirVolumes, id)))
		if err == nil || !strings.Contains(err.Error(), "busy") {
			t.Errorf("%s: purging went on: %v", what, err)
		}
		sandbox.WantContent(t, filepath.Join(other, "f"), "precious")
		mountID(t, point)
		sandbox.Must(t, unix.Unmount(point, 0))
		sandbox.Must(t, os.MkdirAll(filepath.Join(data, "a", "b"), 0o755))
		sandbox.Write(t, filepath.Join(data, "file"), "")
	}
	// A volume whose data is mounted at another path is in use, even if another program made the
	// mount.
	sandbox.Must(t, unix.Mount(sandbox.Mkdir(t, data, "sub"), sandbox.Mkdir(t, b.path("view")), "", unix.MS_BIND, ""))
	sandbox.WantCode(t, b.delete(id), codes.FailedPrecondition, b.path("view"))
	sandbox.Must(t, unix.Unmount(b.path("view"), 0))
	sandbox.Must(t, b.delete(id))
}

// TestOddTrees deletes volumes that contain links to the outside, a tree deeper than the limit of
// open directories, many entries, and names that are hard to print.
func TestOddTrees(t *testing.T) {
	b := newBench(t)
	id := b.create("v", 0, nil, mountCap(writer, ""))
	data := filepath.Join(b.state, store.DirVolumes, id, store.DataDir)
	out := sandbox.Mkdir(t, b.path("out"))
	sandbox.Write(t, filepath.Join(out, "f"), "precious")
	sandbox.Must(t, os.Symlink(out, filepath.Join(data, "dirlink")))
	sandbox.Must(t, os.Symlink(filepath.Join(out, "f"), filepath.Join(data, "filelink")))
	sandbox.Must(t, os.Link(filepath.Join(out, "f"), filepath.Join(data, "hardlink")))
	sandbox.Must(t, unix.Mkfifo(filepath.Join(data, "fifo"), 0o600))
	sandbox.Write(t, filepath.Join(data, "new\nline \xff"), "")
	deep := sandbox.Mkdir(t, data, strings.Repeat("d/", 3*tree.MaxDepth))
	sandbox.Must(t, os.Symlink(out, filepath.Join(deep, "dirlink")))
	for i := range 1500 {
		sandbox.Write(t, filepath.Join(data, fmt.Sprintf("f%d", i)), "")
	}
	sandbox.Must(t, os.Chmod(sandbox.Mkdir(t, data, "closed", "x"), 0))
	sandbox.Must(t, b.delete(id))
	sandbox.WantContent(t, filepath.Join(out, "f"), "precious")
	if left := b.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestBrokenMetadata damages the metadata of one volume. The other volumes must still work, and the
// data of the damaged volume must remain.
func TestBrokenMetadata(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	bad, good := b.create("bad", 0, nil, c), b.create("good", 0, nil, c)
	root := filepath.Join(b.state, store.DirVolumes, bad)
	sandbox.Write(t, filepath.Join(root, store.DataDir, "f"), "precious")
	for _, text := range []string{"", "{", `{"version":2}`, fmt.Sprintf(`{"version":1,"id":%q,"type":"directory"}`, good)} {
		sandbox.Write(t, filepath.Join(root, store.MetaFile), text)
		b.restart()
		if got := b.listed(); !slices.Equal(got, []string{good}) {
			t.Errorf("%q: listed %v", text, got)
		}
		sandbox.WantCode(t, b.delete(bad), codes.Internal, bad)
		sandbox.WantCode(t, b.stage(bad, c), codes.Internal, bad)
		sandbox.WantContent(t, filepath.Join(root, store.DataDir, "f"), "precious")
	}
	sandbox.Must(t, b.delete(good))
}

// TestTwoDrivers checks that a second driver cannot start on a state directory that another driver
// uses.
func TestTwoDrivers(t *testing.T) {
	b := newBench(t)
	err := Run(background(), Options{Endpoint: "unix://" + b.path("two.sock"), NodeID: "n", StateDir: b.state})
	if err == nil || !strings.Contains(err.Error(), "another driver") {
		t.Errorf("got %v", err)
	}
	sandbox.WantGone(t, b.path("two.sock"))
}

// TestSockets starts drivers on socket paths at which a file already exists.
func TestSockets(t *testing.T) {
	dir := sandbox.ShortDir(t)
	stale, live, file := filepath.Join(dir, "stale"), filepath.Join(dir, "live"), filepath.Join(dir, "file")
	for _, p := range []string{stale, live} {
		l, err := net.Listen("unix", p)
		sandbox.Must(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		if p == stale {
			sandbox.Must(t, l.Close())
		} else {
			t.Cleanup(func() { sandbox.Must(t, l.Close()) })
		}
	}
	sandbox.Write(t, file, "mine")
	for endpoint, word := range map[string]string{
		"unix://" + live: "answers", "unix://" + file: "no socket", "tcp://1.2.3.4:5": "unix:///", "": "unix:///",
		"unix:///" + strings.Repeat("x", 107): "107",
	} {
		err := Run(background(), Options{Endpoint: endpoint, NodeID: "n", StateDir: filepath.Join(dir, "s")})
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%q: got %v, want %q", endpoint, err, word)
		}
	}
	sandbox.WantContent(t, file, "mine")
	ctx, cancel := context.WithCancel(background())
	done := make(chan error)
	go func() {
		done <- Run(ctx, Options{Endpoint: "unix://" + stale, NodeID: "n", StateDir: filepath.Join(dir, "s")})
	}()
	sandbox.Await(t, "the stale socket is replaced", func() bool {
		c, err := net.Dial("unix", stale)
		return err == nil && c.Close() == nil
	})
	info, err := os.Stat(stale)
	sandbox.Must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v", info.Mode())
	}
	cancel()
	sandbox.Must(t, <-done)
	sandbox.WantGone(t, stale)
}

// TestKilled kills the driver at random moments while it creates and deletes volumes. After each
// restart, every listed volume must be complete. A repeated call must complete the interrupted
// call.
func TestKilled(t *testing.T) {
	b := newBench(t)
	b.stop()
	rounds, cut := 25, 0
	if testing.Short() {
		rounds = 5
	}
	params, size := asDirectory, int64(4096)
	if !sandbox.InUserNamespace(t) {
		params, size = image("ext4"), 64*mib
	}
	names := []string{"a", "b", "c"}
	for round := range rounds {
		kill := b.startProcess()
		killer := time.AfterFunc(time.Duration(round*7)*time.Millisecond, kill)
		for alive := true; alive; {
			for _, name := range names {
				alive = alive && b.flip(name, size, params)
			}
		}
		killer.Stop()
		kill()
		half, err := os.ReadDir(filepath.Join(b.state, store.DirTmp))
		sandbox.Must(t, err)
		cut += len(half) + len(b.leftovers())
	}
	t.Logf("%d kills left something in tmp or trash", cut)
	b.start()
	for _, id := range b.listed() {
		checkWhole(t, b, id)
	}
	for _, name := range names {
		sandbox.Must(t, b.delete(b.create(name, size, params, mountCap(writer, ""))))
	}
	sandbox.Await(t, "nothing is left", func() bool {
		tmp, err := os.ReadDir(filepath.Join(b.state, store.DirTmp))
		return err == nil && len(tmp) == 0 && len(b.leftovers()) == 0 && len(b.listed()) == 0
	})
}

// flip creates and deletes a volume. It returns false if the driver was killed in the meantime.
func (b *bench) flip(name string, size int64, params map[string]string) bool {
	b.t.Helper()
	resp, err := b.CreateVolume(background(), createReq(name, size, params, mountCap(writer, "")))
	if err != nil {
		return false
	}
	return b.delete(resp.GetVolume().GetVolumeId()) == nil
}

// startProcess starts the driver as a separate process. The returned function kills this process;
// only its first call has an effect.
func (b *bench) startProcess() func() {
	b.t.Helper()
	sock := b.path("csi.sock")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), sandbox.EnvMode+"="+modeDriver, "CSI_ENDPOINT="+sock, "STATE_DIR="+b.state)
	sandbox.Must(b.t, cmd.Start())
	conn := b.dial(sock)
	return sync.OnceFunc(func() {
		kill, end, hangup := cmd.Process.Kill(), cmd.Wait(), conn.Close()
		if kill != nil || end == nil || hangup != nil {
			b.t.Errorf("the driver was not killed: %v, %v, %v", kill, end, hangup)
		}
	})
}

func checkWhole(t *testing.T, b *bench, id string) {
	t.Helper()
	root := filepath.Join(b.state, store.DirVolumes, id)
	raw, err := os.ReadFile(filepath.Join(root, store.MetaFile))
	sandbox.Must(t, err)
	var v store.Volume
	sandbox.Must(t, json.Unmarshal(raw, &v))
	if v.Type == store.TypeDirectory {
		_, err = os.ReadDir(filepath.Join(root, store.DataDir))
		sandbox.Must(t, err)
		return
	}
	c := mountCap(writer, "ext4")
	sandbox.Must(t, b.stage(id, c))
	sandbox.Must(t, b.unstage(id))
	_, err = b.ControllerGetVolume(background(), &csi.ControllerGetVolumeRequest{VolumeId: id})
	sandbox.Must(t, err)
}

// TestOlderState starts the driver on a state directory of an older release, which did not know
// snapshots, quotas or sources.
func TestOlderState(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("v", 0, nil, c)
	sandbox.Write(t, filepath.Join(b.data(id), "f"), "kept")
	b.stop()
	for _, d := range []string{store.DirSnapshots, store.DirGroups, store.DirFrozen} {
		sandbox.Must(t, os.Remove(filepath.Join(b.state, d)))
	}
	sandbox.Write(t, filepath.Join(b.state, store.DirVolumes, id, store.MetaFile),
		`{"version":1,"id":"`+id+`","name":"v","type":"directory","block":false,"capacity_bytes":5000,"created":"2026-01-02T03:04:05Z"}`)
	b.start()
	if again := b.create("v", 5000, nil, c); again != id {
		t.Errorf("asked again: %q, before %q", again, id)
	}
	dup := b.copyOf("copy", fromSnap(b.snap("s", id)), c)
	sandbox.WantContent(t, filepath.Join(b.data(dup), "f"), "kept")
	sandbox.Must(t, b.stage(id, c))
	sandbox.WantContent(t, filepath.Join(b.staging(id), "f"), "kept")
	b.clear(id)
}
