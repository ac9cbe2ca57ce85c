package load_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/volume"
)

// rig is a host for benchmarks with two processes of the load plugin. The agent calls one of the
// processes, and the rig calls the other one directly, so that a benchmark can compare both.
type rig struct {
	*harness.Host
	api    *apiclient.Client
	plugin *loadPlugin
	direct caller
	ref    *statedb.DB // a database for comparison, on the agent's file system
	tapped []string    // environment of a tapped agent, or nil for the real agent
}

const loadWait = 2 * time.Minute

// newRig creates the host and starts the plugin process for direct calls. It does not start the
// agent.
func newRig(b *testing.B, p *loadPlugin) *rig {
	b.Helper()
	r := &rig{Host: harness.NewHost(b), plugin: p}
	if path := os.Getenv(loadProfile); path != "" {
		r.tapped = []string{loadProfile + "=" + path} // only a tapped agent writes a profile
	}
	r.OmitFlags, r.MoreArgs = []string{"--log-level"}, []string{"--log-level", "info"}
	p.Source = filepath.Join(r.Dir, "data")
	r.Must(os.Mkdir(p.Source, 0o755))
	r.mountRoots()
	self, err := os.Executable()
	r.Must(err)
	env := ""
	for _, kv := range p.env() {
		name, value, _ := strings.Cut(kv, "=")
		env += fmt.Sprintf("    %s: %q\n", name, value)
	}
	// Allow many concurrent calls, because the rig's direct calls have no limit either.
	file := fmt.Sprintf("id: load\nmax_in_flight: 1000\nexec:\n  command: [%q]\n  env:\n%s", self, env)
	r.Must(os.WriteFile(filepath.Join(r.Dir, "plugins.d", "load.yaml"), []byte(file), 0o644))

	socket := filepath.Join(r.Dir, "direct.sock")
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), p.env()...), "CSI_ENDPOINT=unix://"+socket)
	cmd.Stderr = r.Log
	r.Must(cmd.Start())
	b.Cleanup(func() {
		_ = cmd.Process.Kill() // the process may have ended
		_ = cmd.Wait()         // Wait reports the kill
	})
	r.Await("the direct plugin", func() bool { _, err := os.Stat(socket); return err == nil })
	r.direct = dialLoad(b, socket)
	r.ref, err = statedb.Open(filepath.Join(r.Dir, "ref", "ref.db"), statedb.Options{})
	r.Must(err)
	b.Cleanup(func() { r.Must(r.ref.Close()) })
	r.api = apiclient.New(r.Socket())
	b.Cleanup(r.api.Close)
	return r
}

// loadOn is an environment variable that selects where the agent's files are. By default only the
// state database is on disk, on the file system of /tmp. The value "disk" puts all files on disk.
// The value "memory" puts all files in memory, for machines whose disk is too slow for the
// benchmark.
const loadOn = "VOLAGENT_LOAD_ON"

// mountRoots mounts a tmpfs on the directories in which each claim creates and removes directories.
// On ext4 the measured time would grow after some thousand claims, because ext4 does not reuse a
// freed inode for half a minute and searches for another one.
func (r *rig) mountRoots() {
	r.T.Helper()
	dirs := []string{"d/csi", "x"}
	switch os.Getenv(loadOn) {
	case "disk":
		dirs = nil
	case "memory":
		dirs = []string{"d", "ref", "x"}
	}
	for _, dir := range []string{"d/csi", "ref", "x"} {
		r.Must(os.MkdirAll(filepath.Join(r.Dir, dir), 0o711))
	}
	for _, dir := range dirs {
		r.Must(syscall.Mount("tmpfs", filepath.Join(r.Dir, dir), "tmpfs", 0, "mode=711"))
	}
}

// spawn starts the agent without waiting until the agent is ready.
func (r *rig) spawn() {
	r.T.Helper()
	program, env := filepath.Join(harness.BinDir, "volagent"), r.Env
	if len(r.tapped) > 0 {
		program, env = "/proc/self/exe", append(slices.Clone(env), append(r.tapped, loadRole+"="+roleAgent)...)
	}
	r.Cmd = exec.Command(program, r.Args()...)
	r.Cmd.Env, r.Cmd.Stderr = env, r.Log
	r.Must(r.Cmd.Start())
}

// answers waits until the agent answers a request.
func (r *rig) answers() {
	r.T.Helper()
	for end := time.Now().Add(loadWait); ; time.Sleep(time.Millisecond) {
		_, err := r.api.Health(context.Background())
		if err == nil {
			return
		}
		if time.Now().After(end) {
			r.T.Fatal(err)
		}
	}
}

func (r *rig) startReady() {
	r.T.Helper()
	r.spawn()
	r.answers()
	_, err := r.api.WaitPlugin(context.Background(), "load", loadWait)
	r.Must(err)
}

// end stops the agent with SIGTERM, as a service manager does.
func (r *rig) end() {
	r.T.Helper()
	r.Must(r.Signal(syscall.SIGTERM))
}

func loadID(i int) string { return fmt.Sprintf("v%05d", i) }

// register registers n volumes. It also creates the directories for direct calls about n volumes.
func (r *rig) register(n int) {
	r.T.Helper()
	r.drive(n, 32, func(i int) error {
		spec := api.VolumeSpec{ID: loadID(i), PluginID: "load", ExternalID: loadID(i)}
		if _, err := r.api.RegisterVolume(context.Background(), spec, false); err != nil {
			return err
		}
		if err := os.MkdirAll(r.directPath("s", i), 0o755); err != nil {
			return err
		}
		return os.MkdirAll(filepath.Dir(r.directPath("t", i)), 0o755)
	})
}

// drive calls the function do n times, with at most atOnce calls at the same time. It returns the
// total time.
func (r *rig) drive(n, atOnce int, do func(i int) error) time.Duration {
	r.T.Helper()
	return drive(r.T, n, atOnce, do)
}

// drive is like rig.drive, for a benchmark without a rig.
func drive(tb testing.TB, n, atOnce int, do func(i int) error) time.Duration {
	tb.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range min(n, atOnce) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	if tb.Failed() {
		tb.FailNow()
	}
	return took
}

func (r *rig) claim(i int) error {
	_, err := r.api.ClaimVolume(context.Background(), loadID(i), "bench", api.ClaimRequest{}, loadWait)
	return err
}

func (r *rig) release(i int) error {
	return r.api.DetachClaim(context.Background(), loadID(i), "bench", apiclient.DetachOptions{Wait: loadWait})
}

func (r *rig) directPath(kind string, i int) string {
	return filepath.Join(r.Dir, "x", kind, loadID(i), "m")
}

// directClaim makes the CSI calls of a claim directly, without the agent.
func (r *rig) directClaim(i int) error {
	ctx, cancel := context.WithTimeout(context.Background(), loadWait)
	defer cancel()
	capability := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
	var published map[string]string
	if r.plugin.Attach {
		resp, err := r.direct.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: loadID(i), NodeId: "test-host", VolumeCapability: capability})
		if err != nil {
			return err
		}
		published = resp.GetPublishContext()
	}
	if _, err := r.direct.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: loadID(i), StagingTargetPath: r.directPath("s", i), VolumeCapability: capability, PublishContext: published,
	}); err != nil {
		return err
	}
	_, err := r.direct.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: loadID(i), StagingTargetPath: r.directPath("s", i), TargetPath: r.directPath("t", i), VolumeCapability: capability, PublishContext: published,
	})
	return err
}

func (r *rig) directRelease(i int) error {
	ctx, cancel := context.WithTimeout(context.Background(), loadWait)
	defer cancel()
	if _, err := r.direct.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: loadID(i), TargetPath: r.directPath("t", i)}); err != nil {
		return err
	}
	if _, err := r.direct.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: loadID(i), StagingTargetPath: r.directPath("s", i)}); err != nil {
		return err
	}
	if !r.plugin.Attach {
		return nil
	}
	_, err := r.direct.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: loadID(i), NodeId: "test-host"})
	return err
}

// commitOnce commits as much data to the rig's own database as a claim commits.
func (r *rig) commitOnce(int) error {
	return r.ref.Update(context.Background(), func(tx *statedb.Tx) error {
		rec, _ := tx.Volume("ref")
		rec.Volume = volume.Volume{ID: "ref", Driver: "load.example.com", PluginID: "load", ExternalID: "ref"}
		c := volume.Claim{Alloc: "bench", Seq: rec.Generation, Wanted: true, State: volume.Pending, Since: time.Now(), Target: r.directPath("t", 0)}
		rec.Claims = map[string]volume.Claim{"bench": c}
		tx.PutVolume(rec)
		return nil
	})
}

// commits returns the number of committed transactions in the agent's database. This number is the
// larger of the two transaction ids in bbolt's meta pages.
func (r *rig) commits() uint64 {
	r.T.Helper()
	f, err := os.Open(filepath.Join(r.Dir, "d", "state.db"))
	r.Must(err)
	defer f.Close()
	page := os.Getpagesize()
	raw := make([]byte, 2*page)
	_, err = f.ReadAt(raw, 0)
	r.Must(err)
	const txid = 16 + 48 // the txid follows the page header and 48 bytes of the meta page
	return max(binary.NativeEndian.Uint64(raw[txid:]), binary.NativeEndian.Uint64(raw[page+txid:]))
}

// caller is a plain CSI client.
type caller struct {
	csi.IdentityClient
	csi.ControllerClient
	csi.NodeClient
}

func dialLoad(tb testing.TB, socket string) caller {
	tb.Helper()
	conn, err := grpc.NewClient("passthrough:///load", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return caller{csi.NewIdentityClient(conn), csi.NewControllerClient(conn), csi.NewNodeClient(conn)}
}

// calls returns the number of calls that the agent's plugin has received, by method.
func (r *rig) calls() map[string]int {
	r.T.Helper()
	resp, err := dialLoad(r.T, filepath.Join(r.Dir, "run", "plugins", "load", "csi.sock")).
		GetPluginInfo(context.Background(), &csi.GetPluginInfoRequest{})
	r.Must(err)
	calls := map[string]int{}
	for method, n := range resp.GetManifest() {
		calls[method], err = strconv.Atoi(n)
		r.Must(err)
	}
	return calls
}

// since compares two results of the method calls. It returns how many calls came between them:
// mutating counts only the calls that change state, and all counts every call except the query for
// the second result.
func since(now, was map[string]int) (mutating, all int) {
	for method, n := range now {
		all += n - was[method]
		if slices.Contains(changing, method) {
			mutating += n - was[method]
		}
	}
	return mutating, all - 1
}

// memory is the resident memory of a process in KiB. Anon is anonymous memory, File is mapped files (the
// program and the database), and Peak is the largest total so far.
type memory struct{ Anon, File, Peak int }

func (r *rig) memory() memory {
	r.T.Helper()
	return memoryOf(r.T, r.Cmd.Process.Pid)
}

// memoryOf returns the memory of a process.
func memoryOf(tb testing.TB, pid int) (m memory) {
	tb.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.Atoi(f[1]) // other lines need not contain a number
		switch f[0] {
		case "RssAnon:":
			m.Anon = n
		case "RssFile:":
			m.File = n
		case "VmHWM:":
			m.Peak = n
		}
	}
	return m
}

// cpu returns the processor time that the agent has used.
func (r *rig) cpu() time.Duration {
	r.T.Helper()
	return cpuOf(r.T, r.Cmd.Process.Pid)
}

// cpuOf returns the processor time that a process has used.
func cpuOf(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	f := strings.Fields(rest)
	ticks := 0
	for _, field := range f[11:13] { // in user mode and in the kernel
		n, err := strconv.Atoi(field)
		if err != nil {
			tb.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // a clock tick is 10 ms
}

// goroutines ends the agent with SIGQUIT, which makes Go's runtime print all goroutines, and
// returns the number of goroutines.
func (r *rig) goroutines() int {
	r.T.Helper()
	before, err := os.ReadFile(r.Log.Name())
	r.Must(err)
	if err := r.Signal(syscall.SIGQUIT); err == nil {
		r.T.Fatal("the agent outlived SIGQUIT")
	}
	after, err := os.ReadFile(r.Log.Name())
	r.Must(err)
	n := strings.Count(string(after[len(before):]), "\ngoroutine ")
	r.Must(os.Truncate(r.Log.Name(), int64(len(before))))
	_, err = r.Log.Seek(int64(len(before)), 0)
	r.Must(err)
	return n
}

// verdicts is an environment variable that names a file. The benchmarks append their verdicts on
// the performance goals to this file.
const verdicts = "VOLAGENT_BENCH_VERDICTS"

// counted reports whether a count or a size keeps its limit. It does not depend on the speed of the
// machine, so any excess is a gross miss.
func counted(tb testing.TB, what string, got, most float64, format string, args ...any) {
	tb.Helper()
	short := 1.0
	if got > most {
		short = grossMiss + 1
	}
	verdict(tb, what, short, format, args...)
}

// grossMiss is the ratio of a value to its limit above which the benchmarks fail.
const grossMiss = 2

// verdict reports whether a performance goal is met. The argument short is the measured value
// divided by the goal's limit. A value of at most 1 is a pass, and one over grossMiss is a gross miss.
func verdict(tb testing.TB, what string, short float64, format string, args ...any) {
	tb.Helper()
	word := "PASS"
	switch {
	case short > grossMiss:
		word = "MISS"
	case short > 1:
		word = "FAIL"
	}
	line := fmt.Sprintf("%s  %s: %s\n", word, what, fmt.Sprintf(format, args...))
	path := os.Getenv(verdicts)
	if path == "" {
		fmt.Fprint(os.Stderr, line)
		return
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err == nil {
		_, err = f.WriteString(line)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		tb.Error(err)
	}
}
