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
)

// plant makes a directory under the state directory that looks like one of the driver's own.
func plant(t *testing.T, state, dir, id string, files ...string) string {
	t.Helper()
	root := filepath.Join(state, dir, id)
	must(t, os.MkdirAll(root, 0o700))
	for _, f := range files {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, f)), 0o700))
		write(t, filepath.Join(root, f), f)
	}
	return root
}

// TestLeftovers starts the driver with the leftovers of a crash in tmp and trash.
func TestLeftovers(t *testing.T) {
	b := newBench(t)
	b.stop()
	half := plant(t, b.state, dirTmp, newID(), imageFile)
	gone := plant(t, b.state, dirTrash, newID(), metaFile, "data/a/b/c", "data/d")
	notOurs := []string{plant(t, b.state, dirTrash, "mine", "f"), plant(t, b.state, dirTmp, "mine", "f"), plant(t, b.state, dirVolumes, "mine", "f")}
	b.start()
	await(t, "leftovers are removed", func() bool {
		_, e1 := os.Lstat(half)
		_, e2 := os.Lstat(gone)
		return os.IsNotExist(e1) && os.IsNotExist(e2) && len(b.leftovers()) == 0
	})
	for _, p := range notOurs {
		wantContent(t, filepath.Join(p, "f"), "f")
	}
	if got := b.listed(); len(got) > 0 {
		t.Errorf("listed: %v", got)
	}
}

// leftovers lists the entries of trash that have a name of the driver's.
func (b *bench) leftovers() []string {
	b.t.Helper()
	list, err := filepath.Glob(filepath.Join(b.state, dirTrash, idPrefix+"*"))
	must(b.t, err)
	return list
}

// TestDeleteResumes repeats a deletion that was interrupted.
func TestDeleteResumes(t *testing.T) {
	b := newBench(t)
	id := newID()
	root := plant(t, b.state, dirTrash, id, "data/x")
	tmpfs(t, mkdir(t, root, "data", "mnt"), "size=64k")
	write(t, filepath.Join(root, "data", "mnt", "f"), "kept")
	wantCode(t, b.delete(id), codes.Internal, "mnt", "busy")
	wantContent(t, filepath.Join(root, "data", "mnt", "f"), "kept")
	must(t, unix.Unmount(filepath.Join(root, "data", "mnt"), 0))
	must(t, b.delete(id))
	wantGone(t, root)
}

func mkdir(t *testing.T, elem ...string) string {
	t.Helper()
	p := filepath.Join(elem...)
	must(t, os.MkdirAll(p, 0o755))
	return p
}

// TestPlantedMount mounts other data inside volumes. Deleting must neither change nor unmount it.
func TestPlantedMount(t *testing.T) {
	b := newBench(t)
	id := b.create("v", 0, nil, mountCap(writer, ""))
	data := filepath.Join(b.state, dirVolumes, id, dataDir)
	other := mkdir(t, b.path("other"))
	write(t, filepath.Join(other, "f"), "precious")
	write(t, filepath.Join(data, "own"), "own")
	write(t, filepath.Join(data, "file"), "")
	for what, point := range map[string]string{"below": mkdir(t, data, "a", "b"), "as the data": data, "on a file": filepath.Join(data, "file")} {
		source := other
		if what == "on a file" {
			source = filepath.Join(other, "f")
		}
		must(t, unix.Mount(source, point, "", unix.MS_BIND, ""))
		wantCode(t, b.delete(id), codes.FailedPrecondition, "mounted inside", point)
		wantContent(t, filepath.Join(other, "f"), "precious")
		mountID(t, point)

		// Repeat it as in a race: the mount is made after the check.
		st := &store{root: b.state}
		must(t, os.Rename(filepath.Join(b.state, dirVolumes, id), filepath.Join(b.state, dirTrash, id)))
		err := st.purge(background(), id)
		must(t, os.Rename(filepath.Join(b.state, dirTrash, id), filepath.Join(b.state, dirVolumes, id)))
		if err == nil || !strings.Contains(err.Error(), "busy") {
			t.Errorf("%s: purging went on: %v", what, err)
		}
		wantContent(t, filepath.Join(other, "f"), "precious")
		mountID(t, point)
		must(t, unix.Unmount(point, 0))
		must(t, os.MkdirAll(filepath.Join(data, "a", "b"), 0o755))
		write(t, filepath.Join(data, "file"), "")
	}
	// A volume whose data is mounted elsewhere is in use, even if another program mounted it.
	must(t, unix.Mount(mkdir(t, data, "sub"), mkdir(t, b.path("view")), "", unix.MS_BIND, ""))
	wantCode(t, b.delete(id), codes.FailedPrecondition, b.path("view"))
	must(t, unix.Unmount(b.path("view"), 0))
	must(t, b.delete(id))
}

// TestOddTrees deletes links that lead outside, a tree deeper than the limit of open directories,
// many entries, and names that are hard to print.
func TestOddTrees(t *testing.T) {
	b := newBench(t)
	id := b.create("v", 0, nil, mountCap(writer, ""))
	data := filepath.Join(b.state, dirVolumes, id, dataDir)
	out := mkdir(t, b.path("out"))
	write(t, filepath.Join(out, "f"), "precious")
	must(t, os.Symlink(out, filepath.Join(data, "dirlink")))
	must(t, os.Symlink(filepath.Join(out, "f"), filepath.Join(data, "filelink")))
	must(t, os.Link(filepath.Join(out, "f"), filepath.Join(data, "hardlink")))
	must(t, unix.Mkfifo(filepath.Join(data, "fifo"), 0o600))
	write(t, filepath.Join(data, "new\nline \xff"), "")
	deep := mkdir(t, data, strings.Repeat("d/", 3*maxDepth))
	must(t, os.Symlink(out, filepath.Join(deep, "dirlink")))
	for i := range 1500 {
		write(t, filepath.Join(data, fmt.Sprintf("f%d", i)), "")
	}
	must(t, os.Chmod(mkdir(t, data, "closed", "x"), 0))
	must(t, b.delete(id))
	wantContent(t, filepath.Join(out, "f"), "precious")
	if left := b.leftovers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestBrokenMetadata damages the metadata of one volume. The others still work, and its data
// remains.
func TestBrokenMetadata(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	bad, good := b.create("bad", 0, nil, c), b.create("good", 0, nil, c)
	root := filepath.Join(b.state, dirVolumes, bad)
	write(t, filepath.Join(root, dataDir, "f"), "precious")
	for _, text := range []string{"", "{", `{"version":2}`, fmt.Sprintf(`{"version":1,"id":%q,"type":"directory"}`, good)} {
		write(t, filepath.Join(root, metaFile), text)
		b.restart()
		if got := b.listed(); !slices.Equal(got, []string{good}) {
			t.Errorf("%q: listed %v", text, got)
		}
		wantCode(t, b.delete(bad), codes.Internal, bad)
		wantCode(t, b.stage(bad, c), codes.Internal, bad)
		wantContent(t, filepath.Join(root, dataDir, "f"), "precious")
	}
	must(t, b.delete(good))
}

// TestTwoDrivers starts a second driver on a state directory in use.
func TestTwoDrivers(t *testing.T) {
	b := newBench(t)
	err := Run(background(), Options{Endpoint: "unix://" + b.path("two.sock"), NodeID: "n", StateDir: b.state})
	if err == nil || !strings.Contains(err.Error(), "another driver") {
		t.Errorf("got %v", err)
	}
	wantGone(t, b.path("two.sock"))
}

// TestSockets starts drivers on socket paths that are occupied.
func TestSockets(t *testing.T) {
	dir := shortDir(t)
	stale, live, file := filepath.Join(dir, "stale"), filepath.Join(dir, "live"), filepath.Join(dir, "file")
	for _, p := range []string{stale, live} {
		l, err := net.Listen("unix", p)
		must(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		if p == stale {
			must(t, l.Close())
		} else {
			t.Cleanup(func() { must(t, l.Close()) })
		}
	}
	write(t, file, "mine")
	for endpoint, word := range map[string]string{
		"unix://" + live: "answers", "unix://" + file: "no socket", "tcp://1.2.3.4:5": "unix:///", "": "unix:///",
		"unix:///" + strings.Repeat("x", 107): "107",
	} {
		err := Run(background(), Options{Endpoint: endpoint, NodeID: "n", StateDir: filepath.Join(dir, "s")})
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%q: got %v, want %q", endpoint, err, word)
		}
	}
	wantContent(t, file, "mine")
	ctx, cancel := context.WithCancel(background())
	done := make(chan error)
	go func() {
		done <- Run(ctx, Options{Endpoint: "unix://" + stale, NodeID: "n", StateDir: filepath.Join(dir, "s")})
	}()
	await(t, "the stale socket is replaced", func() bool {
		c, err := net.Dial("unix", stale)
		return err == nil && c.Close() == nil
	})
	info, err := os.Stat(stale)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v", info.Mode())
	}
	cancel()
	must(t, <-done)
	wantGone(t, stale)
}

// TestKilled kills the driver at random moments while it creates and deletes. After each restart,
// every listed volume is complete, and a repeated call completes the interrupted one.
func TestKilled(t *testing.T) {
	b := newBench(t)
	b.stop()
	rounds, cut := 25, 0
	if testing.Short() {
		rounds = 5
	}
	params, size := asDirectory, int64(4096)
	if !inUserNamespace(t) {
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
		half, err := os.ReadDir(filepath.Join(b.state, dirTmp))
		must(t, err)
		cut += len(half) + len(b.leftovers())
	}
	t.Logf("%d kills left something in tmp or trash", cut)
	b.start()
	for _, id := range b.listed() {
		checkWhole(t, b, id)
	}
	for _, name := range names {
		must(t, b.delete(b.create(name, size, params, mountCap(writer, ""))))
	}
	await(t, "nothing is left", func() bool {
		tmp, err := os.ReadDir(filepath.Join(b.state, dirTmp))
		return err == nil && len(tmp) == 0 && len(b.leftovers()) == 0 && len(b.listed()) == 0
	})
}

// flip creates a volume and deletes it. It returns false if the driver has died.
func (b *bench) flip(name string, size int64, params map[string]string) bool {
	b.t.Helper()
	resp, err := b.CreateVolume(background(), createReq(name, size, params, mountCap(writer, "")))
	if err != nil {
		return false
	}
	return b.delete(resp.GetVolume().GetVolumeId()) == nil
}

// startProcess starts a driver process. The returned function kills it, once.
func (b *bench) startProcess() func() {
	b.t.Helper()
	sock := b.path("csi.sock")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envMode+"="+modeDriver, "CSI_ENDPOINT="+sock, "STATE_DIR="+b.state)
	must(b.t, cmd.Start())
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
	root := filepath.Join(b.state, dirVolumes, id)
	raw, err := os.ReadFile(filepath.Join(root, metaFile))
	must(t, err)
	var v volume
	must(t, json.Unmarshal(raw, &v))
	if v.Type == typeDirectory {
		_, err = os.ReadDir(filepath.Join(root, dataDir))
		must(t, err)
		return
	}
	c := mountCap(writer, "ext4")
	must(t, b.stage(id, c))
	must(t, b.unstage(id))
	_, err = b.ControllerGetVolume(background(), &csi.ControllerGetVolumeRequest{VolumeId: id})
	must(t, err)
}

// TestOlderState starts on a state directory of an older release, which had no snapshots, quotas or
// sources.
func TestOlderState(t *testing.T) {
	b := newBench(t)
	c := mountCap(writer, "")
	id := b.create("v", 0, nil, c)
	write(t, filepath.Join(b.data(id), "f"), "kept")
	b.stop()
	for _, d := range []string{dirSnapshots, dirGroups, dirFrozen} {
		must(t, os.Remove(filepath.Join(b.state, d)))
	}
	write(t, filepath.Join(b.state, dirVolumes, id, metaFile),
		`{"version":1,"id":"`+id+`","name":"v","type":"directory","block":false,"capacity_bytes":5000,"created":"2026-01-02T03:04:05Z"}`)
	b.start()
	if again := b.create("v", 5000, nil, c); again != id {
		t.Errorf("asked again: %q, before %q", again, id)
	}
	dup := b.copyOf("copy", fromSnap(b.snap("s", id)), c)
	wantContent(t, filepath.Join(b.data(dup), "f"), "kept")
	must(t, b.stage(id, c))
	wantContent(t, filepath.Join(b.staging(id), "f"), "kept")
	b.clear(id)
}
