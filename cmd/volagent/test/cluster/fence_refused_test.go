package cluster_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// TestNoTakeover loses host h1 in two ways that permit no automatic takeover. The volume has "takeover:
// never", or the agent of h1 was stopped in order and h1 is expected back. The claim on h2 waits, and its
// error names the host, its last report, the reason and the commands that help. The SAN sees no detach. The
// statement of a person takes effect at once. (I1, I3)
func TestNoTakeover(t *testing.T) {
	for _, c := range []struct {
		name   string
		volume []string
		lose   func(*loss)
		words  []string
	}{
		{"never", []string{"takeover: never"}, (*loss).powerOff, []string{`host "h1" is gone, and last reported a change 20`, `it has "takeover: never", so a person decides`}},
		{"away", nil, (*loss).stopInOrder, []string{`host "h1" is away, and last reported a change 20`, `host "h1" was stopped in order, and is expected back within 5m0s`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := fencing{driver: attachAndStage, plugin: []string{`"fence": "detach"`}, volume: c.volume}.start(t)
			c.lose(l)
			l.awaitGone()
			claimed := l.await()
			l.expectAnswer(append(c.words, `held by host "h1"`, "volctl node fence h1 --powered-off --reason TEXT", "volctl node replace h1 --reason TEXT -y")...)
			if len(l.detached()) > 0 || len(l.proofIfAny("h1").Drops) > 0 {
				t.Error("host h1 has lost the volume")
			}

			mustSay(t, "the answer to the person", l.fence(l.c), "volumes that other hosts waited for: db")
			l.expectTaken(<-claimed, "h1", shared.ProvenPerson)
			l.expectSilence()
		})
	}
}

// stopInOrder claims the volume on h1, stops the agent of h1 with SIGTERM, and switches h1 off.
func (l *loss) stopInOrder() {
	l.t.Helper()
	path := claim(l.a.Host, "db", "web")
	l.a.MustRun("sh", "-c", `echo h1 > "$1"`, "sh", filepath.Join(path, "log"))
	l.a.Stop()
	l.a.PowerOff()
}

// TestTakeoverWithoutPlugin loses host h1, the only one with the plugin of a volume. The claim on h2 ends
// with an error that names the plugin, and leaves nothing. After the statement of a person, h1 comes back,
// and has kept its claim, because no host has taken the volume. (I1, I3, I4)
func TestTakeoverWithoutPlugin(t *testing.T) {
	t.Parallel()
	l := &loss{field: &field{t: t, san: lab.StartSAN(t)}}
	l.Lab = lab.New(t, 2, lab.WithEtcd(1), lab.Clustered())
	l.a, l.b = l.Hosts[0], l.Hosts[1]
	addDriver(l.a.Host, l.san, "csi-h1", attachAndStage, `"fence": "detach"`)
	l.a.Start("san")
	l.b.Start()
	shareOn(l.a.Host, l.san, "db", mode("single-node-multi-writer"))
	path := claim(l.a.Host, "db", "web")
	l.a.PowerOff()
	l.awaitGone()

	l.b.Await("the refusal that names the plugin", func() bool {
		r := l.b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "3s")
		return r.Code != 0 && strings.Contains(r.Err, `host "h1" is gone`) && strings.Contains(r.Err, `cannot take it over: plugin "san" is not configured`)
	})
	mustSay(t, "the answer to the person", l.fence(l.b), "volumes that other hosts waited for: none")
	l.expectNoKeys("wanted/", "calls/", "tasks/", "holds/h2/")
	if p := l.proof("h1"); len(p.Drops) > 0 || p.Kind != shared.ProvenPerson {
		t.Errorf("the proof is %+v", p)
	}

	l.reboot()
	l.a.Await("the mount on h1", func() bool { return l.a.Run("test", "-d", path).Code == 0 && strings.Contains(l.a.Mounts(), "san:") })
	l.a.MustRun("sh", "-c", `echo h1 > "$1"`, "sh", filepath.Join(path, "log"))
	l.a.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
	l.expectNoLeftover()
}

// expectNoKeys asserts that the cluster has no key with one of the prefixes.
func (l *loss) expectNoKeys(prefixes ...string) {
	l.t.Helper()
	for _, kv := range l.keys() {
		for _, p := range prefixes {
			if strings.HasPrefix(kv.Key, p) {
				l.t.Errorf("etcd still has %s: %s", kv.Key, kv.Value)
			}
		}
	}
}

// TestAllHostsLost switches all hosts off at once, and on again in the reverse order. The last host takes
// the volume of the first one over before that is back. In the end, each claim is served or lost, and the
// holds, the mounts and the attachments agree. (I1, I3, I4)
func TestAllHostsLost(t *testing.T) {
	t.Parallel()
	f := &field{san: lab.StartSAN(t)}
	f.Lab = lab.New(t, 3, lab.WithEtcd(1), lab.Clustered())
	hosts := map[string]*harness.Host{}
	for _, h := range f.Hosts {
		addDriver(h.Host, f.san, "", attachAndStage, `"fence": "detach"`)
		h.Start("san")
		hosts[h.Name] = h.Host
	}
	ids := []string{"v1", "v2", "v3"}
	for i, id := range ids {
		shareOn(f.Hosts[0].Host, f.san, id, mode("single-node-multi-writer"))
		f.Hosts[i].MustRun("sh", "-c", `echo kept > "$1"; sync "$1"`, "sh", filepath.Join(claim(f.Hosts[i].Host, id, "web"), "file"))
	}
	for _, h := range f.Hosts {
		h.PowerOff()
	}

	h1, h2, h3 := f.Hosts[0], f.Hosts[1], f.Hosts[2]
	h3.PowerOn()
	h3.Start("san")
	path := claim(h3.Host, "v1", "web", "--timeout", "90s")
	if text := h3.MustRun("cat", filepath.Join(path, "file")); text != "kept" {
		t.Errorf("host h3 reads %q", text)
	}
	for _, h := range []*lab.Host{h2, h1} {
		h.PowerOn()
		h.Start("san")
	}
	awaitAgreement(t, "the return of all hosts", f.san, hosts, map[string]string{"v1": "h3", "v2": "h2", "v3": "h3"}, func() map[string]string {
		holds := map[string]string{}
		for _, id := range ids {
			v, ok := volumeOn(h2.Host, id)
			for _, h := range v.Holds {
				holds[id] += h.Host
			}
			if !ok {
				holds[id] += " unknown"
			}
		}
		return holds
	})
	h1.Await("the end of the lost claim", func() bool { return len(h1.Claims()) == 0 })
	h1.ExpectOutput("hold-lost", "events", "--volume", "v1")
	refused(t, h1.Try("volume", "claim", "v1", "--alloc", "web", "--timeout", "2s").Err, `held by host "h3"`)
}

// TestFencerKilled loses host h1, and kills the agent of the host that fences it while that host detaches
// h1. Another host finishes, and exactly one host has the volume in the end. The late call of the killed
// host then takes effect. (I1, I3, I8, I10, I11)
func TestFencerKilled(t *testing.T) {
	t.Parallel()
	l := fencing{driver: attachAndStage, plugin: []string{`"fence": "detach"`}}.start(t)
	l.powerOff()
	releases := map[string]func(){}
	for _, node := range []string{"csi-h2", "csi-h3"} {
		releases[node] = l.san.Hold("ControllerUnpublishVolume", node)
	}
	l.awaitGone()
	for _, h := range []*lab.Host{l.b, l.c} {
		h.Spawn(nil, filepath.Join(harness.BinDir, "volctl"), "volume", "claim", "db", "--alloc", "web", "--timeout", "90s")
	}
	fencer, other := l.b, l.c
	if (&rig{t: t, san: l.san}).awaitHeld("ControllerUnpublishVolume") == "csi-h3" {
		fencer, other = l.c, l.b
	}
	fencer.Kill()
	releases["csi-"+other.Name]()

	path := claim(other.Host, "db", "web", "--timeout", "90s")
	other.MustRun("sh", "-c", `echo other > "$1"`, "sh", filepath.Join(path, "owner"))
	releases["csi-"+fencer.Name]()
	fencer.Start("san")
	refused(t, fencer.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "3s").Err, `held by host "`+other.Name+`"`)
	other.MustRun("sh", "-c", `echo more > "$1"`, "sh", filepath.Join(path, "more"))
	if a := l.san.Attachments(); len(a) != 1 || a[0].Node != "csi-"+other.Name {
		t.Errorf("the attachments are %+v", a)
	}
	if p := l.proof("h1"); len(p.Drops) != 1 || p.Drops[0].By != other.Name {
		t.Errorf("the proof is %+v", p)
	}
	l.expectNoKeys("calls/", "tasks/")
	if drops := l.of(0, func(e san.Event) bool { return e.Kind == san.KindDetach && e.Node == "csi-h1" }); len(drops) != 1 {
		t.Errorf("host h1 was detached with %v", drops)
	}
}
