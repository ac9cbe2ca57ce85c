package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestReplaceAttached loses host h1, which writes to an attached volume. No other host gets the volume
// until a person replaces h1. Then ControllerUnpublishVolume for the CSI node id of h1 comes before
// ControllerPublishVolume for h2. From then on, the SAN accepts no write of h1, and etcd none of its old
// incarnation. Host h1 later returns: it has lost its claim, undoes its mounts, makes no controller call,
// and can use the volume again when h2 has given it up. (I1, I3, I4)
func TestReplaceAttached(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(*loss)
		back func(*loss)
	}{
		{"rebooted", (*loss).powerOff, (*loss).reboot},
		{"call in flight", (*loss).powerOffInCall, (*loss).reboot},
		{"paused", (*loss).pause, (*loss).resume},
		{"other machine with the disk", (*loss).swapMachine, (*loss).wait},
		{"other machine without the disk", (*loss).swapAll, (*loss).wait},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := startLoss(t)
			c.lose(l)
			l.awaitGone()
			l.expectWaiting()

			claimed := l.b.StartVolctl("volume", "claim", "db", "--alloc", "web", "--timeout", "90s")
			l.mark = len(l.san.Events())
			out := l.c.Volctl("node", "replace", "h1", "--reason", lossReason, "-y")
			mustSay(t, "the replacement", out, "db")
			got := <-claimed
			if got.Code != 0 {
				t.Fatalf("the claim on h2 ended with %d: %s", got.Code, got.Err)
			}
			path := strings.TrimSpace(got.Out)
			l.b.MustRun("sh", "-c", `echo h2 > "$1"`, "sh", filepath.Join(path, "owner"))
			l.expectOrder()
			l.expectProof()

			c.back(l)
			l.b.Await("the registration of h1", func() bool { return hostOf(l.b, "h1").Alive })
			l.b.MustRun("sh", "-c", `echo more >> "$1"`, "sh", filepath.Join(path, "owner"))
			l.expectLost()
			l.b.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
			l.reuse()
			l.expectNoLeftover()
		})
	}
}

// lossReason is the reason of the replacement of a lost host.
const lossReason = "the mainboard is dead"

// loss is a field of three hosts, of which h1 is lost.
type loss struct {
	*field
	a, b, c *lab.Host
	writer  *lab.Process // on h1; nil if it does not write
	mark    int          // the number of events of the SAN before the replacement
	lost    bool         // host h1 knows after its return that it had a claim
	fenced  uint64       // the incarnation of h1 that the proof names
}

// startLoss starts three hosts. The CSI node ids differ from the names of the hosts.
func startLoss(t *testing.T) *loss {
	t.Helper()
	return startLossWith(t)
}

// startLossWith is startLoss with further lines of the plugin file, such as "fence: detach".
func startLossWith(t *testing.T, more ...string) *loss {
	t.Helper()
	l := &loss{field: &field{t: t, san: lab.StartSAN(t)}}
	l.Lab = lab.New(t, 3, lab.WithEtcd(1), lab.Clustered())
	for _, h := range l.Hosts {
		addDriver(h.Host, l.san, "csi-"+h.Name, attachAndStage, more...)
		h.Start("san")
	}
	l.a, l.b, l.c = l.Hosts[0], l.Hosts[1], l.Hosts[2]
	shareOn(l.b.Host, l.san, "db", mode("single-node-multi-writer"))
	return l
}

// write claims the volume on h1, and starts a process there that writes to an open file all the time. The
// command "node replace" is refused meanwhile.
func (l *loss) write() {
	l.t.Helper()
	path := claim(l.a.Host, "db", "web")
	said, err := os.Create(l.said())
	l.a.Must(err)
	defer said.Close()
	l.writer = l.a.Spawn(said, "sh", "-c", `exec 3> "$1"; while :; do echo h1 >&3; sleep 0.1; done`, "sh", filepath.Join(path, "log"))
	l.a.Await("a write of h1", func() bool { return len(l.san.Writes("disk-db")) > 2 })
	l.b.ExpectRefusal(4, `host "h1" is alive`, "node", "replace", "h1", "--reason", lossReason, "-y")
	l.lost = true
}

// said returns the file with the errors of the writer.
func (l *loss) said() string { return filepath.Join(l.a.Dir, "said") }

// powerOff switches h1 off while it writes.
func (l *loss) powerOff() {
	l.t.Helper()
	l.write()
	l.a.PowerOff()
}

// powerOffInCall switches h1 off while its ControllerPublishVolume is in the SAN. The call takes effect
// after that.
func (l *loss) powerOffInCall() {
	l.t.Helper()
	release := l.san.Hold("ControllerPublishVolume", "csi-h1")
	l.a.Spawn(nil, filepath.Join(harness.BinDir, "volctl"), "volume", "claim", "db", "--alloc", "web", "--timeout", "90s")
	r := &rig{t: l.t, san: l.san}
	r.awaitHeld("ControllerPublishVolume")
	l.a.PowerOff()
	release()
	l.b.Await("the late attachment", func() bool { return len(l.san.Attachments()) == 1 })
	l.lost = true
}

// pause suspends the agent of h1. Its mount and its writer stay.
func (l *loss) pause() {
	l.t.Helper()
	l.write()
	l.a.Freeze()
}

// swapMachine switches h1 off, and starts another machine with its name and its disk. The cluster refuses
// this machine.
func (l *loss) swapMachine() {
	l.t.Helper()
	l.powerOff()
	l.startOther()
}

// swapAll is swapMachine for a machine with an empty disk.
func (l *loss) swapAll() {
	l.t.Helper()
	l.powerOff()
	l.a.Must(os.RemoveAll(filepath.Join(l.a.Dir, "d")))
	l.startOther()
	l.lost = false
}

func (l *loss) startOther() {
	l.t.Helper()
	l.a.MachineID, l.a.ProductUUID = strings.Repeat("e", 32), "eeeeeeee-eeee-4eee-8eee-eeeeeeeeeeee"
	l.a.PowerOn()
	l.awaitGone()
	l.a.Start("san")
	l.a.Await("the refusal of the other machine", func() bool {
		return strings.Contains(l.a.Volctl("node", "status"), `host "h1" was registered by another machine`)
	})
}

// awaitGone waits until the lease of h1 has ended.
func (l *loss) awaitGone() {
	l.t.Helper()
	l.b.Await("the end of the lease of h1", func() bool { return !hostOf(l.b, "h1").Alive })
}

// hostOf returns a host of the cluster, as another host shows it.
func hostOf(h *lab.Host, name string) api.ClusterHost {
	h.T.Helper()
	all := harness.Decode[[]api.ClusterHost](h.Host, "node", "list")
	i := slices.IndexFunc(all, func(one api.ClusterHost) bool { return one.ID == name })
	if i < 0 {
		h.T.Fatalf("the cluster has no host %s: %+v", name, all)
	}
	return all[i]
}

// expectWaiting asserts that h2 does not get the volume. The refusal says which host has it, when the
// host last reported a change, and which command helps. While a call of h1 may still take effect, the
// refusal names that call.
func (l *loss) expectWaiting() {
	l.t.Helper()
	l.b.Await("the refusal that names h1 and the command", func() bool {
		r := l.b.Try("volume", "claim", "db", "--alloc", "early", "--timeout", "2s")
		if r.Code != 5 || !strings.Contains(r.Err, `host "h1"`) {
			l.t.Fatalf("before the replacement, the claim on h2 ended with %d: %s", r.Code, r.Err)
		}
		words := []string{`held by host "h1"`, `host "h1" is gone, and last reported a change 20`, "volctl node replace h1 --reason TEXT -y"}
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(r.Err, w) })
	})
}

// of returns the events of the SAN after the first n that match.
func (l *loss) of(n int, match func(san.Event) bool) (all []san.Event) {
	for _, e := range l.san.Events()[n:] {
		if match(e) {
			all = append(all, e)
		}
	}
	return all
}

// detached returns the answers to ControllerUnpublishVolume for h1 since the replacement.
func (l *loss) detached() []san.Event {
	return l.of(l.mark, func(e san.Event) bool {
		return e.Kind == san.KindAnswer && e.Method == "ControllerUnpublishVolume" && e.Target == "csi-h1" && e.Code == "OK"
	})
}

// expectOrder asserts that after the replacement, ControllerUnpublishVolume for h1 has ended before
// ControllerPublishVolume for h2 began. Only then has the SAN accepted writes of h2.
func (l *loss) expectOrder() {
	l.t.Helper()
	detached := l.detached()
	attached := l.of(0, func(e san.Event) bool { return e.Method == "ControllerPublishVolume" && e.Target == "csi-h2" })
	if len(detached) == 0 || len(attached) == 0 || detached[len(detached)-1].Seq > attached[0].Seq {
		l.t.Fatalf("the SAN has detached h1 with %v, and attached h2 with %v", detached, attached)
	}
	if writes := l.san.Writes("disk-db"); writes[len(writes)-1].Node != "csi-h2" {
		l.t.Errorf("the last write came from %v", writes[len(writes)-1])
	}
}

// expectProof asserts that the cluster has recorded the statement of a person about h1.
func (l *loss) expectProof() {
	l.t.Helper()
	for _, kv := range l.keys() {
		if !strings.HasPrefix(kv.Key, shared.Proofs("h1").Key) {
			continue
		}
		p, err := shared.Decode[shared.Proof](kv)
		l.b.Must(err)
		if v := p.Value; v.Kind != shared.Replaced || v.Reason != lossReason || !strings.Contains(v.Who, "on host h3") || !slices.Equal(v.Volumes, []string{"db"}) {
			l.t.Errorf("the proof is %+v", v)
		}
		l.fenced, err = shared.ProvenIncarnation(kv.Key)
		l.b.Must(err)
	}
	if l.fenced == 0 {
		l.t.Error("the cluster has no proof for h1")
	}
}

// reboot boots h1 again, with its state.
func (l *loss) reboot() {
	l.t.Helper()
	l.a.PowerOn()
	l.a.Start("san")
}

// resume lets the agent of h1 continue after the SAN has refused a write of h1. The writer still has a file
// open, so the agent cannot unmount the volume before the writer has ended.
func (l *loss) resume() {
	l.t.Helper()
	l.b.Await("the error of a write", func() bool {
		said, err := os.ReadFile(l.said())
		l.b.Must(err)
		return strings.Contains(string(said), "I/O error")
	})
	l.a.Thaw()
	l.awaitLost()
	if l.writer.Ended() {
		l.t.Error("the writer has ended by itself")
	}
	l.a.Must(l.writer.Kill())
}

// wait does nothing: the other machine already runs, and tries to register.
func (l *loss) wait() {}

// awaitLost waits until h1 says that it has lost its hold.
func (l *loss) awaitLost() {
	l.t.Helper()
	l.a.Await("the report of the loss", func() bool { return strings.Contains(l.a.Volctl("events", "--volume", "db"), "hold-lost") })
}

// expectLost asserts that h1 has lost its claim and undoes its mounts. Since its attachment has ended, the
// SAN has accepted no write and no controller call of h1.
func (l *loss) expectLost() {
	l.t.Helper()
	if l.lost {
		l.awaitLost()
	}
	l.a.Await("the end of the mounts of h1", func() bool { return !strings.Contains(l.a.Mounts(), "san:") })
	l.a.Await("the end of the claim of h1", func() bool { return len(l.a.Claims()) == 0 })
	refused(l.t, l.a.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "2s").Err, `held by host "h2"`)

	detached := l.detached()
	late := l.of(int(detached[len(detached)-1].Seq), func(e san.Event) bool {
		calls := e.Kind == san.KindCall && strings.HasPrefix(e.Method, "ControllerP")
		return e.Node == "csi-h1" && (calls || e.Kind == san.KindWrite)
	})
	if len(late) > 0 {
		l.t.Errorf("after the end of its attachment, h1 has made %v", late)
	}
}

// reuse claims the volume on h1, which reads the data of h2. The hold belongs to a new incarnation.
func (l *loss) reuse() {
	l.t.Helper()
	path := claim(l.a.Host, "db", "web", "--timeout", "60s")
	if text := l.a.MustRun("cat", filepath.Join(path, "owner")); text != "h2\nmore" {
		l.t.Errorf("host h1 reads %q", text)
	}
	l.a.MustRun("sh", "-c", `echo again > "$1"`, "sh", filepath.Join(path, "again"))

	holds := map[string]uint64{}
	for _, kv := range l.keys() {
		if node, id, ok := shared.HoldIDs(kv.Key); ok && strings.HasPrefix(kv.Key, shared.HoldsOf(node).Key) {
			h, err := shared.Decode[shared.Hold](kv)
			l.b.Must(err)
			holds[node+" "+id] = h.Value.Incarnation
		}
	}
	if len(holds) != 1 || holds["h1 db"] <= l.fenced {
		l.t.Errorf("the holds have the incarnations %v; the proof is for %d", holds, l.fenced)
	}
	l.a.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
}

// expectNoLeftover asserts that the hosts, the SAN and the cluster have nothing left of the use.
func (l *loss) expectNoLeftover() {
	l.t.Helper()
	l.b.Await("all attachments to end", func() bool { return len(l.san.Attachments()) == 0 })
	for _, h := range l.Hosts {
		if strings.Contains(h.Mounts(), "san:") {
			l.t.Errorf("host %s still has mounts:\n%s", h.Name, h.Mounts())
		}
	}
	for _, kv := range l.keys() {
		for _, prefix := range []string{"holds/", "calls/", "tasks/", "users/"} {
			if strings.HasPrefix(kv.Key, prefix) {
				l.t.Errorf("etcd still has %s: %s", kv.Key, kv.Value)
			}
		}
	}
}

// labKeysChild is an environment variable that makes this test binary print all keys of a cluster as JSON.
// Its value is a labStore. Only a process on a host reaches the etcd of a lab.
const labKeysChild = "VOLAGENT_TEST_LAB_KEYS"

// labStore says how a client connects to the etcd of a lab.
type labStore struct {
	Endpoints []string
	Files     lab.Files
}

// keys returns all keys of the cluster in etcd.
func (f *field) keys() (all []shared.KV) {
	f.t.Helper()
	self, err := os.Executable()
	f.Hosts[1].Must(err)
	raw, err := json.Marshal(labStore{f.Endpoints(), f.Files})
	f.Hosts[1].Must(err)
	f.Hosts[1].Must(json.Unmarshal([]byte(f.Hosts[1].MustRun("env", labKeysChild+"="+string(raw), self)), &all))
	return all
}

// printLabKeys is the program of labKeysChild.
func printLabKeys(raw string) int {
	err := func() error {
		var from labStore
		if err := json.Unmarshal([]byte(raw), &from); err != nil {
			return err
		}
		store, err := cluster.Open(context.Background(), cluster.Options{
			Endpoints: from.Endpoints, Prefix: config.DefaultPrefix, CA: from.Files.CA, Cert: from.Files.Cert, Key: from.Files.Key,
		})
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }() // the process ends
		page, err := store.Range(context.Background(), shared.Span{Key: "a", End: "{"}, 0, 0)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(page.KVs)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
